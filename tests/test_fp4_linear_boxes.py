"""fp4_linear on CUDA where the copy engine brings the weight to the fused kernel
(csrc/fp4_matmul/fused_boxes.cuh)."""

import pytest
import torch
from fp4_reference import FORMATS
from test_fp4_linear import check_products, cuda_operands

import my_ops

pytestmark = pytest.mark.cuda

# One block of a cluster and two; one tile of a block and several, of one step and of many; rows of
# the weight that fill the last tile and that do not.
SIZES = [
    (64, 8192, 8192),
    (33, 8192, 8192),
    (128, 8192, 8192),
    (40, 4096, 14336),
    (100, 4096, 8208),
    (64, 512, 20000),
    (200, 256, 20000),
    (128, 2048, 4096),
    (300, 1024, 4112),
    (32, 8192, 8192),
    (25, 14336, 5120),
    (32, 4096, 14336),
    (29, 2560, 28672),
    (32, 512, 8208),
]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_products(format, dtype, M, K, N):
    check_products(*cuda_operands(M, K, N, dtype, format))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_what_is_no_number(format, M, K, N):
    """In a scale it shows in that row of the weight, in x in that row of x, and nowhere else."""
    x, q = cuda_operands(M, K, N, torch.bfloat16, format)
    y = my_ops.fp4_linear(x, q)
    q.scale_bytes[N - 1, -1] = 0x7F if format == "nvfp4" else 0xFF
    x[5, 0] = torch.nan
    changed = my_ops.fp4_linear(x, q)
    assert changed[5].isnan().all()
    assert changed[:, N - 1].isnan().all()
    changed[5], changed[:, N - 1] = y[5], y[:, N - 1]
    assert torch.equal(changed, y)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K"), [(64, 8192), (128, 8192), (32, 4112), (240, 4112)])
def test_products_one_after_the_other(format, M, K):
    """A product starts while the one before it ends, which may have written its x; also where rows
    of the weight are ragged."""
    q = my_ops.fp4_quantize(torch.randn(K, K, device="cuda") / 64, format)
    x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
    expected = [x]
    for _ in range(6):
        expected.append(my_ops.fp4_linear(expected[-1], q))
        torch.cuda.synchronize()
    for _ in range(10):
        y = x
        for step in expected[1:]:
            y = my_ops.fp4_linear(y, q)
            assert y.shape == step.shape
        assert torch.equal(y, expected[-1])
