"""Tensors on a GPU that is not the current one, on two GPUs at once, and streams between them."""

import pytest
import torch
from helpers import message

import my_ops

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def add_rmsnorm(x, residual, weight):
    return torch.add(*my_ops.add_rmsnorm(x, residual, weight))


def fp4_round_trip(x):
    return my_ops.fp4_quantize(x).dequantize()


def fp4_linear(x, weight, bias):
    return my_ops.fp4_linear(x, my_ops.fp4_quantize(weight), bias)


OPERATORS = {  # and the shapes of their arguments
    my_ops.square: {"x": (6, 64)},
    my_ops.rmsnorm: {"x": (6, 64), "weight": (64,)},
    add_rmsnorm: {"x": (6, 64), "residual": (6, 64), "weight": (64,)},
    my_ops.matmul: {"a": (6, 64), "b": (64, 32)},
    fp4_round_trip: {"x": (6, 64)},
    my_ops.fp4_matmul: {"a": (6, 64), "b": (64, 32)},
    fp4_linear: {"x": (6, 64), "weight": (32, 64), "bias": (32,)},
}
OTHER_ARGUMENTS = [(f, name) for f, shapes in OPERATORS.items() for name in list(shapes)[1:]]
each_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda f: f.__name__)


def tensors(operator, device):
    generator = torch.Generator().manual_seed(0)
    shapes = OPERATORS[operator].values()
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def with_gradients(operator, inputs):
    inputs = [t.clone().requires_grad_() for t in inputs]
    y = operator(*inputs)
    y.square().sum().backward()
    return y.detach(), *(t.grad for t in inputs)


@each_operator
@pytest.mark.parametrize(
    "devices", [("cpu", "cpu"), pytest.param(("cuda:0", "cuda:1"), marks=two_gpus)]
)
def test_on_a_device_that_is_not_current(operator, devices):
    current, other = devices
    expected = with_gradients(operator, tensors(operator, current))
    actual = with_gradients(operator, tensors(operator, other))
    for ours, wanted in zip(actual, expected, strict=True):
        assert ours.device == torch.device(other)
        assert torch.equal(ours.to(current), wanted)
    assert current == "cpu" or torch.cuda.current_device() == 0


@pytest.mark.parametrize("operator, argument", OTHER_ARGUMENTS)
@pytest.mark.parametrize(
    "devices", [("cpu", "meta"), pytest.param(("cuda:1", "cuda:0"), marks=two_gpus)]
)
def test_mixed_devices(operator, argument, devices):
    inputs = tensors(operator, devices[0])
    n = list(OPERATORS[operator]).index(argument)
    inputs[n] = inputs[n].to(devices[1])
    blamed = "x" if (operator, argument) == (fp4_linear, "weight") else argument
    got = message(operator, *inputs)
    assert got.startswith(f"my_ops.{operator.__name__}: {blamed}: expected the device of ")
    assert all(device in got for device in devices)


@two_gpus
@each_operator
def test_streams_of_two_gpus(operator):
    """The operator runs on the current stream of the GPU that holds its tensors.

    That GPU is not the current one; what it reads arrives late, from the other GPU. Back there a
    stream waits for the event behind the result.
    """
    late = tensors(operator, "cuda:0")
    expected = operator(*late)
    inputs = [torch.zeros_like(t, device="cuda:1") for t in late]
    operator(*inputs)  # what a first call loads is loaded
    torch.cuda.synchronize(0)
    stream, done = torch.cuda.Stream("cuda:1"), torch.cuda.Event()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for t, source in zip(inputs, late, strict=True):
            t.copy_(source, non_blocking=True)
        with torch.cuda.device(0):
            actual = operator(*inputs)
        done.record(stream)
    back = torch.cuda.Stream("cuda:0")
    with torch.cuda.stream(back):
        back.wait_event(done)
        copy = actual.to("cuda:0", non_blocking=True)
    back.synchronize()
    assert torch.equal(copy, expected)
