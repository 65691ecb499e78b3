"""my_ops.rmsnorm and add_rmsnorm of rows that all multiprocessors share, in tiles."""

import pytest
import torch
from rmsnorm_reference import assert_accurate, exact, sample

import my_ops

pytestmark = pytest.mark.cuda

# Just over half a megabyte; a last tile of one chunk, of half a tile and one; whole tiles; as much
# as two rows of tiles in all rings of an H200, and one chunk more, which takes two launches.
WIDTHS = {
    torch.float32: [131_076, 200_000, 200_708, 262_144, 1_048_576, 1_622_016, 1_622_020],
    torch.bfloat16: [262_152, 401_416, 1_048_576],
    torch.float16: [300_000],
}
CASES = [(dtype, H) for dtype, widths in WIDTHS.items() for H in widths]
SOME = [(torch.float32, 200_708), (torch.float32, 1_048_576), (torch.bfloat16, 401_416)]


@pytest.mark.parametrize(("dtype", "H"), CASES)
def test_values(dtype, H):
    x, residual = (sample((7, H), dtype, "cuda") for _ in range(2))
    weight = sample((H,), dtype, "cuda")
    assert_accurate(my_ops.rmsnorm(x, weight), exact(x, weight))
    assert_accurate(my_ops.rmsnorm(x), exact(x))
    y, total = my_ops.add_rmsnorm(x, residual, weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, my_ops.rmsnorm(total, weight))


@pytest.mark.parametrize(("dtype", "H"), SOME)
def test_options(dtype, H):
    x, weight = sample((3, H), dtype, "cuda"), sample((H,), torch.float32, "cuda")
    y = my_ops.rmsnorm(x, weight, weight_offset=1.0)
    assert_accurate(y, exact(x, weight, offset=1.0))
    for out_dtype in (torch.float32, torch.bfloat16, torch.float16):
        y = my_ops.rmsnorm(x, weight, out_dtype=out_dtype)
        assert_accurate(y, exact(x, weight, out_dtype=out_dtype))
    if dtype == torch.bfloat16:
        y = my_ops.rmsnorm(x, weight.to(dtype), cast_order="hf")
        assert torch.equal(y, my_ops.rmsnorm(x) * weight.to(dtype))


@pytest.mark.parametrize(("dtype", "H"), SOME)
def test_a_row_does_not_depend_on_the_others(dtype, H):
    """Nor on which multiprocessor drew which of its tiles: many more rows than the rings hold."""
    x, residual = (sample((300, H), dtype, "cuda") for _ in range(2))
    weight = sample((H,), dtype, "cuda")
    y, (sum_y, total) = my_ops.rmsnorm(x, weight), my_ops.add_rmsnorm(x, residual, weight)
    for _ in range(3):
        assert torch.equal(my_ops.rmsnorm(x, weight), y)
    for rows in (slice(0, 1), slice(150, 152), slice(131, 300)):
        assert torch.equal(my_ops.rmsnorm(x[rows], weight), y[rows])
        part = my_ops.add_rmsnorm(x[rows], residual[rows], weight)
        assert torch.equal(part[0], sum_y[rows])
        assert torch.equal(part[1], total[rows])


@pytest.mark.parametrize(("dtype", "H"), SOME)
def test_misaligned_rows_have_the_bits_of_aligned_ones(dtype, H):
    """Also where the tensor ends with its last row, and rows are far apart."""
    storage, residual = (sample((5, 3 * H + 3), dtype, "cuda") for _ in range(2))
    x, residual = storage[:, 2 * H + 3 :], residual[:, 1 : H + 1]
    weight = sample((H + 1,), dtype, "cuda")[1:]
    y = my_ops.rmsnorm(x, weight)
    assert torch.equal(y, my_ops.rmsnorm(x.contiguous(), weight.clone()))
    y, total = my_ops.add_rmsnorm(x, residual, weight)
    assert torch.equal(total, x + residual)
    assert torch.equal(y, my_ops.rmsnorm(total, weight))


@pytest.mark.parametrize("value", [float("nan"), -float("nan"), float("inf")])
def test_special_values(value):
    """A sum is its own signal, and one that is not there yet is negative: no NaN may look so."""
    x = sample((9, 200_708), torch.float32, "cuda")
    y = my_ops.rmsnorm(x)
    x[4, 123_456] = value
    others = [row for row in range(9) if row != 4]
    actual = my_ops.rmsnorm(x)
    assert torch.equal(actual[others], y[others])
    expected = exact(x[4])
    torch.testing.assert_close(actual[4], expected, equal_nan=True)


def test_memory_of_sums_may_hold_anything():
    """Zeros, that is, or the sums of an earlier call: each looks like a sum that is there."""
    x = sample((64, 200_000), torch.float32, "cuda")
    y = my_ops.rmsnorm(x)
    for scale in (1, 2, 0):
        my_ops.rmsnorm(x * scale)
        torch.zeros(64 * (50 + 4) + 1, dtype=torch.float64, device="cuda")
        assert torch.equal(my_ops.rmsnorm(x), y)


def test_graphs_on_two_streams_at_once():
    """Blocks of both calls compete for the multiprocessors, and wait only for what runs."""
    inputs = [sample((200, 262_144), torch.float32, "cuda") for _ in range(2)]
    expected = [my_ops.rmsnorm(x) for x in inputs]
    streams = [torch.cuda.Stream() for _ in inputs]
    graphs, captured = [], []
    for x in inputs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured.append([my_ops.rmsnorm(x) for _ in range(3)])
        graphs.append(graph)
    for _ in range(3):
        for results in captured:
            for y in results:
                y.zero_()
        torch.cuda.synchronize()
        for _ in range(4):
            for stream, graph in zip(streams, graphs, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        for results, y in zip(captured, expected, strict=True):
            assert all(torch.equal(result, y) for result in results)
