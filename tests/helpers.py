"""What the tests of several operators share: messages, streams, graphs, synchronization, FP4."""

import contextlib

import pytest
import torch
from torch.library import opcheck

import my_ops


def message(function, *arguments, error=RuntimeError, **options):
    """The first line of the error that the call has to raise."""
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    return str(caught.value).split("\n")[0]


@contextlib.contextmanager
def no_synchronization():
    """Whatever makes the host wait for the GPU raises inside."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def check_stream_and_graph(step, x):
    """`step()` reads x when its turn on the current stream comes, and again when replayed."""
    step()
    fresh = torch.randn_like(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        x.copy_(fresh)
        on_stream = step()
    stream.synchronize()
    assert torch.equal(on_stream, step())

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        x.normal_()
        graph.replay()
        assert torch.equal(captured, step())


def check_gradients_in_graph(step, x):
    """`step()`, which returns gradients too, makes nobody wait, and reads x again when replayed."""
    stream = torch.cuda.Stream()  # backward runs on the stream of forward
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    with no_synchronization():
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    with torch.no_grad():
        x.normal_()
    graph.replay()
    for one, other in zip(captured, step(), strict=True):
        assert torch.equal(one, other)


def opcheck_dtype(op, args):
    """What of opcheck depends on a dtype: for dtypes after the first, which is traced as well."""
    opcheck(op, args, test_utils=("test_schema", "test_faketensor"))


def assert_same_bytes(a, b):
    """The same FP4: format, shape, codes and scales."""
    assert (a.format, a.shape, a.dtype) == (b.format, b.shape, b.dtype)
    assert torch.equal(a.packed, b.packed)
    assert torch.equal(a.scale_bytes, b.scale_bytes)
    assert (a.amax is None) == (b.amax is None)
    assert a.amax is None or torch.equal(a.amax, b.amax)


def assert_same_tensor(a, b):
    """The same FP4 as a tensor: class and flags, too."""
    assert isinstance(a, my_ops.FP4Tensor)
    assert (a.transposed, a.requires_grad) == (b.transposed, b.requires_grad)
    assert isinstance(a, torch.nn.Parameter) == isinstance(b, torch.nn.Parameter)
    assert_same_bytes(a, b)
