"""What the tests of several operators share: error messages, streams, graphs, synchronization."""

import contextlib

import pytest
import torch


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
