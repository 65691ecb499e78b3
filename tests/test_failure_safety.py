"""Calls that fail half way, for lack of memory or by an exception from outside, break nothing."""

import contextlib
import gc
import signal
import threading

import pytest
import torch
from helpers import assert_same_bytes

import my_ops


def steps(device):
    """Each operator, from leaves to a scalar, by name."""
    x, residual = (torch.randn(6, 48, device=device, requires_grad=True) for _ in "xr")
    w, b = torch.randn(48, device=device), torch.randn(48, 16, device=device)
    w.requires_grad_()
    b.requires_grad_()
    q = my_ops.fp4_quantize(torch.randn(16, 48, device=device))
    return {
        "square": ((x,), my_ops.square),
        "rmsnorm": ((x, w), my_ops.rmsnorm),
        "add_rmsnorm": ((x, residual, w), lambda *args: sum(my_ops.add_rmsnorm(*args))),
        "matmul": ((x, b), my_ops.matmul),
        "fp4_quantize": ((x,), lambda x: my_ops.fp4_quantize(x).dequantize()),
        "clipped": ((x,), lambda x: my_ops.fp4_quantize(x, amax=1, ste="clipped").dequantize()),
        "rmsnorm_fp4_quantize": ((x, w), lambda *a: my_ops.rmsnorm_fp4_quantize(*a).dequantize()),
        "fp4_matmul": ((x, b), my_ops.fp4_matmul),
        "fp4_linear": ((x, b), lambda x, b: my_ops.fp4_linear(x, q, b[0])),
    }


NAMES = list(steps("cpu"))


def gradients(function, inputs):
    return torch.autograd.grad(function(*inputs).square().sum(), inputs)


# ---- Memory that cannot be had ----


def too_large(device):
    """Calls whose results, but not whose operands, are larger than any memory."""
    row = torch.ones(1, 32, device=device)
    x = row.expand(2**43, 32)
    weight = my_ops.fp4_quantize(torch.ones(32, 32, device=device), "mxfp4")
    q = my_ops.fp4_quantize(row[0], "mxfp4")
    huge_q = my_ops.FP4Tensor(
        q.packed.expand(2**43, 16), q.scale_bytes.expand(2**43, 1), None, "mxfp4", 32, x.dtype
    )
    ones = torch.ones(32, 32, device=device)
    return {
        "square": lambda: my_ops.square(x),
        "rmsnorm": lambda: my_ops.rmsnorm(x, row[0]),
        "add_rmsnorm": lambda: my_ops.add_rmsnorm(x, x),
        "matmul": lambda: my_ops.matmul(x, ones),
        "fp4_quantize": lambda: my_ops.fp4_quantize(x, amax=1.0),
        "fp4_dequantize": lambda: huge_q.dequantize(),
        "fp4_matmul": lambda: my_ops.fp4_matmul(x, ones, "mxfp4"),
        "fp4_linear": lambda: my_ops.fp4_linear(x, weight),
        "rmsnorm_fp4_quantize": lambda: my_ops.rmsnorm_fp4_quantize(x, format="mxfp4"),
        "backward": lambda: torch.ops.my_ops.square_backward(x, x),
    }


@pytest.mark.parametrize("name", list(too_large("cpu")))
@pytest.mark.parametrize("differentiated", [False, True])
def test_a_result_that_does_not_fit(device, name, differentiated):
    call = too_large(device)[name]
    gc.collect()  # what earlier tests left
    allocated = torch.cuda.memory_allocated() if device == "cuda" else 0
    with torch.set_grad_enabled(differentiated), pytest.raises(RuntimeError, match="memory"):
        call()
    if device == "cuda":
        gc.collect()
        assert torch.cuda.memory_allocated() == allocated
    inputs, function = steps(device)["matmul"]
    assert all(grad.isfinite().all() for grad in gradients(function, inputs))


def release_cuda_memory():
    """Gives back what no tensor holds."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


@contextlib.contextmanager
def cuda_memory_for(more_bytes):
    """At most that much can be allocated besides what is held now."""
    release_cuda_memory()
    total = torch.cuda.get_device_properties().total_memory
    torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
    held = []
    try:
        held = room_in_blocks()
        limit = torch.cuda.memory_reserved() + more_bytes
        torch.cuda.set_per_process_memory_fraction(limit / total)
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        held.clear()
        torch.cuda.empty_cache()


def room_in_blocks():
    """Tensors that take what is free in blocks of which a part is held: earlier tests may have left
    large ones, which are not given back."""
    held, size = [], 1 << 32
    while size >= 1 << 20:
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return held


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["ieee", "bf16x6", "fp16x3", "tf32"])
def test_a_workspace_that_does_not_fit(precision):
    """The result fits, and the planes, slices or copies that the kernels want beside it do not."""
    a = torch.randn(1024, 16384, device="cuda")[:, 1::2]  # a copy of 32 MB
    b = torch.randn(8192, 1024, device="cuda")
    expected = my_ops.matmul(a, b, precision=precision)
    with cuda_memory_for(24 << 20), pytest.raises(torch.OutOfMemoryError):
        my_ops.matmul(a, b, precision=precision)
    assert torch.equal(my_ops.matmul(a, b, precision=precision), expected)


@pytest.mark.cuda
@pytest.mark.parametrize("name", NAMES)
def test_a_backward_that_does_not_fit(name):
    release_cuda_memory()  # or the step may lie in a large block, whose rest the backward could use
    inputs, function = steps("cuda")[name]
    # The leaves are repeated: expanded rows take no memory, their gradients do.
    rows = 1 << 16
    wide = [x.detach()[:1].expand(rows, -1) if x.shape[0] == 6 else x.detach() for x in inputs]
    wide = [x.requires_grad_() for x in wide]
    loss = function(*wide).square().sum()
    with cuda_memory_for(1 << 20), pytest.raises(torch.OutOfMemoryError):
        torch.autograd.grad(loss, wide, retain_graph=True)
    again = torch.autograd.grad(loss, wide)
    for actual, expected in zip(again, gradients(function, wide), strict=True):
        assert torch.equal(actual, expected)


# ---- Exceptions from outside ----


class Interruption(KeyboardInterrupt):
    pass


def interrupt(*_):
    raise Interruption


@pytest.mark.parametrize("name", NAMES)
def test_an_exception_while_saving_for_backward(device, name):
    inputs, function = steps(device)[name]
    expected = gradients(function, inputs)
    hooks = torch.autograd.graph.saved_tensors_hooks
    saves = function(*inputs).grad_fn is not None and name != "fp4_quantize"
    with hooks(interrupt, lambda x: x), contextlib.suppress(Interruption):
        function(*inputs).sum()
        assert not saves
    with hooks(lambda x: x, interrupt):
        loss = function(*inputs).square().sum()
    with pytest.raises(Interruption):
        torch.autograd.grad(loss, inputs)
    assert all(map(torch.equal, gradients(function, inputs), expected))


@pytest.mark.parametrize("name", NAMES)
def test_an_exception_in_the_middle_of_backward(device, name):
    inputs, function = steps(device)[name]
    expected = gradients(function, inputs)
    inside = [x * 1 for x in inputs]
    loss = function(*inside).square().sum()
    hook = inside[0].register_hook(interrupt)
    for _ in range(2):
        with pytest.raises(Interruption):
            torch.autograd.grad(loss, inputs, retain_graph=True)
    hook.remove()
    assert all(map(torch.equal, torch.autograd.grad(loss, inputs), expected))


def test_a_signal_at_any_time(device):
    """Ctrl+C between any two lines of Python, in forward and backward, again and again."""
    assert threading.current_thread() is threading.main_thread()
    table = steps(device)
    expected = {name: gradients(f, inputs) for name, (inputs, f) in table.items()}
    rows = my_ops.fp4_quantize(torch.randn(4, 48, device=device), "mxfp4")
    before = rows.to("cpu", copy=True)
    previous = signal.signal(signal.SIGALRM, interrupt)
    interruptions = 0
    try:
        for i in range(100):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 * (1 + i * 0.37 % 20))
                while True:
                    for inputs, function in table.values():
                        gradients(function, inputs)
                        rows[1:3].copy_(rows[1:3].clone())
            except Interruption:
                interruptions += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert interruptions == 100
    for name, (inputs, function) in table.items():
        assert all(map(torch.equal, gradients(function, inputs), expected[name])), name
    assert_same_bytes(rows.to("cpu"), before)
