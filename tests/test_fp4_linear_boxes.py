"""fp4_linear on CUDA where the copy engine brings the weight to the fused kernel
(csrc/fp4_matmul/fused_boxes.cuh)."""

import pytest
import torch
from fp4_reference import FORMATS
from test_fp4_linear import check_products, cuda_operands

import my_ops

pytestmark = pytest.mark.cuda

# One block of a cluster, two and three; one tile of a block and several, of few steps and of many,
# that begin with the first of the two steps of a box of scales (MXFP4) and with the second; rows of
# the weight that fill the last tile and that do not.
SIZES = [
    (64, 8192, 8192),
    (33, 8192, 8192),
    (128, 8192, 8192),
    (40, 4096, 14336),
    (100, 4096, 8208),
    (64, 512, 20000),
    (128, 2048, 4096),
    (300, 1024, 4112),
    (32, 8192, 8192),
    (32, 4096, 14336),
    (29, 2560, 28672),
    (120, 512, 2064),
    (65, 2560, 2448),
    (17, 2560, 416),
    (500, 2560, 528),
    (250, 2048, 528),
    (300, 512, 10128),
    (400, 2560, 1168),
    (500, 2048, 1040),
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


# Also of one row, for which blocks ask L2 for the weight while the product in front is at work, in
# panels, and ragged.
CHAINS = [
    *((64, 8192), (128, 8192), (32, 8192), (16, 8192), (1, 8192), (1, 4096)),
    *((1, 4112), (8, 4112), (16, 4112), (32, 4112), (64, 4112), (240, 4112)),
]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("M", "K"), CHAINS)
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
