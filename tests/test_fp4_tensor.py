"""my_ops.FP4Tensor: a tensor like others to modules, serialization, devices and the compiler."""

import copy
import io
import multiprocessing
import pickle

import pytest
import torch
from fp4_reference import FORMATS
from helpers import assert_same_tensor
from torch import nn
from torch.nn import functional as F

import my_ops


@pytest.fixture(params=FORMATS)
def q(request, device):
    x = torch.randn(6, 40, device=device, dtype=torch.bfloat16)
    return my_ops.fp4_quantize(x, request.param)


def module_with(q):
    module = nn.Linear(40, 6, dtype=q.dtype, device=q.device)
    module.weight = nn.Parameter(q, requires_grad=False)
    return module


def test_looks_like_the_tensor_it_stands_for(q, device):
    assert (q.shape, q.dtype, q.device.type) == ((6, 40), torch.bfloat16, device)
    assert (q.stride(), q.t().stride()) == ((40, 1), (1, 40))
    assert q.numel() == 240
    expected = 6 * 20 + 6 * 3 + 4 if q.format == "nvfp4" else 6 * 20 + 6 * 2
    assert q.nbytes == expected
    assert repr(q) == (
        f"FP4Tensor(shape=(6, 40), format='{q.format}', dtype=torch.bfloat16, "
        f"device='{q.device}', nbytes={expected})"
    )
    assert repr(q.float().requires_grad_()).endswith("requires_grad=True)")


def test_dequantize(q):
    y = q.dequantize()
    assert type(y) is torch.Tensor
    assert y.dtype == torch.bfloat16
    assert torch.equal(q.dequantize(torch.float32), my_ops.fp4_dequantize(q, torch.float32))
    assert torch.equal(q.dequantize(torch.float32).bfloat16(), y)


def test_transposing_flips_a_flag(q):
    y = q.dequantize()
    for t in (q.t(), q.T, q.mT, q.transpose(0, 1), q.transpose(-1, -2), q.permute(1, 0)):
        assert t.transposed
        assert t.shape == (40, 6)
        assert t.packed.data_ptr() == q.packed.data_ptr()
        assert torch.equal(t.dequantize(), y.t())
        assert torch.equal(t + 0, y.t())
    assert_same_tensor(q.t().t(), q)
    x = torch.randn(2, 3, 32, device=q.device)
    batch = my_ops.fp4_quantize(x, q.format)
    assert torch.equal(batch.mT.dequantize(), batch.dequantize().mT)


@pytest.mark.parametrize("transposed", [False, True])
def test_whole_rows_stay_quantized(q, transposed):
    q, y = (q.t(), q.dequantize().t()) if transposed else (q, q.dequantize())
    row = (lambda t, i: t[:, i]) if transposed else (lambda t, i: t[i])
    for index in (0, -1, slice(1, 5), slice(None, None, 2), slice(3, 3)):
        part = row(q, index)
        assert isinstance(part, my_ops.FP4Tensor)
        assert torch.equal(part.dequantize(), row(y, index))
    rows = list(q.unbind(1 if transposed else 0))
    assert len(rows) == 6
    assert torch.equal(rows[2].dequantize(), row(y, 2))
    index = torch.tensor([4, 0, 4], device=q.device)
    part = q.index_select(1 if transposed else 0, index)
    assert isinstance(part, my_ops.FP4Tensor)
    assert torch.equal(part.dequantize(), row(y, index))


def test_rows_by_tensors_and_embedding(q):
    y = q.dequantize()
    index = torch.tensor([[4, 0], [1, 1]], device=q.device)
    assert isinstance(q[index], my_ops.FP4Tensor)
    assert torch.equal(q[index].dequantize(), y[index])
    assert torch.equal(q[y[:, 0] > 0].dequantize(), y[y[:, 0] > 0])
    assert torch.equal(F.embedding(index, q), F.embedding(index, y))
    batch = my_ops.fp4_quantize(torch.randn(2, 3, 32, device=q.device), q.format)
    assert torch.equal(batch[1].dequantize(), batch.dequantize()[1])
    assert torch.equal(batch[:, 1].dequantize(), batch.dequantize()[:, 1])
    assert torch.equal(batch.mT[1].dequantize(), batch.dequantize().mT[1])
    assert torch.equal(batch.mT[..., 1].dequantize(), batch.dequantize().mT[..., 1])


def test_other_functions_see_the_values(q):
    y = q.dequantize()
    assert type(q + 1) is torch.Tensor
    assert torch.equal(q + 1, y + 1)
    assert torch.equal(q.t() * 2, y.t() * 2)
    assert torch.equal(q.sum(), y.sum())
    assert torch.equal(q @ q.t(), y @ y.t())
    assert torch.equal(torch.cat([q, q]), torch.cat([y, y]))
    assert torch.equal(torch.zeros_like(y).copy_(q), y)
    assert torch.equal(q, y)
    assert q.to(torch.float64).dtype == torch.float64
    assert torch.equal(q.to(torch.float64), y.double())


def test_what_would_change_or_alias_part_of_a_block_is_refused(q):
    before = q.packed.clone()
    for action in (
        lambda: q.add_(1),
        lambda: q.zero_(),
        lambda: q.copy_(q.dequantize()),
        lambda: q.__setitem__(0, 1.0),
        lambda: torch.add(q, 1, out=q),
        lambda: torch._foreach_add_([q], 1),
        lambda: q[:, 3:9],
        lambda: q[:, 0],
        lambda: q.view(-1),
        lambda: q.t()[0],
    ):
        with pytest.raises(RuntimeError, match=r"my_ops\.FP4Tensor: aten.*call dequantize\(\)"):
            action()
    assert torch.equal(q.packed, before)


def test_copies(q):
    for same in (q.detach(), q.clone(), copy.copy(q), copy.deepcopy(q), q.to(q.device), q.data):
        assert_same_tensor(same, q)
    for fresh in (q.clone(), copy.deepcopy(q), pickle.loads(pickle.dumps(q))):
        assert fresh.packed.data_ptr() != q.packed.data_ptr()
    assert_same_tensor(pickle.loads(pickle.dumps(q.t())), q.t())
    parameter = nn.Parameter(q, requires_grad=False)
    assert_same_tensor(copy.deepcopy(parameter), parameter)
    assert_same_tensor(pickle.loads(pickle.dumps(parameter)), parameter)
    other = my_ops.fp4_quantize(torch.randn(6, 40, device=q.device).bfloat16(), q.format)
    assert_same_tensor(other.copy_(q), q)
    memo_pair = copy.deepcopy([q, q])
    assert memo_pair[0] is memo_pair[1]


def test_dtype_is_that_of_the_values(q):
    half = q.half()
    assert (half.dtype, half.dequantize().dtype) == (torch.float16, torch.float16)
    assert torch.equal(half.packed, q.packed)
    assert torch.equal(half.dequantize(), q.dequantize(torch.float16))


def test_save_and_load(q):
    stored = {"q": q, "t": q.t(), "p": nn.Parameter(q, requires_grad=False)}
    file = io.BytesIO()
    torch.save(stored, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    for name in stored:
        assert_same_tensor(loaded[name], stored[name])
    file.seek(0)
    assert torch.load(file, weights_only=True, map_location="cpu")["q"].device.type == "cpu"


def test_state_dict(q):
    module = module_with(q)
    state = module.state_dict()
    assert_same_tensor(state["weight"], q)
    for assign in (False, True):
        other = module_with(my_ops.fp4_quantize(torch.randn_like(q.dequantize()), q.format))
        result = other.load_state_dict(state, assign=assign)
        assert (result.missing_keys, result.unexpected_keys) == ([], [])
        assert torch.equal(other.weight.dequantize(), q.dequantize())
        assert isinstance(other.weight, nn.Parameter)
    with pytest.raises(RuntimeError, match="size mismatch"):
        module.load_state_dict({**state, "weight": state["weight"][:5]})
    # A dense weight is no FP4 weight: which format and rounding it should get is not known.
    with pytest.raises(RuntimeError, match=r"call dequantize\(\)"):
        module.load_state_dict({**state, "weight": q.dequantize()})


def test_module_moves(q):
    module = module_with(q)
    for moved in (module.to(torch.float16), module.to("cpu"), copy.deepcopy(module).to("meta")):
        assert isinstance(moved.weight, my_ops.FP4Tensor)
        assert isinstance(moved.weight, nn.Parameter)
        assert moved.weight.dtype == torch.float16
    assert moved.weight.packed.device.type == "meta"
    buffer = nn.Module()
    buffer.register_buffer("q", q)
    assert buffer.to(torch.float32).q.dtype == torch.float32


def test_linear_takes_it_as_a_weight(q):
    module, dense = module_with(q), nn.Linear(40, 6, dtype=q.dtype, device=q.device)
    dense.load_state_dict({"weight": q.dequantize(), "bias": module.bias})
    for shape in ((40,), (2, 40), (2, 3, 40)):
        x = torch.randn(shape, device=q.device, dtype=q.dtype, requires_grad=True)
        y, expected = module(x), dense(x)
        close = {"rtol": 2e-2, "atol": 2e-2}  # bfloat16 sums in another order
        torch.testing.assert_close(y, expected, **close)
        grads = [torch.autograd.grad(z.sum(), x)[0] for z in (y, expected)]
        torch.testing.assert_close(*grads, **close)
        torch.testing.assert_close(F.linear(x, q), F.linear(x, q.dequantize()), **close)


def test_gradient_of_a_leaf_is_a_plain_tensor(q):
    q = q.float().requires_grad_()
    q.dequantize().sum().backward()
    assert type(q.grad) is torch.Tensor
    assert q.grad.eq(1).all()
    x = torch.randn(3, 40, device=q.device)
    w = torch.randn(6, 40, device=q.device, requires_grad=True)
    F.linear(x, my_ops.fp4_quantize(w, q.format)).sum().backward()
    torch.testing.assert_close(w.grad, x.sum(0).expand(6, 40))


def test_inference_mode(q):
    x = torch.randn(2, 3, 40, device=q.device, dtype=q.dtype)
    # The product takes the packed values; q.dequantize() has rounded them to 16 bits.
    expected = F.linear(x.float(), q.dequantize(torch.float32)).to(x.dtype)
    with torch.inference_mode():
        torch.testing.assert_close(F.linear(x, q), expected)
        assert_same_tensor(q.t().t(), q)
        assert_same_tensor(q.to(q.device).clone(), q)
        assert q.float().dtype == torch.float32
        assert my_ops.fp4_quantize(x, q.format)[1].t().dequantize().shape == (40, 3)


def test_compile(q):
    module = module_with(q)

    def step(x, q):
        part = q[1:4]
        return module(x), q.t().dequantize() * 2, part.packed + 0, part, q.nbytes

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for w in (q, q.float()):
        x = torch.randn(2, 40, device=q.device, dtype=q.dtype, requires_grad=True)
        got, expected = compiled(x, w), step(x, w)
        torch.testing.assert_close(got[:3], expected[:3])
        assert_same_tensor(got[3], expected[3])
        assert got[4] == expected[4]
        grads = [torch.autograd.grad(y[0].sum(), x)[0] for y in (got, expected)]
        torch.testing.assert_close(*grads)


def test_export(q):
    module = module_with(q.float()).float().requires_grad_(False)
    x = torch.randn(2, 40, device=q.device)
    program = torch.export.export(module, (x,)).run_decompositions()
    assert any("my_ops.fp4_linear" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(x), module(x))


def _send(queue, q):
    queue.put(torch.equal(q.dequantize(), torch.ones(2, 16)))


def test_shared_memory_and_other_processes():
    q = my_ops.fp4_quantize(torch.ones(2, 16)).share_memory_()
    assert q.packed.is_shared()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_send, args=(queue, q))
    process.start()
    assert queue.get(timeout=60)
    process.join(60)
    assert process.exitcode == 0


@pytest.mark.cuda
def test_moving_between_devices():
    q = my_ops.fp4_quantize(torch.randn(6, 40))
    moved = q.to("cuda")
    assert moved.device.type == moved.packed.device.type == moved.amax.device.type == "cuda"
    assert torch.equal(moved.dequantize().cpu(), q.dequantize())
    assert_same_tensor(moved.cpu(), q)
    module = module_with(q).cuda()
    assert module(torch.randn(2, 40, device="cuda")).shape == (2, 6)
