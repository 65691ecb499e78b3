"""What the tests of rmsnorm compare with: the formula in float64, rounded once."""

import torch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def sample(shape, dtype, device):
    return torch.randn(shape, dtype=torch.float64, device=device).to(dtype)


def formula(x, weight=None, eps=1e-6, offset=0.0):
    """rmsnorm in ordinary PyTorch operations, differentiable, in the dtype of x."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * (weight + offset)


def exact(x, weight=None, eps=1e-6, offset=0.0, out_dtype=None):
    weight = None if weight is None else weight.double()
    return formula(x.double(), weight, eps, offset).to(out_dtype or x.dtype)


def _ordered(values):
    """Integers that are one apart for neighbouring floats."""
    bits = values.view(torch.int16 if values.dtype.itemsize == 2 else torch.int32).long()
    sign = bits < 0
    magnitude = bits & (0x7FFF if values.dtype.itemsize == 2 else 0x7FFFFFFF)
    return torch.where(sign, -magnitude, magnitude)


def assert_accurate(actual, expected):
    """What design.md promises of the forward: 16-bit within one unit in the last place and under
    1 % off at all; float32 within two and at most 0.1 % over one."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if actual.dtype == torch.float64:
        torch.testing.assert_close(actual, expected, rtol=1e-14, atol=0)
        return
    ulps = (_ordered(actual) - _ordered(expected)).abs().flatten()
    if actual.dtype == torch.float32:
        assert ulps.max() <= 2
        assert (ulps > 1).sum() <= 0.001 * ulps.numel()
    else:
        assert ulps.max() <= 1
        assert (ulps > 0).sum() <= max(1, 0.01 * ulps.numel())
