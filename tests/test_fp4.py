"""my_ops.fp4_quantize and fp4_dequantize: layouts, gradients, compilation, errors.

The bytes themselves are the matter of test_fp4_bits.py and test_fp4_vectors.py.
"""

import pytest
import torch
from fp4_reference import BLOCK, DTYPES, FORMATS
from helpers import assert_same_bytes, check_stream_and_graph, message, no_synchronization
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.library import opcheck

import my_ops


def layouts(device, dtype):
    """Tensors that are not simply contiguous, by name."""
    x = torch.randn(6, 5, 48, device=device).to(dtype)
    return {
        "transposed": x.transpose(1, 2),
        "permuted": x.permute(2, 0, 1),
        "leading dimensions swapped": x.transpose(0, 1),
        "sliced": x[:, ::2, 16:],
        "strided": x[..., ::2],
        "misaligned": x[..., 1:33],
        "misaligned vector": x.reshape(-1)[1:100],
        "expanded rows": x[:1].expand(6, 5, 48),
        "expanded elements": x[..., :1].expand(6, 5, 48),
        "size one": x[:, :1],
        "vector": x[0, 0],
        "one element": x[0, 0, :1],
    }


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", list(layouts("cpu", torch.float32)))
def test_layouts(device, name, format):
    for dtype in DTYPES:
        x = layouts(device, dtype)[name]
        q, expected = my_ops.fp4_quantize(x, format), my_ops.fp4_quantize(x.contiguous(), format)
        assert_same_bytes(q, expected)
        assert q.shape == x.shape
        y = q.dequantize()
        assert y.is_contiguous()
        assert (y.dtype, y.device) == (x.dtype, x.device)


@pytest.mark.parametrize("format", FORMATS)
def test_shapes_and_attributes(device, format):
    for shape in ((5,), (3, 40), (2, 3, 4, 33)):
        x = torch.randn(shape, device=device, dtype=torch.bfloat16)
        q = my_ops.fp4_quantize(x, format)
        *leading, K = shape
        assert isinstance(q, my_ops.FP4Tensor)
        assert q.packed.shape == (*leading, -(-K // 2))
        assert q.scale.shape == (*leading, -(-K // BLOCK[format]))
        assert q.scale.dtype == (torch.float8_e4m3fn if format == "nvfp4" else torch.float8_e8m0fnu)
        assert (q.packed.dtype, q.dtype, q.format) == (torch.uint8, torch.bfloat16, format)
        if format == "nvfp4":
            assert q.amax.dtype == torch.float32
            assert q.amax.shape == ()
        else:
            assert q.amax is None
        assert my_ops.fp4_quantize(x, format, two_level=False).amax is None


@pytest.mark.parametrize("format", FORMATS)
def test_error_of_a_round_trip(device, format):
    """The signal to noise ratio of the format on normal data: 20.4 and 18.8 dB."""
    x = torch.randn(512, 512, device=device)
    for dtype in DTYPES:
        y = my_ops.fp4_dequantize(my_ops.fp4_quantize(x.to(dtype), format), torch.float32)
        error = ((y - x).norm() / x.norm()).item()
        assert abs(error - (0.0952 if format == "nvfp4" else 0.115)) < 0.003


@pytest.mark.parametrize("format", FORMATS)
def test_axis_0_is_the_transpose_of_the_transpose(device, format):
    b = torch.randn(48, 5, device=device)
    for axis in (0, -2):
        q = my_ops.fp4_quantize(b, format, axis=axis)
        assert q.shape == b.shape
        assert_same_bytes(q.t(), my_ops.fp4_quantize(b.t(), format))
        assert torch.equal(q.dequantize(), my_ops.fp4_quantize(b.t(), format).dequantize().t())
    assert_same_bytes(my_ops.fp4_quantize(b, format, axis=1), my_ops.fp4_quantize(b, format))


@pytest.mark.parametrize("shape", [(0, 64), (4, 0), (0,), (0, 3, 0), (2, 0, 5)])
@pytest.mark.parametrize("format", FORMATS)
def test_empty(device, shape, format):
    x = torch.empty(shape, device=device, requires_grad=True)
    q = my_ops.fp4_quantize(x, format)
    assert q.shape == x.shape
    y = q.dequantize(torch.bfloat16)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad.shape == x.shape
    # The device works on: an empty launch would have left an error behind.
    assert my_ops.fp4_quantize(torch.ones(16, device=device)).dequantize().tolist() == [1.0] * 16


def test_zeros_decode_to_zeros(device):
    x = torch.zeros(4, 64, device=device)
    assert my_ops.fp4_quantize(x).dequantize().eq(0).all()
    x[2] = torch.randn(64)
    y = my_ops.fp4_quantize(x).dequantize()
    assert y[[0, 1, 3]].eq(0).all()
    assert y[2].isfinite().all()


def test_given_amax(device):
    x = torch.randn(8, 64, device=device)
    own = my_ops.fp4_quantize(x)
    for amax in (own.amax, own.amax.item(), own.amax.reshape(1), own.amax.clone().requires_grad_()):
        q = my_ops.fp4_quantize(x, amax=amax)
        assert torch.equal(q.packed, own.packed)
        assert torch.equal(q.scale_bytes, own.scale_bytes)
        assert not q.requires_grad
    # Too small saturates, at 6 times the largest scale; zero and Inf mean a tensor scale of 1.
    small = my_ops.fp4_quantize(x, amax=0.1).dequantize()
    assert abs(small.abs().max().item() - 0.1) < 1e-6
    one_level = my_ops.fp4_quantize(x, two_level=False)
    for amax in (0, float("inf")):
        q = my_ops.fp4_quantize(x, amax=amax)
        assert torch.equal(q.packed, one_level.packed)
        assert torch.equal(q.dequantize(), one_level.dequantize())


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1])
def test_gradient_is_straight_through(device, format, dtype, axis):
    x = torch.randn(5, 40, device=device, dtype=dtype, requires_grad=True)
    q = my_ops.fp4_quantize(x, format, axis=axis)
    assert q.requires_grad
    grads = {
        "dense": torch.randn(5, 40, device=device).to(dtype),
        "transposed": torch.randn(40, 5, device=device).to(dtype).t(),
        "expanded": torch.randn(1, 1, device=device).to(dtype).expand(5, 40),
    }
    for grad in grads.values():
        (grad_x,) = torch.autograd.grad(q.dequantize(), x, grad)
        assert torch.equal(grad_x, grad)
    my_ops.fp4_dequantize(q, torch.float32).sum().backward()
    assert x.grad.dtype == dtype
    assert x.grad.eq(1).all()


def test_gradient_equals_the_detach_formula(device):
    x = torch.randn(6, 32, device=device, requires_grad=True)
    w = torch.randn(32, device=device)

    def loss(y):
        return (y.sin() * w).sum()

    (grad,) = torch.autograd.grad(loss(my_ops.fp4_quantize(x).dequantize()), x)
    plain = x + (my_ops.fp4_quantize(x.detach()).dequantize() - x).detach()
    (expected,) = torch.autograd.grad(loss(plain), x)
    torch.testing.assert_close(grad, expected, rtol=1e-5, atol=1e-6)
    # Once more: the second derivative is that of sin, at the quantized point.
    y = my_ops.fp4_quantize(x).dequantize()
    (grad,) = torch.autograd.grad(loss(y), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    torch.testing.assert_close(second, -(y.sin() * w).detach())


def test_no_gradient_is_recorded_without_need(device):
    x = torch.randn(3, 16, device=device, requires_grad=True)
    with torch.no_grad():
        q = my_ops.fp4_quantize(x)
    assert not q.requires_grad
    assert not q.dequantize().requires_grad
    assert not my_ops.fp4_quantize(x.detach()).requires_grad


def test_checkpointing_and_saved_tensor_hooks(device):
    x = torch.randn(3, 32, device=device, requires_grad=True)

    def step(x):
        return (my_ops.fp4_quantize(x * 2).dequantize() ** 2).sum()

    (expected,) = torch.autograd.grad(step(x), x)
    y = torch.utils.checkpoint.checkpoint(step, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(y, x)[0], expected)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(device)):
        y = step(x)
    assert torch.equal(torch.autograd.grad(y, x)[0], expected)


@pytest.mark.parametrize("format", FORMATS)
def test_opcheck(device, format):
    ops = torch.ops.my_ops
    x = torch.randn(4, 3, 40, device=device)
    for view in (x, x.transpose(0, 2), x[..., ::2], x.bfloat16()):
        amax = view.abs().max().float() if format == "nvfp4" else None
        opcheck(ops.fp4_amax.default, (view,))
        for rounding in ("nearest", "stochastic"):
            arguments = (view, amax, format, "floor", rounding, 3)
            opcheck(ops.fp4_quantize.default, arguments)
            if format == "nvfp4":
                opcheck(ops.fp4_quantize_two_level.default, (view, *arguments[3:]))
        packed, scale = ops.fp4_quantize(*arguments)
        opcheck(
            ops.fp4_dequantize.default,
            (packed, scale, amax, view.shape[-1], format, "bfloat16"),
        )
        # Slices of rows: what the kernels read need not be dense.
        opcheck(
            ops.fp4_dequantize.default,
            (packed[::2], scale[::2], amax, view.shape[-1], format, "float32"),
        )


@pytest.mark.parametrize("format", FORMATS)
def test_compile_without_a_break(device, format):
    def step(x, rounding, axis):
        q = my_ops.fp4_quantize(x * 3, format, axis=axis, rounding=rounding, seed=4)
        return (my_ops.fp4_dequantize(q) * x).sum()

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows, K in ((3, 40), (8, 33)):
        for arguments in (("nearest", -1), ("stochastic", 0)):
            x = torch.randn(rows, K, device=device, requires_grad=True)
            loss = step(x, *arguments)
            torch.testing.assert_close(compiled(x, *arguments), loss)
            expected = torch.autograd.grad(loss, x)
            torch.testing.assert_close(torch.autograd.grad(compiled(x, *arguments), x), expected)


def test_compile_with_inductor(device):
    def step(x, amax):
        q = my_ops.fp4_quantize(x.relu(), amax=amax)
        return q.detach(), my_ops.fp4_dequantize(q, torch.float32) + 1

    compiled = torch.compile(step, fullgraph=True)
    x = torch.randn(8, 48, device=device, dtype=torch.bfloat16, requires_grad=True)
    for amax in (None, 3.0):
        (q, y), (q_expected, expected) = compiled(x, amax), step(x, amax)
        assert_same_bytes(q, q_expected)
        assert torch.equal(y, expected)
        assert torch.equal(*(torch.autograd.grad(z.sum(), x)[0] for z in (y, expected)))


def test_functional_transforms_are_refused(device):
    x = torch.randn(4, 32, device=device)
    summed = lambda x: my_ops.fp4_quantize(x).dequantize().sum()  # noqa: E731
    for transform in (torch.func.grad(summed), torch.func.vmap(summed)):
        with pytest.raises(RuntimeError, match=r"fp4_quantize: x: .*torch\.func transforms"):
            transform(x)
    # Of something else, with quantized constants inside, they work.
    q = my_ops.fp4_quantize(x)
    product = lambda a: torch.nn.functional.linear(a, q).sum()  # noqa: E731
    expected = q.dequantize().sum(0).expand(4, 32)
    torch.testing.assert_close(torch.func.grad(product)(x), expected)


def test_raw_operators_refuse_to_lose_a_gradient(device):
    x = torch.randn(3, 16, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match="derivative for my_ops::fp4_amax"):
        torch.ops.my_ops.fp4_amax(x).backward()


def test_kernel_level_functions(device):
    x = torch.randn(3, 40, device=device)
    q = my_ops.fp4_quantize(x, two_level=False)
    packed, scale = my_ops._C.fp4_quantize(x)
    assert torch.equal(packed, q.packed)
    assert torch.equal(scale, q.scale_bytes)
    assert torch.equal(my_ops._C.fp4_dequantize(packed, scale, None, 40), q.dequantize())
    assert my_ops._C.fp4_amax(x) == x.abs().max()


def test_errors_of_quantize(device):
    x = torch.ones(3, 32, device=device)
    quantize, name = my_ops.fp4_quantize, "my_ops.fp4_quantize: "
    assert message(quantize, x.double()) == (
        name + "x: expected float32, float16 or bfloat16, got torch.float64"
    )
    assert message(quantize, x.int(), "mxfp4") == (
        name + "x: expected float32, float16 or bfloat16, got torch.int32"
    )
    assert message(quantize, x[0, 0], "mxfp4") == (
        name + "x: expected at least one dimension, got a tensor without dimensions"
    )
    assert message(quantize, x, "fp4") == name + "format: expected 'nvfp4' or 'mxfp4', got 'fp4'"
    assert message(quantize, x, "mxfp4", scale_mode="up") == (
        name + "scale_mode: expected 'floor', 'rceil', 'ceil' or 'even', got 'up'"
    )
    assert message(quantize, x, scale_mode="rceil") == (
        name + "scale_mode: expected 'floor' (the other modes are those of 'mxfp4'), got 'rceil'"
    )
    assert message(quantize, x, rounding="up") == (
        name + "rounding: expected 'nearest' or 'stochastic', got 'up'"
    )
    for axis in (0, 1, -2, 3):
        assert message(quantize, x[None], axis=axis) == (
            name + "axis: expected the last dimension of x, or 0 for a matrix, "
            f"got {axis} for 3 dimensions"
        )
    assert message(quantize, x, "mxfp4", amax=1.0) == (
        name + "amax: expected None (the format 'mxfp4' has no tensor scale), got 1.0"
    )
    assert message(quantize, x, amax=1.0, two_level=False) == (
        name + "amax: expected None with two_level=False, got 1.0"
    )
    for amax in (-1.0, float("nan")):
        assert message(quantize, x, amax=amax) == (
            name + f"amax: expected a number from 0 on, got {amax}"
        )
    assert message(quantize, x, amax=x[0, :1].double()) == (
        name + "amax: expected one float32 element, got 1 of Double"
    )
    assert message(quantize, x, amax=x[0, :2]) == (
        name + "amax: expected one float32 element, got 2 of Float"
    )
    meta = torch.ones(3, 32, device="meta")
    assert message(my_ops._C.fp4_quantize, meta).endswith("expected a CPU or CUDA tensor, got meta")
    assert message(my_ops._C.fp4_quantize, torch.ones(3).to_sparse()).endswith("got Sparse")
    # Nothing else happened and the device still works.
    assert quantize(x).dequantize().eq(1).all()


def test_amax_that_is_not_a_number_is_refused_on_the_cpu():
    for amax in (-1.0, float("nan")):
        assert "amax: expected a number from 0 on" in message(
            my_ops.fp4_quantize, torch.ones(16), amax=torch.tensor(amax)
        )


def test_errors_of_dequantize(device):
    x = torch.ones(3, 40, device=device)
    q = my_ops.fp4_quantize(x)
    name = "my_ops.fp4_dequantize: "
    assert message(my_ops.fp4_dequantize, x).startswith(name + "q: expected an FP4Tensor, got")
    assert message(my_ops.fp4_dequantize, q, torch.float64) == (
        name + "dtype: expected 'float32', 'float16' or 'bfloat16', got 'float64'"
    )
    raw = my_ops._C.fp4_dequantize
    packed, scale, amax = q.packed, q.scale_bytes, q.amax
    assert message(raw, packed, scale, amax, 42) == (
        name + "packed: expected the shape [3, 21], got [3, 20]"
    )
    assert message(raw, packed, scale[:2], amax, 40) == (
        name + "scale: expected the shape [3, 3], got [2, 3]"
    )
    assert message(raw, packed, scale, None, 40, "mxfp4") == (
        name + "scale: expected the shape [3, 2], got [3, 3]"
    )
    assert message(raw, packed, q.scale, amax, 40) == (
        name + "scale: expected uint8, got Float8_e4m3fn"
    )
    assert message(raw, packed.int(), scale, amax, 40) == name + "packed: expected uint8, got Int"
    assert message(raw, packed, scale[:, :2], amax, 40, "mxfp4") == (
        name + "amax: expected None (the format 'mxfp4' has no tensor scale), got a tensor"
    )
    assert message(raw, packed, scale, amax, -1) == (
        name + "K: expected the number of elements of a row, got -1"
    )
    assert message(raw, packed, scale, amax, 40, "fp4").startswith(name + "format: expected")
    assert message(raw, packed, scale, x, 40).startswith(name + "amax: expected one float32")


@pytest.mark.cuda
class TestOnGpu:
    def test_mixed_devices_are_refused(self):
        x = torch.ones(3, 32, device="cuda")
        with pytest.raises(RuntimeError, match=r"amax: expected the device of x \(cuda:0\)"):
            my_ops.fp4_quantize(x, amax=torch.ones(()))

    def test_equals_the_cpu_on_a_large_tensor(self):
        x = torch.randn(4096, 4096).bfloat16()
        for format in FORMATS:
            q = my_ops.fp4_quantize(x, format)
            assert_same_bytes(my_ops.fp4_quantize(x.cuda(), format).cpu(), q)
            assert torch.equal(q.to("cuda").dequantize().cpu(), q.dequantize())

    def test_no_synchronization(self):
        x = torch.randn(64, 64, device="cuda")
        amax = x.abs().max()
        with no_synchronization():
            my_ops.fp4_quantize(x).dequantize()
            my_ops.fp4_quantize(x, amax=amax, axis=0).dequantize()

    def test_graph_capture_and_side_stream(self):
        x = torch.randn(64, 64, device="cuda")
        check_stream_and_graph(lambda: my_ops.fp4_quantize(x).dequantize(), x)

    @pytest.mark.xdist_group("large")
    def test_more_than_2_to_the_31_elements(self):
        x = torch.zeros(65536, 32800, device="cuda", dtype=torch.bfloat16)
        x[-1] = 6
        q = my_ops.fp4_quantize(x)
        assert q.packed[-1].eq(0x77).all()
        assert q[-2:].dequantize().eq(x[-2:]).all()
        del x
        y = q.dequantize()
        assert y[-1].eq(6).all()
        assert y[:-1].eq(0).all()

    def test_more_rows_than_a_grid_is_high(self):
        """Rows of 16 collapse into one; rows further apart are walked in a loop."""
        wide = torch.full((8_400_000, 24), 6.0, device="cuda", dtype=torch.bfloat16)
        for x in (wide[:, :16].contiguous(), wide[:, :16], wide[:, :15]):
            q = my_ops.fp4_quantize(x, two_level=False)
            assert q.scale_bytes.eq(0x38).all()
            assert q.dequantize().eq(6).all()


@settings(max_examples=60, deadline=None)
@given(
    shape=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    permutation=st.randoms(use_true_random=False),
    step=st.integers(1, 3),
    dtype=st.sampled_from(DTYPES),
    format=st.sampled_from(FORMATS),
)
def test_any_shape_and_stride(shape, permutation, step, dtype, format):
    x = torch.randn([size * step for size in shape]).to(dtype)
    x = x[tuple(slice(None, None, step) for _ in shape)]
    x = x.permute(permutation.sample(range(x.dim()), x.dim()))
    q = my_ops.fp4_quantize(x, format)
    assert_same_bytes(
        q, my_ops.fp4_quantize(x.clone(memory_format=torch.contiguous_format), format)
    )
    if not x.numel():
        return
    # No value is further off than half a step of the largest: a third of its block's largest. The
    # smallest scale, that of an amax 2^-18 of the tensor's, is off by as much itself.
    error, magnitude = (q.dequantize() - x).abs().float(), x.abs().float()
    smallest = magnitude.max() * 2**-18
    for k in range(0, x.shape[-1], BLOCK[format]):
        block = slice(k, k + BLOCK[format])
        bound = magnitude[..., block].amax(-1) / 3 * (1 if format == "nvfp4" else 1.01) + smallest
        assert (error[..., block].amax(-1) <= bound).all()
