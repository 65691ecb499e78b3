"""FP4: every byte against the independent reference, on CPU and CUDA, so that both agree."""

import numpy as np
import pytest
import torch
from fp4_reference import BLOCK, E2M1, dequantize, philox, quantize, stochastic
from hypothesis import given, settings
from hypothesis import strategies as st

import my_ops

# One level, two levels with the tensor's own amax, two levels with one that lets values saturate.
NVFP4 = [("nvfp4", {"two_level": False}), ("nvfp4", {}), ("nvfp4", {"amax": 3.0})]
MXFP4 = [("mxfp4", {"scale_mode": mode}) for mode in ("floor", "rceil", "ceil", "even")]
RECIPES = [*NVFP4, *MXFP4]
recipes = pytest.mark.parametrize(
    ("format", "options"),
    RECIPES,
    ids=lambda value: value if isinstance(value, str) else str(value),
)


def compare(x, format, options, device, seed=None):
    """Quantizes and decodes x [rows, K] and compares all bytes and values with the reference."""
    stochastic = {} if seed is None else {"rounding": "stochastic", "seed": seed}
    q = my_ops.fp4_quantize(x.to(device), format, **options, **stochastic)
    wide = x.float().numpy()
    amax = None
    if q.amax is not None:
        finite = wide[~np.isnan(wide)]
        amax = np.float32(options.get("amax", np.abs(finite).max(initial=0)))
        assert q.amax.item() == amax
    unsigned = None if seed is None else seed % 2**64
    packed, scale = quantize(wide, format, amax, options.get("scale_mode", "floor"), unsigned)
    np.testing.assert_array_equal(q.packed.cpu().numpy(), packed)
    np.testing.assert_array_equal(q.scale_bytes.cpu().numpy(), scale)
    for dtype in {torch.float32, x.dtype}:
        values = torch.from_numpy(dequantize(packed, scale, x.shape[1], format, amax)).to(dtype)
        y = my_ops.fp4_dequantize(q, dtype).cpu()
        torch.testing.assert_close(y, values, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(y.signbit() | y.isnan(), values.signbit() | values.isnan())
    return q


def every_16_bit_pattern(dtype, block):
    """Blocks that start with each pattern, as the block's largest or as one of its others."""
    first = torch.arange(65536).to(torch.int16)
    patterns = first[:, None].repeat(1, block)
    patterns[:, 1::3] ^= -0x8000
    patterns[:, 2::3] -= torch.arange(0, block)[2::3].to(torch.int16) * 29  # smaller magnitudes
    patterns[:, 3] = 0
    return patterns.view(dtype)


@recipes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_16_bit_pattern(device, dtype, format, options):
    blocks = every_16_bit_pattern(dtype, BLOCK[format])
    compare(blocks, format, options, device)
    # In rows of 65536 the blocks are those of neighbouring patterns, without NaN and Inf.
    row = torch.arange(65536).to(torch.int16).view(dtype)[None]
    compare(row.nan_to_num(0, 1, -1), format, options, device)


def float32_boundaries(block):
    """Every exponent with the mantissas at which a decision is made, and with their neighbours."""
    mantissas = [0, 0x200000, 0x300000, 0x400000, 0x500000, 0x600000, 0x700000, 0x7FFFFF]
    mantissas = sorted({max(0, m + d) & 0x7FFFFF for m in mantissas for d in (-1, 0, 1)})
    bits = (np.arange(256, dtype=np.uint32)[:, None] << 23) | np.array(mantissas, np.uint32)
    largest = bits.reshape(-1)
    x = np.tile(largest[:, None], (1, block))
    # The same bits up to 6 exponents lower, and a little less: all ratios to the largest.
    for k in range(1, block):
        x[:, k] = np.where(x[:, k] >> 23 > k % 7, x[:, k] - (k % 7 << 23) - k // 7, x[:, k])
    x[:, 1::2] |= 1 << 31
    return torch.from_numpy(x.view(np.float32))


@recipes
def test_float32_boundaries(device, format, options):
    x = float32_boundaries(BLOCK[format])
    compare(x, format, options, device)
    compare(x[x.isfinite().all(1)], format, options, device)


@recipes
def test_random_float32_bits(device, format, options):
    generator = np.random.default_rng(1)
    bits = generator.integers(0, 2**32, (4096, 64), dtype=np.uint32)
    compare(torch.from_numpy(bits.view(np.float32)), format, options, device)
    normal = generator.standard_normal((1024, 256)) * np.exp2(generator.integers(-9, 9, (1024, 1)))
    compare(torch.from_numpy(normal.astype(np.float32)), format, options, device)


# One element, odd, a half block, a block, one more, two blocks less and more one, longer than a
# thread block's width, and rows that are not a multiple of 16 bytes apart.
@recipes
@pytest.mark.parametrize("K", [1, 2, 7, 8, 15, 16, 17, 24, 31, 32, 33, 40, 100, 1000, 4104, 9001])
def test_ragged_rows(device, K, format, options):
    for dtype in (torch.float32, torch.bfloat16):
        x = (torch.randn(5, K) * 2).to(dtype)
        compare(x, format, options, device)
        compare(x, format, options, device, seed=7)


@pytest.mark.parametrize("rows", [0, 1, 15, 17, 1025])
def test_number_of_rows(device, rows):
    x = torch.randn(rows, 40)
    compare(x, "nvfp4", {}, device)
    compare(x, "mxfp4", {}, device)


def test_philox_known_answers():
    """Of Random123, for counter 0 and key 0."""
    words = [f"{int(w):08x}" for w in philox(0, np.array([0]))[0]]
    assert words == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]


@recipes
@pytest.mark.parametrize("seed", [0, 1, 2**40 + 12345, -1, 2**64 - 2])
def test_stochastic_rounding(device, seed, format, options):
    compare(torch.randn(67, 80), format, options, device, seed)
    compare(every_16_bit_pattern(torch.float16, 32)[::7], format, options, device, seed)


def test_stochastic_rounding_goes_up_as_often_as_it_should():
    counts = {0.1: 51, 0.4: 204, 1.75: 128, 1.9: 204, 2.4: 102, 3.9: 230, 5: 128, 5.9: 243, 6: 0}
    byte = np.arange(256, dtype=np.uint8)
    for value, expected in counts.items():
        codes = stochastic(np.full(256, value, np.float32), byte)
        below = np.searchsorted(E2M1, value, side="right") - 1
        assert (codes == below + 1).sum() == expected
        assert (codes == below).sum() == 256 - expected


def test_stochastic_rounding_has_the_right_mean(device):
    """4096 times 1.9: only 1.5 and 2, 204 of 256 of them 2, less 1/256 of a step."""
    x = torch.full((4096, 16), 1.9, device=device)
    x[:, 0] = 6  # pins the scale to 1
    options = {"two_level": False, "rounding": "stochastic"}
    y = my_ops.fp4_quantize(x, seed=1, **options).dequantize()[:, 1:]
    assert set(y.unique().tolist()) == {1.5, 2.0}
    # 61440 draws: a standard deviation of the share is 0.0016.
    assert abs((y == 2).float().mean().item() - 204 / 256) < 0.008
    again = my_ops.fp4_quantize(x, seed=1, **options)
    assert torch.equal(again.dequantize()[:, 1:], y)
    other = my_ops.fp4_quantize(x, seed=2, **options).dequantize()[:, 1:]
    assert 0.2 < (other != y).float().mean().item() < 0.45  # 2 * p * (1 - p) = 0.32


@recipes
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_layout_changes_no_bit(device, dtype, format, options):
    """Dense rows of whole blocks are taken as one long row; rows further apart are not."""
    wide = torch.randn(37, 200, device=device).to(dtype)
    for rounding in ("nearest", "stochastic"):
        for x in (wide[:, :96], wide[:, 1:97], wide[1:, 8:104], wide[::3, :64], wide.t()[:160]):
            a = my_ops.fp4_quantize(x, format, rounding=rounding, seed=5, **options)
            b = my_ops.fp4_quantize(x.contiguous(), format, rounding=rounding, seed=5, **options)
            assert torch.equal(a.packed, b.packed)
            assert torch.equal(a.scale_bytes, b.scale_bytes)
            assert torch.equal(a.dequantize(), b.dequantize())


# Rows that are the columns of a matrix: whole tiles of 64 by 128, ragged ones, an odd distance,
# fewer than a warp has lanes, and so few that a column is no word.
@recipes
@pytest.mark.parametrize("shape", [(64, 256), (100, 333), (33, 129), (7, 40), (2, 1000), (513, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_columns_change_no_bit(device, shape, dtype, format, options):
    wide = torch.randn(shape[1] + 1, shape[0] + 3, device=device).to(dtype)
    wide[1, 4 % shape[0]] = float("nan")
    for view in (wide[1:, : shape[0]], wide[1:, 1 : shape[0] + 1], wide[1:, 3:].contiguous()):
        x = view.t()
        for rounding in ("nearest", "stochastic"):
            a = my_ops.fp4_quantize(x, format, rounding=rounding, seed=9, **options)
            b = my_ops.fp4_quantize(x.contiguous(), format, rounding=rounding, seed=9, **options)
            assert torch.equal(a.packed, b.packed)
            assert torch.equal(a.scale_bytes, b.scale_bytes)
            c = my_ops.fp4_quantize(view, format, axis=0, rounding=rounding, seed=9, **options)
            assert torch.equal(c.packed, b.packed)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")
@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
def test_every_float32_that_is_rounded(format):
    """All from 2^-6 to 6 and their negatives, and samples below: the GPU's encoder is its own."""
    first, last = (torch.tensor(v).view(torch.int32).item() for v in (2.0**-6, 6.0))
    tried = 0
    for start in [*range(first, last + 1, 15 << 20), *range(0, first, 1 << 27)]:
        bits = torch.arange(start, min(start + (15 << 20), last + 1), dtype=torch.int32)
        bits = bits[: bits.numel() // 15 * 15].view(-1, 15)
        x = torch.full((bits.shape[0], BLOCK[format]), 6.0)  # pins the scale to 1
        x[:, 1:16] = bits.view(torch.float32)
        x[:, 2::2].neg_()
        a, b = (my_ops.fp4_quantize(t, format, two_level=False) for t in (x.cuda(), x))
        assert torch.equal(a.packed.cpu(), b.packed)
        assert torch.equal(a.scale_bytes.cpu(), b.scale_bytes)
        tried += bits.numel()
    print(f"{format}: {tried} float32 inputs, 0 bytes differ between CUDA and CPU")


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
def test_quantizing_the_values_again_changes_nothing(device, format):
    """Where the scale byte is normal, and for MXFP4's floor unless a block saturates."""
    x = torch.randn(2000, 96, device=device) * torch.logspace(-4, 1, 2000, device=device)[:, None]
    q = my_ops.fp4_quantize(x, format)
    again = my_ops.fp4_quantize(q.dequantize(), format, amax=q.amax)
    normal = q.scale_bytes >= 8
    block = BLOCK[format] // 2
    assert normal.float().mean() > 0.5
    assert torch.equal(again.scale_bytes[normal], q.scale_bytes[normal])
    codes, codes_again = (p.unflatten(-1, (-1, block))[normal] for p in (q.packed, again.packed))
    assert torch.equal(codes, codes_again)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_element_stays_in_its_block(device, format, bad):
    x = torch.randn(3, 95, device=device)
    clean = my_ops.fp4_quantize(x, format, amax=4.0 if format == "nvfp4" else None)
    x[1, 94] = bad  # in a ragged block whose last byte has a spare nibble
    q = my_ops.fp4_quantize(x, format, amax=clean.amax)
    y = q.dequantize()
    block = BLOCK[format]
    first = 94 // block * block
    if format == "nvfp4" and bad == bad:
        assert abs(y[1, 94].item()) == 4
        assert y.isfinite().all()
    else:
        assert y[1, first:].isnan().all()
        assert q.packed[1, -1].item() == 0x07
    y[1, first:] = expected = clean.dequantize()[1, first:]
    assert expected.isfinite().all()
    assert torch.equal(y, clean.dequantize())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_amax(device, dtype):
    amax = torch.ops.my_ops.fp4_amax
    for shape in ((1,), (7,), (3, 5), (300, 401), (2, 3, 4096)):
        x = torch.randn(shape, device=device).to(dtype)
        for view in (x, x[..., 1:], x.mT if x.dim() > 1 else x):
            expected = view.abs().max().float() if view.numel() else torch.zeros(())
            assert amax(view).item() == expected.item()
    x = torch.tensor([1, float("nan"), -3], device=device).to(dtype)
    assert amax(x).item() == 3
    assert amax(x[1:2]).item() == 0
    assert amax(x[:0]).item() == 0
    assert amax(torch.tensor([1, -float("inf")], device=device).to(dtype)).item() == float("inf")


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(0, 6),
    K=st.integers(1, 70),
    recipe=st.sampled_from(RECIPES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    seed=st.none() | st.integers(0, 2**64 - 1),
    data=st.randoms(use_true_random=False),
)
def test_any_bits(rows, K, recipe, dtype, seed, data):
    bits = torch.tensor([data.getrandbits(32) - 2**31 for _ in range(rows * K)], dtype=torch.int32)
    x = bits.view(torch.float32) if dtype == torch.float32 else bits.short().view(dtype)
    compare(x.reshape(rows, K), *recipe, "cpu", seed)
