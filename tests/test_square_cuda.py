"""my_ops.square on a GPU: sizes and alignments of its launches, streams, graphs, devices."""

import pytest
import torch
from helpers import check_stream_and_graph, no_synchronization

import my_ops

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.complex128])
@pytest.mark.parametrize("size", [1023, 4096, 40_001, 3_000_000])
def test_blocks_of_misaligned_views(dtype, size):
    """Element by element, where 16-byte loads are not possible."""
    x, grad = (torch.randn(size + 1, device="cuda").to(dtype) for _ in range(2))
    assert torch.equal(my_ops.square(x[1:]), torch.square(x[1:]))
    assert torch.equal(my_ops.square(x[:-1]), torch.square(x[:-1]))
    if dtype != torch.uint8:
        for aligned in (grad[:-1], grad[1:]):
            grad_x = torch.ops.my_ops.square_backward(aligned, x[1:])
            torch.testing.assert_close(grad_x, 2 * aligned * x[1:].conj(), rtol=1e-2, atol=1e-2)
    expected = torch.cat([x[:1], torch.square(x[1:])])
    my_ops.square_(x[1:])
    assert torch.equal(x, expected)


@pytest.mark.xdist_group("large")
@pytest.mark.parametrize("n", [2**31 - 1, 2**31 + 4099, 2**32 + 8])
@pytest.mark.parametrize("misaligned", [False, True])
def test_more_elements_than_32_bits_count(misaligned, n):
    x = torch.full((n + 1,), 3.0, dtype=torch.bfloat16, device="cuda")[int(misaligned) :][:n]
    x[-4099:] = 5
    y = my_ops.square(x)
    assert y[-4099:].eq(25).all()
    assert y[:-4099].eq(9).all()
    del y
    my_ops.square_(x)
    assert x[-4099:].eq(25).all()
    assert x[:-4099].eq(9).all()


def test_no_synchronization():
    x = torch.randn(5, 7, device="cuda", requires_grad=True)
    with no_synchronization():
        my_ops.square(my_ops.square_(x * 2)).sum().backward()


def test_side_stream_and_graph():
    x = torch.randn(100_003, device="cuda")
    check_stream_and_graph(lambda: my_ops.square(x), x)
    check_stream_and_graph(lambda: my_ops.square_(x * 2), x)
    check_stream_and_graph(lambda: torch.ops.my_ops.square_backward(x, x), x)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current():
    x = torch.randn(1001, device="cuda:1", requires_grad=True)
    y = my_ops.square(x)
    assert y.device == x.device
    assert torch.equal(y, x.detach().square())
    y.sum().backward()
    assert torch.equal(x.grad, 2 * x.detach())
    assert torch.cuda.current_device() == 0
    with pytest.raises(RuntimeError, match=r"grad: expected the device of x \(cuda:1\)"):
        torch.ops.my_ops.square_backward(torch.ones(3, device="cuda:0"), x[:3])


def test_mixed_devices_are_refused():
    with pytest.raises(RuntimeError, match=r"grad: expected the device of x \(cuda:0\), got cpu"):
        torch.ops.my_ops.square_backward(torch.ones(3), torch.ones(3, device="cuda"))
