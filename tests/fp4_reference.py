"""FP4 quantization written a second time, in NumPy, from the definitions and not from the kernels.

Elements and E4M3 scales are found by comparing with the midpoints of a table of values, E8M0 scales
from exact float64 mantissas. Every step of the scale arithmetic is one float32 operation.
"""

import numpy as np
import torch

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
FORMATS = ["nvfp4", "mxfp4"]
BLOCK = {"nvfp4": 16, "mxfp4": 32}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float64)
FLOAT_MAX = np.finfo(np.float32).max


def values(q):
    """What an FP4Tensor stands for, in float64, by the operator under test."""
    return q.dequantize(torch.float32).double()


def e4m3_value(byte):
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    if byte & 0x7F == 0x7F:
        return np.nan
    value = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -value if byte & 0x80 else value


E4M3 = np.array([e4m3_value(byte) for byte in range(0x7F)])


def nearest(values, table):
    """Indices of the nearest entries of an ascending table, ties to the even index, saturating."""
    middle = (table[1:] + table[:-1]) / 2
    values = values.astype(np.float64)
    below = np.searchsorted(middle, values, side="left")
    above = np.searchsorted(middle, values, side="right")  # differs from `below` on a tie
    return np.where(below % 2 == 0, below, above)


def tensor_scale(amax):
    """(S / 6, 1 / S) of notes 5b; amax None: one level."""
    S = np.float32(1)
    if amax is not None and amax != 0 and amax != np.inf:
        S = min(np.float32(2688) / np.float32(amax), FLOAT_MAX)
    return S * (np.float32(1) / np.float32(6)), np.float32(1) / S


def e8m0(amax, mode):
    finite = np.isfinite(amax)
    a = np.where(finite, amax, 1).astype(np.float64)
    fraction, exponent = np.frexp(a)
    mantissa, exponent = 2 * fraction, exponent - 1  # in [1, 2)
    if mode == "floor":
        e = exponent - 2
    elif mode == "rceil":  # the smallest e with 6 * 2^e >= a
        e = exponent - 2 + (mantissa > 1.5)
    elif mode == "ceil":  # the smallest e with 4 * 2^e >= a
        e = exponent - 2 + (mantissa > 1)
    else:  # floor, after 0.25 is added to the mantissa
        e = exponent - 2 + (mantissa + 0.25 >= 2)
    e = np.where(a == 0, -127, np.maximum(e, -127))
    return np.where(finite, e + 127, 255).astype(np.uint8)


def philox(seed, counter):
    """Philox-4x32-10 of an array of counters: [..., 4] words."""
    c = np.stack([counter & 0xFFFFFFFF, counter >> 32, 0 * counter, 0 * counter], -1)
    c = c.astype(np.uint64)
    key = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = c[..., 0] * np.uint64(0xD2511F53), c[..., 2] * np.uint64(0xCD9E8D57)
        words = (
            (p1 >> 32) ^ c[..., 1] ^ key[0],
            p1 & mask,
            (p0 >> 32) ^ c[..., 3] ^ key[1],
            p0 & mask,
        )
        c = np.stack(words, -1)
        key = (key + np.array([0x9E3779B9, 0xBB67AE85], np.uint64)) & mask
    return c


def random_bytes(seed, rows, K):
    blocks = -(-K // 16)
    words = philox(seed, np.arange(rows * blocks, dtype=np.int64)).astype("<u4")
    return words.view(np.uint8).reshape(rows, blocks * 16)[:, :K]


def stochastic(magnitude, byte):
    y = np.minimum(magnitude, np.float32(6))
    step = np.select([y < 2, y < 4], [0.5, 1], 2).astype(np.float32)
    t = y + byte.astype(np.float32) / np.float32(256) * step
    return np.searchsorted(E2M1, t.astype(np.float64), side="right") - 1


def quantize(x, format, amax=None, mode="floor", seed=None):
    """packed and scale bytes of float32 x [rows, K]; a seed asks for stochastic rounding."""
    rows, K = x.shape
    block = BLOCK[format]
    blocks = -(-K // block)
    padded = np.zeros((rows, blocks * block), np.float32)
    padded[:, :K] = x
    padded = padded.reshape(rows, blocks, block)
    with np.errstate(all="ignore"):
        block_amax = np.max(np.abs(padded), axis=-1)  # NaN where an element is
        nan = np.isnan(block_amax) if format == "nvfp4" else ~np.isfinite(block_amax)
        if format == "nvfp4":
            m, g = tensor_scale(amax)
            scale = nearest(np.where(nan, 0, block_amax * m), E4M3)
            inverse = np.float32(1) / (E4M3.astype(np.float32)[scale] * g)
            factor = np.where(scale == 0, 0, np.minimum(inverse, FLOAT_MAX)).astype(np.float32)
            scale = np.where(nan, 0x7F, scale).astype(np.uint8)
        else:
            scale = e8m0(block_amax, mode)
            factor = np.exp2(127.0 - scale).astype(np.float32)
        magnitude = np.abs(padded * factor[..., None])
        magnitude = np.where(nan[..., None], 0, magnitude).reshape(rows, blocks * block)[:, :K]
        if seed is None:
            codes = nearest(magnitude, E2M1)
        else:
            codes = stochastic(magnitude, random_bytes(seed, rows, K))
    codes = np.where(np.signbit(x), codes + 8, codes)
    codes = np.where(np.repeat(nan, block, axis=-1)[:, :K], 7, codes).astype(np.uint8)
    even = codes[:, ::2].copy()
    even[:, : K // 2] |= codes[:, 1::2] << 4
    return even, scale


def dequantize(packed, scale, K, format, amax=None):
    """float32 values [rows, K]."""
    rows = packed.shape[0]
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(rows, 2 * packed.shape[1])[:, :K]
    values = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7]).astype(np.float32)
    with np.errstate(all="ignore"):
        if format == "nvfp4":
            table = np.array([e4m3_value(byte) for byte in range(256)], np.float32)
            factor = table[scale] * tensor_scale(amax)[1]
        else:
            factor = np.exp2(scale - 127.0).astype(np.float32)
            factor = np.where(scale == 255, np.float32(np.nan), factor)
        return values * np.repeat(factor, BLOCK[format], axis=-1)[:, :K]
