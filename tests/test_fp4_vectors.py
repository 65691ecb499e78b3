"""FP4: the published test vectors, bit by bit, and the codes of CUDA's own header."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import my_ops

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import cuda_toolchain  # noqa: E402

INF, NAN = float("inf"), float("nan")
TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]


def floats_around(values):
    """Of each value, the next float32 above and the next below."""
    v = np.array(values, np.float32)
    pairs = np.stack([np.nextafter(v, np.float32(9)), np.nextafter(v, np.float32(0))], 1)
    return pairs.reshape(-1).tolist()


def below(x):
    return float(np.nextafter(np.float32(x), np.float32(0)))


# name: (elements, amax or None for one level or "own", scale bytes, code bytes, values or None).
# Missing elements of the 16 are 0; "exactly" says that there are no others.
NVFP4 = {
    "V1 zeros": ([0] * 16, None, "00", "", []),
    "V2 every value and tie": (
        [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, -6],
        None, "38", "00 21 22 43 44 65 66 F7",
        [0, 0, 0.5, 1, 1, 1, 1.5, 2, 2, 2, 3, 4, 4, 4, 6, -6],
    ),
    "V3 negative": (
        [-0.0, -0.25, -0.5, -0.75, -1, -1.25, -1.5, -1.75, -2, -2.5, -3, -3.5, -4, -5, -6, 6],
        None, "38", "88 A9 AA CB CC ED EE 7F",
        [-0.0, -0.0, -0.5, -1, -1, -1, -1.5, -2, -2, -2, -3, -4, -4, -4, -6, 6],
    ),
    "V4 next to ties": (
        [*floats_around(TIES), 6, below(6)], None, "38", "01 12 23 34 45 56 67 77", None,
    ),
    "V5a": ([6, 5, -6, 1, 0.25], None, "38", "67 2F", [6, 4, -6, 1, 0]),
    "V5a 6.3": ([6.3, 5, -6.3, 1, 0.25], None, "38", "67 2F", [6, 4, -6, 1, 0]),
    "V5a 6.375 is a tie of the scale": ([6.375, 5, -6.375, 1, 0.25], None, "38", "67 2F",
                                        [6, 4, -6, 1, 0]),
    "V5b 6.4": ([6.4, 5, -6.4, 1, 0.25], None, "39", "67 2F", [6.75, 4.5, -6.75, 1.125, 0]),
    "V5b 6.5": ([6.5, 5, -6.5, 1, 0.25], None, "39", "67 2F", [6.75, 4.5, -6.75, 1.125, 0]),
    "V5b 6.75": ([6.75, 5, -6.75, 1, 0.25], None, "39", "67 2F", [6.75, 4.5, -6.75, 1.125, 0]),
    "V6 saturated": ([30000, -2688, 448, 112, 113] + [1] * 11, None, "7E", "F7 02 01",
                     [2688, -2688, 448, 0, 224]),
    "V7 underflow": ([1e-4, -1e-5], None, "00", "80", [0, -0.0]),
    "V8 subnormal scale": ([6 * 2**-9 * 1.4, 0.001, -0.004], None, "01", "17 0C",
                           [0.01171875, 0.0009765625, -0.00390625]),
    "V9a scale ties to 0": ([6 * 2**-10, 0.001], None, "00", "00", []),
    "V9b scale just above": ([6 * 2**-10 * 1.01, 0.001], None, "01", "15",
                             [0.005859375, 0.0009765625]),
    "V10a": ([12, -3, 1], 12.0, "7E", "B7 01", [12, -3, 1]),
    "V10b": ([0.75, -0.0625, 0.5], 12.0, "5E", "97 06", [0.75, -0.0625, 0.5]),
    "V10c": ([1e-4, -5e-5], 12.0, "02", "D7", None),
    "V10d normal scale": ([12 / 28672], 12.0, "08", "07", None),
    "V10d last scale": ([12 * 1.001 / 458752], 12.0, "01", "05", None),
    "V10d underflow": ([12 / 1e6], 12.0, "00", "00", []),
    "V11 NaN": ([6, 1, 1, NAN, 1, -2] + [1] * 10, None, "7F", "77 77 77 77 77 77 77 77",
                [NAN] * 16),
    "V12 Inf": ([6, 1, 1, INF, -INF, -2] + [1] * 10, None, "7E", "00 70 8F 00",
                [0, 0, 0, 2688, -2688, -0.0]),
    "V12 Inf, two levels": ([6, 1, 1, INF, -INF, -2] + [1] * 10, "own", "7E", "00 70 8F 00",
                            [0, 0, 0, 2688, -2688, -0.0]),
    "V14": ([(i - 8) * 0.37 for i in range(16)], None, "30", "FF EE CD 9B 10 43 65 76", None),
    "V14b": ([(i - 8) * 0.37 for i in range(16)], 2.96, "7E", "FF EE CD 9B 10 43 65 76", None),
    "V16 amax too small": ([6, 1], 3.0, "7E", "47", [3, 1]),
    "V17 464 rounds to 448": ([2784, 2688], None, "7E", "77", [2688, 2688]),
    "V18 float16": ([65504, -32752], 65504.0, "7E", "D7", [65504, -32752]),
    "V19 no overflow": ([3e38, -1e38], "own", "7E", "C7", None),
    "V20 above the cap on S": ([8e-36, -4e-36], "own", "7E", "D7", None),
    "V21 below the cap on S": ([1e-37, -5e-38], "own", "4B", "D7",
                               [9.69783e-38, -4.84891e-38, 0]),
    "V22 subnormal": ([1e-40, -5e-41], "own", "03", "80", [0, -0.0]),
    "V23": ([0.02] * 16, None, "02", "77 77 77 77 77 77 77 77", [0.0234375] * 16),
}  # fmt: skip


def check_block(device, elements, scale, codes, values, **options):
    x = torch.zeros(16 if len(elements) <= 16 else len(elements), dtype=torch.float32)
    x[: len(elements)] = torch.tensor(elements, dtype=torch.float32)
    q = my_ops.fp4_quantize(x.to(device), **options)
    assert bytes(q.scale_bytes.tolist()) == bytes.fromhex(scale)
    expected = bytes.fromhex(codes)
    assert bytes(q.packed.tolist()) == expected.ljust(len(q.packed), b"\0")
    y = q.dequantize().cpu()
    if values is not None:
        expected = torch.zeros_like(x)
        expected[: len(values)] = torch.tensor(values, dtype=torch.float32)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=0, equal_nan=True)
        assert torch.equal(y.signbit() | y.isnan(), expected.signbit() | expected.isnan())
    elif not x.isnan().any():
        assert y.isfinite().all()


@pytest.mark.parametrize("name", NVFP4)
def test_nvfp4_vectors(device, name):
    elements, amax, scale, codes, values = NVFP4[name]
    options = {"two_level": amax is not None, "amax": None if amax == "own" else amax}
    check_block(device, elements, scale, codes, values, **options)


def exactly(device, elements, **options):
    q = my_ops.fp4_quantize(torch.tensor(elements, device=device), **options)
    return bytes(q.packed.tolist()).hex(), bytes(q.scale_bytes.tolist()).hex(), q.dequantize()


def test_v13_odd_length(device):
    packed, scale, _ = exactly(device, [1.0, 2, 3, 4, 5, 6, -1], two_level=False)
    assert (packed, scale) == ("4265760a", "38")


def test_v15_two_blocks_of_which_one_is_ragged(device):
    x = [float(i) for i in range(1, 21)]
    packed, scale, y = exactly(device, x, two_level=False)
    assert (packed, scale) == ("11324455656676777777", "4345")
    assert y[:5].tolist() == [1.375, 1.375, 2.75, 4.125, 5.5]
    assert y[16:].tolist() == [19.5] * 4
    packed, scale, y = exactly(device, x, amax=20.0)
    assert (packed, scale) == ("21324455656676777777", "7b7e")
    torch.testing.assert_close(
        y[:3].cpu(), torch.tensor([1.3095, 2.6190, 2.6190]), rtol=1e-4, atol=0
    )
    assert y[16:].tolist() == [20.0] * 4


def test_v19_to_v22_decode_to_what_they_stand_for(device):
    for elements in ([3e38, -1e38], [8e-36, -4e-36]):
        y = exactly(device, elements)[2].cpu()
        torch.testing.assert_close(y, torch.tensor(elements), rtol=1e-6, atol=0)


def test_v24_a_row_has_its_own_scale(device):
    x = torch.zeros(16, 16, device=device)
    x[0, 0], x[5] = 6, 0.25
    q = my_ops.fp4_quantize(x, two_level=False)
    assert q.scale_bytes[5].tolist() == [0x13]
    assert q.packed[5].tolist() == [0x77] * 8
    assert q.dequantize()[5].tolist() == [0.2578125] * 16


# amax: (scale byte, code of amax, its value) of floor, rceil, ceil, even.
AFTER_6 = float(np.nextafter(np.float32(6), np.float32(7)))
MXFP4_MODES = {
    0.0: [(0, 0, 0)] * 4,
    1.0: [(125, 6, 1)] * 4,
    2.0: [(126, 6, 2)] * 4,
    4.0: [(127, 6, 4)] * 4,
    8.0: [(128, 6, 8)] * 4,
    3.0: [(126, 7, 3), (126, 7, 3), (127, 5, 3), (126, 7, 3)],
    3.4999998: [(126, 7, 3), (127, 5, 3), (127, 5, 3), (126, 7, 3)],
    3.5: [(126, 7, 3), (127, 6, 4), (127, 6, 4), (127, 6, 4)],
    5.0: [(127, 6, 4), (127, 6, 4), (128, 4, 4), (127, 6, 4)],
    6.0: [(127, 7, 6), (127, 7, 6), (128, 5, 6), (127, 7, 6)],
    AFTER_6: [(127, 7, 6), (128, 5, 6), (128, 5, 6), (127, 7, 6)],
    7.0: [(127, 7, 6), (128, 6, 8), (128, 6, 8), (128, 6, 8)],
    7.5: [(127, 7, 6), (128, 6, 8), (128, 6, 8), (128, 6, 8)],
    448.0: [(133, 7, 384), (134, 6, 512), (134, 6, 512), (134, 6, 512)],
    2.0**-126: [(0, 4, 2.0**-126)] * 4,
    2.0**-127: [(0, 2, 2.0**-127)] * 4,
    2.0**-130: [(0, 0, 0)] * 4,
    1.5 * 2.0**127: [(252, 7, 1.5 * 2.0**127)] * 2
    + [(253, 5, 1.5 * 2.0**127), (252, 7, 1.5 * 2.0**127)],
    INF: [(255, 7, NAN)] * 4,
    -INF: [(255, 7, NAN)] * 4,
    NAN: [(255, 7, NAN)] * 4,
}


@pytest.mark.parametrize("amax", MXFP4_MODES, ids=str)
def test_mxfp4_scale_modes(device, amax):
    x = torch.zeros(32, device=device)
    x[3] = amax
    for mode, expected in zip(["floor", "rceil", "ceil", "even"], MXFP4_MODES[amax], strict=True):
        q = my_ops.fp4_quantize(x, "mxfp4", scale_mode=mode)
        value = q.dequantize()[3].item()
        got = q.scale_bytes.item(), q.packed[1].item() >> 4, value
        np.testing.assert_equal(got, expected)


M2 = [(i - 16) * 0.4375 for i in range(32)]
M3 = (
    "0.3463 -0.0499 0.3794 -2.3764 0.3960 0.5989 -0.6250 -0.4239 -0.6192 0.2761 -0.3746 0.1462 "
    "0.5216 -0.5194 -0.8497 -0.8237 0.5145 0.3508 0.0298 -0.3462 0.3917 0.1096 1.4494 1.7009 "
    "-0.5473 -2.0851 1.8099 0.3587 1.4622 -2.3143 0.3412 -0.8931"
)


def test_m2_whole_blocks(device):
    floor = "FF FF EF EE DE CD BC 9A 10 32 44 55 66 66 77 77"
    other = "DE DD CD CC BC AB 9A 89 00 11 22 33 44 44 55 55"
    check_block(device, M2, "7F", floor, None, format="mxfp4")
    for mode in ("rceil", "ceil", "even"):
        check_block(device, M2, "80", other, None, format="mxfp4", scale_mode=mode)


@pytest.mark.parametrize("mode", ["floor", "rceil", "even"])
def test_m3_real_data(device, mode):
    codes = bytes([129, 226, 34, 170, 26, 25, 162, 187, 18, 144, 2, 85, 234, 22, 229, 193]).hex()
    elements = [float(word) for word in M3.split()]
    check_block(device, elements, "7E", codes, None, format="mxfp4", scale_mode=mode)


def test_m4_a_tie_and_just_above_it(device):
    bits = torch.tensor([0x3F000000, 0x3F000003], dtype=torch.int32).view(torch.float32)
    check_block(device, [*bits.tolist(), *[0.0] * 29, 8.0], "80", "10".ljust(30, "0") + "60", None,
                format="mxfp4")  # fmt: skip


def test_m5_ragged_block(device):
    q = my_ops.fp4_quantize(torch.arange(33.0, device=device), "mxfp4")
    assert q.packed.shape == (17,)
    assert q.scale_bytes.shape == (2,)
    assert q.dequantize()[32].item() == 32


def test_decoding_of_scale_bytes(device):
    """Every E4M3 byte, NaN and negative ones too, and every E8M0 byte, with every code."""
    codes = torch.arange(256, dtype=torch.uint8, device=device).repeat(256, 1)
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    values = torch.cat([values, -values])
    pairs = torch.stack([values.repeat(16), values.repeat_interleave(16)], -1).reshape(512)
    byte = torch.arange(256, dtype=torch.uint8)
    e4m3 = byte.view(torch.float8_e4m3fn).double()
    e8m0 = torch.where(byte == 255, NAN, torch.exp2(byte.double() - 127))
    for format, table, block in (("nvfp4", e4m3, 16), ("mxfp4", e8m0, 32)):
        scale = byte[:, None].repeat(1, 512 // block).to(device)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            q = my_ops.FP4Tensor(codes, scale, None, format, 512, dtype)
            expected = (pairs * table[:, None]).float().to(dtype)
            y = q.dequantize().cpu()
            torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
            assert torch.equal(y.signbit() | y.isnan(), expected.signbit() | expected.isnan())


def _cuda_include():
    toolchain = cuda_toolchain.find() or pytest.skip("no CUDA compiler for this torch")
    for include in (toolchain.cuda_home / "include", *map(Path, toolchain.include_dirs)):
        if (include / "cuda_fp4.h").exists() and (include / "crt").exists():
            return include
    raise FileNotFoundError(f"no cuda_fp4.h beside nvcc in {toolchain.cuda_home}")


def test_encoder_equals_cuda_header(tmp_path):
    """e2m1_encode is __nv_cvt_float_to_fp4 on every float that decides a rounding."""
    compiler = shutil.which("c++") or pytest.skip("no host compiler")
    program = str(tmp_path / "check")
    include = ["-I", str(ROOT / "csrc"), "-isystem", str(_cuda_include())]
    flags = ["-O2", "-std=c++17", "-ffp-contract=off"]
    source = str(ROOT / "tests" / "fp4_header_check.cpp")
    subprocess.run([compiler, *flags, *include, source, "-o", program], check=True)
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split("\n")
    counts = {line.split()[0]: line.split()[2::2] for line in lines if line}
    assert set(counts) == {"e2m1_dense", "e2m1_sparse", "e4m3_dense", "decode"}
    assert all(int(tried) > 250 and differing == "0" for tried, differing in counts.values())
