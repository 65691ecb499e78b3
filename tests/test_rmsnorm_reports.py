"""Public bug reports about other RMSNorms, replayed on my_ops.rmsnorm."""

import pytest
import torch
from rmsnorm_reference import assert_accurate, exact, sample

import my_ops


def gradients(x, weight, grad):
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    return torch.autograd.grad(my_ops.rmsnorm(x, weight), (x, weight), grad)


def test_mixed_dtypes_of_3d_queries(device):
    """pytorch#195638, sglang#32807: an eight-kernel fallback, or NaN from reinterpreted memory."""
    x, weight = sample((5, 4, 256), torch.bfloat16, device), sample((256,), torch.float32, device)
    y = my_ops.rmsnorm(x, weight)
    assert_accurate(y, exact(x, weight))
    grad_x, grad_weight = gradients(x, weight, torch.ones_like(y))
    assert (grad_x.dtype, grad_weight.dtype) == (torch.bfloat16, torch.float32)


def test_leading_dimensions_that_do_not_collapse(device):
    """vllm#22701, LightLLM#1467: heads of a packed qkv, and a last dimension with a stride."""
    x = sample((2, 3, 24, 128), torch.bfloat16, device)[:, :, :8]
    assert torch.equal(my_ops.rmsnorm(x), my_ops.rmsnorm(x.contiguous()))
    x = sample((64, 128), torch.bfloat16, device).t()
    assert torch.equal(my_ops.rmsnorm(x), my_ops.rmsnorm(x.contiguous()))


def test_no_rows(device):
    """StepMesh#43, sglang#23609: a grid of zero blocks, an error that surfaced in a later call."""
    x = torch.empty(0, 7168, dtype=torch.bfloat16, device=device)
    weight = torch.ones(7168, dtype=torch.bfloat16, device=device)
    grad_x, grad_weight = gradients(x, weight, x)
    assert grad_x.shape == x.shape
    assert grad_weight.eq(0).all()
    assert torch.ones(3, device=device).sum().item() == 3


def test_fewer_rows_than_blocks(device):
    """flash-attention#781: partial sums of idle blocks were never written."""
    x, weight = torch.zeros(4, device=device), torch.ones(4, device=device)
    for _ in range(10):
        torch.full((1 << 16,), float("nan"), device=device)  # what a fresh buffer may hold
        grad_x, grad_weight = gradients(x, weight, -torch.ones(4, device=device))
        assert grad_weight.tolist() == [0.0] * 4
        assert grad_x.shape == (4,)


def test_weight_gradient_is_not_summed_in_16_bits(device):
    """Liger#950: a bfloat16 sum of ones stalls at 256."""
    x = torch.ones(8192, 128, dtype=torch.bfloat16, device=device)
    weight = torch.ones(128, dtype=torch.bfloat16, device=device, requires_grad=True)
    my_ops.rmsnorm(x, weight, 0.0).sum().backward()
    assert weight.grad.eq(8192).all()


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((4, 16384), torch.float16), ((2, 65536), torch.float32), ((2, 262144), torch.float32)],
)
def test_wide_rows_with_residual(device, shape, dtype):
    """flashinfer#718, pytorch#150266: more shared memory or registers than a block may have."""
    x, residual, grad = (sample(shape, dtype, device) for _ in range(3))
    weight = sample(shape[1:], dtype, device)
    y, total = my_ops.add_rmsnorm(x, residual, weight)
    assert_accurate(y, exact(total, weight))
    grad_x, grad_weight = gradients(total, weight, grad)
    for row in range(shape[0]):
        alone = gradients(total[row : row + 1], weight, grad[row : row + 1])
        assert torch.equal(grad_x[row : row + 1], alone[0])
    assert grad_weight.isfinite().all()


@pytest.mark.cuda
@pytest.mark.xdist_group("large")
@pytest.mark.parametrize(
    ("rows", "H"),
    # Just over 2^31 elements, 4096 over, and over 2^32.
    [(4_194_305, 512), (8_388_624, 256), (16_777_217, 256)],
)
def test_more_elements_than_32_bits_count(rows, H):
    """flashinfer#3391, vllm#43390, pytorch#181555, Liger#1483: wrong rows or illegal access."""
    if torch.cuda.mem_get_info()[0] < 5 * rows * H * 2:
        pytest.skip("not enough GPU memory for this size")
    x = torch.zeros(rows, H, dtype=torch.bfloat16, device="cuda")
    tail = sample((8, H), torch.bfloat16, "cuda")
    x[-8:] = tail
    weight = sample((H,), torch.bfloat16, "cuda")
    assert torch.equal(my_ops.rmsnorm(x, weight)[-8:], my_ops.rmsnorm(tail, weight))
    grad_x, grad_weight = gradients(x, weight, x)
    alone_x, alone_weight = gradients(tail, weight, tail)
    assert torch.equal(grad_x[-8:], alone_x)
    torch.testing.assert_close(grad_weight, alone_weight)  # all other rows add zero


@pytest.mark.cuda
@pytest.mark.xdist_group("large")
@pytest.mark.parametrize("H", [96, 4096, 40_000])
def test_rows_more_than_2_to_the_31_elements_apart(H):
    stride = 2**31 + 8
    x = torch.empty(2 * stride + H, dtype=torch.bfloat16, device="cuda")
    x = x.as_strided((3, H), (stride, 1)).copy_(sample((3, H), torch.bfloat16, "cuda"))
    weight = sample((H,), torch.float32, "cuda")
    dense = x.clone(memory_format=torch.contiguous_format)
    assert torch.equal(my_ops.rmsnorm(x, weight), my_ops.rmsnorm(dense, weight))
    actual, expected = gradients(x, weight, x), gradients(dense, weight, dense)
    assert actual[0].is_contiguous()
    assert all(map(torch.equal, actual, expected))


@pytest.mark.cuda
def test_one_kernel_for_rows_of_a_packed_tensor_and_a_weight_of_another_dtype():
    """vllm#49750, pytorch#167308: copies of q and k, casts of the weight."""
    x = sample((2, 3, 24, 128), torch.bfloat16, "cuda")[:, :, 8:16]
    weight = sample((128,), torch.float32, "cuda")
    my_ops.rmsnorm(x, weight)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        my_ops.rmsnorm(x, weight)
        torch.cuda.synchronize()
    kernels = [e.name for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert len(kernels) == 1, kernels


@pytest.mark.cuda
@pytest.mark.xdist_group("large")
def test_one_row_of_2_to_the_28():
    """pytorch#186800: a just-in-time compiled kernel hung on it."""
    x = sample((1, 1 << 28), torch.bfloat16, "cuda")
    y = my_ops.rmsnorm(x)
    assert_accurate(y[:, -4096:], exact(x)[:, -4096:])


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_on_another_than_the_current_device():
    """apex#1736, Liger#1303: zeros or illegal access."""
    x = torch.tensor([[1.5, 0, 0, 0]], device="cuda:1")
    weight = torch.ones(4, device="cuda:1")
    y = my_ops.rmsnorm(x, weight)
    assert y.device == x.device
    torch.testing.assert_close(y.cpu(), torch.tensor([[2.0, 0, 0, 0]]))
    assert gradients(x, weight, y)[0].device == x.device
    assert torch.cuda.current_device() == 0
    with pytest.raises(RuntimeError, match=r"weight: expected the device of x \(cuda:1\)"):
        my_ops.rmsnorm(x, weight.to("cuda:0"))


@pytest.mark.cuda
def test_mixed_devices_are_refused():
    x = torch.ones(2, 4, device="cuda")
    with pytest.raises(RuntimeError, match=r"weight: expected the device of x \(cuda:0\), got cpu"):
        my_ops.rmsnorm(x, torch.ones(4))
    with pytest.raises(RuntimeError, match=r"residual: expected the device of x"):
        my_ops.add_rmsnorm(x, torch.ones(2, 4))


@pytest.mark.cuda
@pytest.mark.parametrize("H", [256, 5120, 131072])
def test_cuda_graph_and_side_stream(H):
    """pytorch#157363: a kernel on the default stream instead of the current one."""
    x, grad = (sample((16, H), torch.bfloat16, "cuda") for _ in range(2))
    weight = sample((H,), torch.bfloat16, "cuda")

    def step():
        y, total = my_ops.add_rmsnorm(x, grad, weight)
        return y, *torch.ops.my_ops.rmsnorm_backward(grad, total, x, weight, 1e-6, 0.0)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        x.copy_(sample((16, H), torch.bfloat16, "cuda"))
        graph.replay()
        assert all(map(torch.equal, captured, step()))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.copy_(grad)
        on_stream = step()
    stream.synchronize()
    assert all(map(torch.equal, on_stream, step()))
