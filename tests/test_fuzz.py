"""Random calls of every operator: the result, the gradients and what the fakes say are right.

`make fuzz` draws thousands of them, the usual run a few dozen, always the same.
"""

import math

import torch
from fp4_reference import quantize as reference_quantize
from fuzz_strategies import (
    COMPLEX,
    DEVICES,
    FLOATS,
    FP4_DTYPES,
    INTEGERS,
    LENGTHS,
    assert_fake_agrees,
    samples,
    shapes,
)
from helpers import assert_same_bytes
from hypothesis import given
from hypothesis import strategies as st
from rmsnorm_reference import assert_accurate, exact, formula

import my_ops

FORMATS = st.sampled_from(["nvfp4", "mxfp4"])
ANY_VALUES = "normal", "integers", "extremes"


def gradients(function, inputs, grads):
    inputs = [x.detach().requires_grad_() for x in inputs]
    outputs = function(*inputs)
    return torch.autograd.grad(outputs, inputs, grads)


def assert_close(actual, expected, terms, factor=4):
    """`actual` is `expected`, a float64 tensor, but for its rounding and that of sums of `terms`.

    terms: the magnitudes that are added up for each element, or a bound of them.
    """
    assert actual.shape == expected.shape
    wide = torch.finfo(torch.float64 if actual.dtype == torch.float64 else torch.float32)
    info = torch.finfo(actual.dtype)
    bound = factor * wide.eps * terms + info.eps * expected.abs() + info.smallest_normal
    error = (actual.double() - expected).abs()
    fits = (error <= bound) | ~expected.isfinite() | (expected.abs() > info.max)
    assert fits.all(), f"largest error / bound: {(error / bound).max():.3g}"


# ---- square ----


# Where complex products overflow, an infinity or a NaN is a matter of fused multiply and add.
@DEVICES
@given(
    sample=samples(shapes(), [*FLOATS, *INTEGERS, torch.bool], ANY_VALUES)
    | samples(shapes(), COMPLEX),
    lazy=st.booleans(),
)
def test_square(device, sample, lazy):
    x = sample.tensor(device)
    x = x.conj() if lazy else x
    y, expected = my_ops.square(x), torch.square(x)
    tolerance = 4 * torch.finfo(y.dtype).eps if y.is_complex() else 0
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert_fake_agrees(my_ops.square, (x,), y)
    if x.dtype != torch.bool and not any(sample.layout.expanded if sample.layout else ()):
        own = x.clone() if lazy else x
        assert my_ops.square_(own) is own
        torch.testing.assert_close(own, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@st.composite
def square_gradients(draw):
    shape, dtype = draw(shapes()), draw(st.sampled_from([*FLOATS, *COMPLEX]))
    return draw(samples(shape, [dtype])), draw(samples(shape, [dtype]))


@DEVICES
@given(pair=square_gradients())
def test_square_gradient(device, pair):
    x, grad = (sample.tensor(device) for sample in pair)
    (actual,) = gradients(my_ops.square, [x], grad)
    (expected,) = gradients(torch.square, [x], grad)
    eps = torch.finfo(x.dtype).eps
    torch.testing.assert_close(actual, expected, rtol=4 * eps, atol=4 * eps)


# ---- rmsnorm, add_rmsnorm ----


@st.composite
def norms(draw):
    """x, residual, weight or None, grad, options."""
    shape, dtype = draw(shapes(1)), draw(st.sampled_from(FLOATS))
    narrow = [d for d in FLOATS if d != torch.float64]
    w_dtypes, out_dtypes = (FLOATS, [dtype]) if dtype == torch.float64 else (narrow, narrow)
    options = {
        "eps": draw(st.sampled_from([1e-6, 1e-2, None])),
        "weight_offset": draw(st.sampled_from([0.0, 1.0, -0.5])),
        "out_dtype": draw(st.sampled_from([None, *out_dtypes])),
    }
    weight = draw(st.none() | samples(shape[-1:], w_dtypes))
    x, residual = (draw(samples(shape, [dtype])) for _ in range(2))
    return x, residual, weight, draw(samples(shape, [options["out_dtype"] or dtype])), options


def exact_options(x, options):
    """The options with the number that eps=None stands for."""
    eps, *others = options.values()
    if eps is None:
        eps = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    return eps, *others


def assert_normalized(actual, expected):
    """`actual` is `expected`, a float64 tensor, rounded: in 16 bits but where two units of the last
    place of float32 decide which way, as they may for all of a row of equal elements."""
    rounded = expected.to(actual.dtype)
    if actual.dtype.itemsize > 2:
        return assert_accurate(actual, rounded)
    assert actual.dtype == rounded.dtype
    assert actual.shape == rounded.shape
    lower, upper = ((expected * factor).to(actual.dtype) for factor in (1 - 2**-22, 1 + 2**-22))
    assert ((actual == rounded) | (actual == lower) | (actual == upper)).all()


@DEVICES
@given(call=norms())
def test_rmsnorm(device, call):
    *samples, options = call
    x, residual, weight, _ = (None if s is None else s.tensor(device) for s in samples)
    eps, offset, out_dtype = exact_options(x, options)

    def run(x, residual, weight):
        y = my_ops.rmsnorm(x, weight, **options)
        return y, *my_ops.add_rmsnorm(x, residual, weight, **options)

    y, added, total = results = run(x, residual, weight)
    if y.numel() > 0:
        assert y.dtype == (out_dtype or x.dtype)
        assert_normalized(y, exact(x, weight, eps, offset, torch.float64))
    assert torch.equal(total, x + residual)
    assert torch.equal(added, my_ops.rmsnorm(total, weight, **options))
    assert_fake_agrees(run, (x, residual, weight), results)


@DEVICES
@given(call=norms())
def test_rmsnorm_gradients(device, call):
    *samples, options = call
    x, residual, weight, grad = (None if s is None else s.tensor(device) for s in samples)
    eps, offset, _ = exact_options(x, options)

    def ours(x, weight=None):
        return my_ops.rmsnorm(x, weight, **options)

    inputs = [x] if weight is None else [x, weight]
    actual = gradients(ours, inputs, grad)
    wide = [t.double() for t in inputs]
    expected = gradients(lambda x, w=None: formula(x, w, eps, offset), wide, grad.double())
    # grad_x is rstd (a - x rstd mean(a x rstd)): two terms, of which the second is a mean.
    rstd = torch.rsqrt(wide[0].square().mean(-1, keepdim=True) + eps)
    a = grad.double() * (1 if weight is None else weight.double() + offset)
    size = a.norm(dim=-1, keepdim=True) * (wide[0] * rstd).abs()
    assert_close(actual[0], expected[0], rstd * (a.abs() + size), factor=16)
    if weight is not None:
        terms = (grad.double() * wide[0] * rstd).abs()
        assert_close(actual[1], expected[1], terms.sum_to_size(weight.shape), factor=16)
    summed = gradients(
        lambda x, r: my_ops.add_rmsnorm(x, r, weight, **options), (x, residual), (grad, residual)
    )
    assert torch.equal(*summed)


# ---- matmul ----


@st.composite
def products(draw, dtypes):
    """a [..., M, K], b [K, N], grad [..., M, N]."""
    K, N = draw(LENGTHS), draw(LENGTHS)
    leading = draw(st.lists(st.integers(0, 4), max_size=2) | LENGTHS.map(lambda M: [M]))
    dtype = draw(st.sampled_from(dtypes))
    return [draw(samples(shape, [dtype])) for shape in ([*leading, K], [K, N], [*leading, N])]


def assert_product(actual, a, b):
    a, b = a.double(), b.double()
    assert_close(actual, a @ b, a.abs() @ b.abs(), factor=2 * math.sqrt(a.shape[-1] + 1))


def rows(x):
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@DEVICES
@given(
    operands=products([torch.float32, torch.float64]),
    precision=st.sampled_from(["ieee", "bf16x6", "fp16x3"]),
    backward_precision=st.sampled_from([None, "ieee"]),
)
def test_matmul(device, operands, precision, backward_precision):
    a, b, grad = (sample.tensor(device) for sample in operands)

    def product(a, b):
        return my_ops.matmul(a, b, precision=precision, backward_precision=backward_precision)

    c = product(a, b)
    assert_product(c, a, b)
    assert_fake_agrees(product, (a, b), c)
    grad_a, grad_b = gradients(product, (a, b), grad)
    assert_product(grad_a, grad, b.t())
    assert_product(grad_b, rows(a).t(), rows(grad))


# ---- FP4 ----

RECIPES = st.fixed_dictionaries(
    {"format": st.just("mxfp4")},
    optional={"scale_mode": st.sampled_from(["floor", "rceil", "ceil", "even"])},
) | st.fixed_dictionaries(
    {"format": st.just("nvfp4")},
    optional={
        "two_level": st.booleans(),
        "amax": st.sampled_from([0, 0.3, 5, 1e30, math.inf]),
        "block2d": st.booleans(),
    },
).filter(lambda options: options.get("two_level", True) or "amax" not in options)


@DEVICES
@given(
    sample=samples(shapes(1), FP4_DTYPES, ANY_VALUES),
    options=RECIPES,
    axis=st.sampled_from([-1, 0]),
    seed=st.none() | st.integers(0, 2**64 - 1),
    ste=st.sampled_from(["plain", "clipped"]),
)
def test_fp4_quantize(device, sample, options, axis, seed, ste):
    x = sample.tensor(device)
    if x.dim() != 2:
        axis = -1
        options = {name: value for name, value in options.items() if name != "block2d"}
    random = {} if seed is None else {"rounding": "stochastic", "seed": seed}

    def quantize(x):
        return my_ops.fp4_quantize(x, **options, **random, axis=axis, ste=ste)

    q = quantize(x)
    assert (q.shape, q.dtype, q.device) == (x.shape, x.dtype, x.device)
    stored = rows(x.t() if axis == 0 else x).float().cpu()
    if not options.get("block2d"):
        amax = None if q.amax is None else q.amax.cpu().numpy()
        mode = options.get("scale_mode", "floor")
        expected = reference_quantize(stored.numpy(), options["format"], amax, mode, seed)
        for actual, bytes in zip((q.packed, q.scale_bytes), expected, strict=True):
            assert torch.equal(rows(actual).cpu(), torch.from_numpy(bytes))
    parts = lambda x: (quantize(x).packed, quantize(x).scale_bytes)  # noqa: E731
    assert_fake_agrees(parts, (x,), (q.packed, q.scale_bytes))
    assert torch.equal(q.dequantize().isnan(), my_ops.fp4_dequantize(q, torch.float32).isnan())
    (grad,) = gradients(lambda x: quantize(x).dequantize(), [x], torch.ones_like(x))
    assert ((grad == 1) | ((grad == 0) & (ste == "clipped"))).all()


@DEVICES
@given(
    sample=samples(shapes(1), FP4_DTYPES, ANY_VALUES),
    weighted=st.booleans(),
    options=RECIPES,
    offset=st.sampled_from([0.0, 1.0]),
)
def test_rmsnorm_fp4_quantize(device, sample, weighted, options, offset):
    x = sample.tensor(device)
    weight = x.new_ones(x.shape[-1]).cumsum(0) if weighted else None
    options = {name: value for name, value in options.items() if name != "block2d"}
    y = my_ops.rmsnorm(x, weight, weight_offset=offset)
    q = my_ops.rmsnorm_fp4_quantize(x, weight, weight_offset=offset, **options)
    assert_same_bytes(q, my_ops.fp4_quantize(y, **options))


@st.composite
def quantizable_products(draw):
    M, K, N = draw(LENGTHS), draw(LENGTHS), draw(LENGTHS)
    leading = draw(st.lists(st.integers(0, 3), max_size=1))
    shapes = [*leading, M, K], [K, N], [*leading, M, N]
    a_dtype, b_dtype = draw(st.sampled_from(FP4_DTYPES)), draw(st.sampled_from(FP4_DTYPES))
    dtypes = a_dtype, b_dtype, a_dtype
    return [draw(samples(shape, [dtype])) for shape, dtype in zip(shapes, dtypes, strict=True)]


@DEVICES
@given(
    operands=quantizable_products(),
    format=FORMATS,
    quantized=st.sampled_from(["", "a", "b", "ab"]),
    out_dtype=st.sampled_from([None, *FP4_DTYPES]),
    tiles=st.booleans(),
)
def test_fp4_matmul(device, operands, format, quantized, out_dtype, tiles):
    a, b, grad = (sample.tensor(device) for sample in operands)
    grad = grad.to(out_dtype or grad.dtype)
    tiles = tiles and format == "nvfp4"
    qa = my_ops.fp4_quantize(a, format)
    qb = my_ops.fp4_quantize(b, format, axis=0, block2d=tiles)

    def product(a, b):
        return my_ops.fp4_matmul(a, b, format, out_dtype=out_dtype, block2d=tiles)

    y = product(qa if "a" in quantized else a, qb if "b" in quantized else b)
    a_values, b_values = qa.dequantize(torch.float32), qb.dequantize(torch.float32)
    assert_product(y, a_values, b_values)
    assert_fake_agrees(product, (a, b), y)
    grad_a, grad_b = gradients(product, (a, b), grad)
    assert_product(grad_a, grad, b_values.t())
    assert_product(grad_b, rows(a_values).t(), rows(grad))


@DEVICES
@given(
    operands=quantizable_products(),
    format=FORMATS,
    options=st.fixed_dictionaries(
        {}, optional={"block2d": st.booleans(), "rht": st.booleans(), "seed": st.integers(0, 9)}
    ),
)
def test_fp4_training_matmul(device, operands, format, options):
    """The same forward; gradients that repeat with the seed, and differ by the format's noise."""
    a, b, grad = (sample.tensor(device) for sample in operands)
    if format == "mxfp4":
        options = {**options, "block2d": False}
    tiles = options.get("block2d", format == "nvfp4")

    def product(a, b):
        return my_ops.fp4_matmul(a, b, format, backward="fp4", **options)

    exact = my_ops.fp4_matmul(a, b, format, block2d=tiles)
    assert torch.equal(product(a, b), exact)
    found, again = (gradients(product, (a, b), grad) for _ in range(2))
    for actual, repeated, like in zip(found, again, (a, b), strict=True):
        assert (actual.shape, actual.dtype) == (like.shape, like.dtype)
        assert actual.isfinite().all()
        assert "seed" not in options or torch.equal(actual, repeated)


@DEVICES
@given(
    operands=quantizable_products(),
    format=FORMATS,
    axis=st.sampled_from([0, 1]),
    biased=st.booleans(),
    out_dtype=st.sampled_from([None, *FP4_DTYPES]),
)
def test_fp4_linear(device, operands, format, axis, biased, out_dtype):
    x, w, grad = (sample.tensor(device) for sample in operands)
    grad = grad.to(out_dtype or grad.dtype)
    q = my_ops.fp4_quantize(w.t(), format, axis=axis)
    bias = w[0].float() if biased and len(w) else None

    def linear(x, bias=None):
        return my_ops.fp4_linear(x, q, bias, out_dtype=out_dtype)

    y = linear(x, bias)
    values = q.dequantize(torch.float32)
    offset = torch.zeros(q.shape[0], device=device) if bias is None else bias
    terms = rows(x).double().abs() @ values.t().double().abs() + offset.double().abs()
    expected = rows(x).double() @ values.t().double() + offset.double()
    assert_close(rows(y), expected, terms, factor=2 * math.sqrt(x.shape[-1] + 1))
    grads = gradients(linear, (x,) if bias is None else (x, bias), grad)
    assert_product(grads[0], grad, values)
    if bias is not None:
        wide = rows(grad).double()
        assert_close(grads[1], wide.sum(0), wide.abs().sum(0), factor=2 * math.sqrt(len(wide) + 1))


@DEVICES
@given(shape=st.tuples(st.integers(0, 300), st.integers(0, 20)), seed=st.integers(0, 2**16))
def test_swizzled_scales(device, shape, seed):
    random = torch.Generator().manual_seed(seed)
    scale = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8).to(device)
    swizzled = my_ops.fp4_swizzle_scales(scale)
    assert torch.equal(my_ops.fp4_unswizzle_scales(swizzled, *shape), scale)
    assert swizzled.long().sum() == scale.long().sum()  # what pads is zero
