"""fp4_linear on CUDA where several clusters of blocks have a tile, each with a part of K, and send
each other sums through memory (csrc/fp4_matmul/fused_mail.cuh)."""

import pytest
import torch
from fp4_reference import FORMATS, values
from test_fp4_linear import assert_linear, check_products, cuda_operands

import my_ops

pytestmark = pytest.mark.cuda

# As many clusters of a tile and blocks of each as there can be, for 64 rows of x and for 128; rows
# of the weight in whole vectors and in others, as many as a tile has and not.
SIZES = [
    (64, 4096, 4096),
    (50, 4096, 4090),
    (60, 6144, 300),
    (100, 6160, 1800),
    (64, 4864, 5003),
    (64, 4112, 5003),
    (50, 6160, 4104),
    (128, 4096, 4096),
    (120, 3088, 5003),
    (110, 8192, 3072),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_products(format, dtype, M, K, N):
    check_products(*cuda_operands(M, K, N, dtype, format))


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_no_number(format):
    """A word that was not sent yet has the bits of a NaN."""
    x, q = cuda_operands(64, 4096, 4096, torch.bfloat16, format)
    x[5, 77] = torch.nan
    x[9] = -x[9].abs()
    x.view(torch.int16)[7, 9] = -1
    y = my_ops.fp4_linear(x, q)
    assert y[[5, 7]].isnan().all()
    assert_linear(y[10:], x[10:].double(), values(q))


@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_beside_other_work(M, K, N):
    """Clusters that wait for each other need not run at once: others may have the SMs."""
    x, q = cuda_operands(M, K, N, torch.bfloat16, "nvfp4")
    y = my_ops.fp4_linear(x, q)
    large = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for i in range(30):
        for stream in streams:
            with torch.cuda.stream(stream):
                if stream is streams[i % 3]:
                    large @ large
                results.append(my_ops.fp4_linear(x, q))
    torch.cuda.synchronize()
    assert all(torch.equal(result, y) for result in results)


@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_in_a_graph(M, K, N):
    x, q = cuda_operands(M, K, N, torch.bfloat16, "nvfp4")
    my_ops.fp4_linear(x, q)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [my_ops.fp4_linear(x * factor, q) for factor in (1, 2, 4)]
    for _ in range(10):
        x.copy_(torch.randn_like(x))
        graph.replay()
        for factor, result in zip((1, 2, 4), results, strict=True):
            assert torch.equal(result, my_ops.fp4_linear(x * factor, q))
