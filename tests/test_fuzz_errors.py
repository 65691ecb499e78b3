"""Wrong calls: a clear exception, and nothing is written, lost or broken by it.

The operators themselves (torch.ops.my_ops) get calls that were recorded from the public functions,
with one or two arguments replaced at random.
"""

import functools
import re

import numpy as np
import pytest
import torch
from fuzz_strategies import DEVICES, assert_fake_agrees
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import my_ops

CLEAR = (RuntimeError, ValueError, TypeError, NotImplementedError)
NOT_DIFFERENTIABLE = my_ops.square_, my_ops.fp4_swizzle_scales, my_ops.fp4_unswizzle_scales
NO_TENSORS = [None, "text", 1.5, [1.0], np.ones(3), torch.float32, object()]


def assert_works(device):
    """The next call is right: no error of an earlier one is left on the device."""
    assert my_ops.square(torch.full((3,), 3.0, device=device)).tolist() == [9.0] * 3


# ---- Public functions: each argument in turn, with values that are wrong for it ----


def dense(device):
    x, w, b = torch.ones(3, 32), torch.ones(32), torch.ones(32, 32)
    return (t.to(device) for t in (x, w, b))


def wrong_tensors(x, dtypes=(torch.int32, torch.complex64, torch.float8_e4m3fn, torch.bool)):
    """In place of x [rows, K], beside another tensor of the call."""
    return [
        *NO_TENSORS,
        *(x.to(dtype) for dtype in dtypes),
        x.to("meta"),
        x.to_sparse(),
        x[..., :-1],
        x.repeat(*[1] * (x.dim() - 1), 2),
    ]


def calls(device):
    """(function, its right arguments, the wrong values of each)."""
    x, w, b = dense(device)
    q = my_ops.fp4_quantize(torch.ones(4, 32, device=device))
    names = [None, 5, "", "fp", [], np.ones(2)]
    numbers = ["text", [], 1j, object()]
    out_dtypes = [torch.float64, torch.int32, "float32", 5, []]
    flags = ["text", [], object()]
    norm = {
        "eps": [*numbers, -1.0, float("nan")],
        "weight_offset": [None, *numbers],
    }
    quantize = {
        "format": names,
        "amax": [*numbers, -1, float("nan"), 1e39, x, x.to("meta")[0, 0], x[0, 0].double()],
        "scale_mode": [*names, "rceil"],
    }
    weight = wrong_tensors(w)[1:]  # but for None
    matmul = {"a": wrong_tensors(x), "b": [*wrong_tensors(b)[:-2], b[:-1], b[0], b[None]]}
    return [
        (
            my_ops.square,
            {"x": x},
            {"x": [*NO_TENSORS, x.to(torch.float8_e5m2), x.to_sparse(), x.to(torch.uint16)]},
        ),
        (
            my_ops.square_,
            {"x": x.clone()},
            {"x": [*NO_TENSORS, x > 0, x[:1].expand(3, 32), q, x.to_sparse()]},
        ),
        (
            my_ops.rmsnorm,
            {"x": x, "weight": w},
            {
                "x": [*wrong_tensors(x), x[0, 0]],
                "weight": [*weight, w[None], w.double()],
                "cast_order": names,
                "out_dtype": ["float32", torch.int32, torch.float64, 5],
                **norm,
            },
        ),
        (
            my_ops.add_rmsnorm,
            {"x": x, "residual": x, "weight": w},
            {"residual": [*wrong_tensors(x), x.double(), x[0], x[None]], "weight": weight, **norm},
        ),
        (
            my_ops.matmul,
            {"a": x, "b": b},
            {**matmul, "precision": names, "backward_precision": names[1:]},
        ),
        (
            my_ops.fp4_quantize,
            {"x": x},
            {
                "x": [*NO_TENSORS, x.double(), x.int(), x[0, 0], x.to_sparse()],
                "axis": [None, "text", 2, -3, 0.5, [], np.ones(2)],
                "rounding": names,
                "seed": [None, "text", 1.5, 2**64, -(2**63) - 1, []],
                "block2d": flags,
                "ste": names,
                **quantize,
            },
        ),
        (
            my_ops.fp4_dequantize,
            {"q": q},
            {"q": [*NO_TENSORS, x], "dtype": [torch.float64, torch.uint8, "float32", 5, []]},
        ),
        (
            my_ops.fp4_matmul,
            {"a": x, "b": b},
            {
                **matmul,
                "format": names,
                "out_dtype": out_dtypes,
                "backward": names,
                "rht": [True, "text"],
                "seed": [5, "text", torch.ones((), dtype=torch.int64)],
            },
        ),
        (
            my_ops.fp4_matmul,
            {"a": x, "b": b, "backward": "fp4"},
            {"seed": ["text", 1.5, 2**64, torch.ones(2, dtype=torch.int64), torch.ones(())]},
        ),
        (
            my_ops.fp4_linear,
            {"x": x, "weight": q, "bias": x[0, :4]},
            {
                "x": [*wrong_tensors(x), q],
                "weight": [*NO_TENSORS, x, q.t(), q[0], my_ops.fp4_quantize(x[None])],
                "out_dtype": out_dtypes,
                "bias": [*wrong_tensors(x[0, :4])[1:], x[:, :4], x[0, 0], x[0, :4].double()],
            },
        ),
        (
            my_ops.rmsnorm_fp4_quantize,
            {"x": x, "weight": w, "two_level": False},
            {
                "x": [*wrong_tensors(x), x[0, 0], x.double()],
                "weight": [*weight, w.double()],
                "format": names,
                "scale_mode": [*names, "rceil"],
                **norm,
            },
        ),
        (my_ops.fp4_report, {"x": x}, {"x": [*NO_TENSORS, x.int(), x[0, 0]], "format": names}),
        (my_ops.fp4_swizzle_scales, {"scale": q}, {"scale": [*NO_TENSORS, x, q.scale[0]]}),
        (
            my_ops.fp4_unswizzle_scales,
            {"swizzled": my_ops.fp4_swizzle_scales(q), "rows": 4, "columns": 2},
            {
                "swizzled": [*NO_TENSORS, x, q.scale_bytes],
                "rows": [None, "text", 1.5, -1, []],
                "columns": [None, "text", 1.5, -1, []],
            },
        ),
    ]


CASES = [pytest.param(i, id=case[0].__name__) for i, case in enumerate(calls("cpu"))]


@DEVICES
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("differentiated", [False, True])
def test_a_wrong_argument_is_named(device, case, differentiated):
    function, right, wrong = calls(device)[case]
    if differentiated and function not in NOT_DIFFERENTIABLE:
        right = {
            argument: value.detach().clone().requires_grad_()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
            else value
            for argument, value in right.items()
        }
    function(**right)
    for argument, values in wrong.items():
        for value in values:
            before = {
                n: v.detach().clone() for n, v in right.items() if isinstance(v, torch.Tensor)
            }
            try:
                function(**{**right, argument: value})
            except CLEAR as error:
                others = list(right) if isinstance(value, torch.Tensor) else []
                assert_clear(str(error), argument, *others)
            else:
                pytest.fail(f"{argument}: took {getattr(value, 'shape', '')} {type(value)}")
            for n, saved in before.items():
                assert torch.equal(torch.as_tensor(right[n].detach()), torch.as_tensor(saved))
    assert_works(device)


def assert_clear(message, *arguments):
    """It names the operator and one of the arguments."""
    names = "|".join(arguments)
    clear = (
        rf"^my_ops\.\w+: ({names}): expected .*, got .",
        rf"^my_ops::\w+\(\) Expected .* for argument '({names})'",
        r"^my_ops\.FP4Tensor: my_ops\.\w+\.default: expected ",
        r"^Could not run 'my_ops::\w+' with arguments from the '\w+' backend",
    )
    assert any(re.search(pattern, message.split("\n")[0]) for pattern in clear), message


# ---- Operators: recorded calls with one or two arguments replaced ----


class Recorder(TorchDispatchMode):
    """The calls of my_ops' operators."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "my_ops":
            self.calls.append((function, args))
        return function(*args, **(kwargs or {}))


@functools.cache
def recorded_calls():
    x = torch.randn(2, 3, 33, requires_grad=True)
    w, b = torch.randn(33, requires_grad=True), torch.randn(33, 5, requires_grad=True)
    with Recorder() as recorder:
        my_ops.square_(my_ops.square(x).detach())
        outputs = [my_ops.square(x), my_ops.matmul(x, b), *my_ops.add_rmsnorm(x, x, w)]
        outputs += [my_ops.rmsnorm(x, w.detach()), my_ops.rmsnorm(x.detach(), w)]
        for format in ("nvfp4", "mxfp4"):
            q = my_ops.fp4_quantize(b.t().detach(), format)
            outputs += [my_ops.fp4_matmul(x, b, format), my_ops.fp4_linear(x, q, w[:5])]
            outputs += [my_ops.fp4_linear(x[0], my_ops.fp4_quantize(b.t(), format, axis=0))]
            my_ops.rmsnorm_fp4_quantize(x.detach(), w.detach(), format=format, two_level=False)
            q.dequantize()
        sum(y.sum() for y in outputs).backward()
    detach = lambda value: value.detach() if isinstance(value, torch.Tensor) else value  # noqa: E731
    return [(function, [detach(value) for value in args]) for function, args in recorder.calls]


HUGE = st.sampled_from([-(2**63), -1, 0, 1, 2, 7, 2**31, 2**40, 2**62, 2**63 - 1])
NAMES_IN_SCHEMAS = st.sampled_from(
    [
        *("nvfp4", "mxfp4", "float16", "float32", "float64", "floor", "even"),
        *("nearest", "stochastic", "ieee", "tf32", "", "\0", "x" * 1000),
    ]
)
FLOATS_IN_SCHEMAS = st.sampled_from([0.0, -0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan")])


def _random_bytes(x, seed):
    random = torch.Generator().manual_seed(seed)
    bytes = torch.randint(0, 256, (x.numel() * x.element_size(),), generator=random)
    return bytes.to(torch.uint8).view(x.dtype).view(x.shape)


def _random_bytes_of(seed):
    return lambda x: _random_bytes(x, seed)


CHANGES = st.sampled_from(
    [
        lambda x: x[None],
        lambda x: x.reshape(-1),
        lambda x: x.sum(),
        lambda x: x[..., :-1] if x.dim() else x,
        lambda x: x[..., :0] if x.dim() else x,
        lambda x: x[:0] if x.dim() else x,
        lambda x: x[:1].expand(x.shape) if x.dim() and len(x) else x,
        lambda x: torch.cat([x, x], -1) if x.dim() else x,
        lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
        lambda x: x.movedim(0, -1) if x.dim() else x,
        lambda x: x.flip(0)[::2] if x.dim() else x,
        lambda x: x.half(),
        lambda x: x.double(),
        lambda x: x.to(torch.uint8),
        lambda x: x.to(torch.int64),
        lambda x: x.to(torch.complex64),
        lambda x: x.to("meta"),
        lambda x: x.to_sparse(),
        lambda x: torch.zeros((), dtype=x.dtype).expand(2**40, 33),
        lambda x: torch.full_like(x, float("nan") if x.is_floating_point() else 255),
    ]
) | st.integers(0, 2**16).map(_random_bytes_of)


def replaced(draw, type, value):
    """Another value for an argument of a schema, mostly of the right type."""
    if isinstance(value, torch.Tensor):
        change = draw(st.none() | CHANGES)
        return value if change is None else change(value.clone())
    if "List" in type:
        sizes = list(value)
        if sizes:
            sizes[draw(st.integers(0, len(sizes) - 1))] = draw(HUGE)
        return draw(st.sampled_from([sizes, sizes[:-1], [*sizes, 3], sizes[::-1], []]))
    if "Tensor" in type:
        return draw(st.none() | st.sampled_from([torch.ones(()), torch.ones(5), torch.ones(2, 5)]))
    if "bool" in type:
        return not value
    if "int" in type:
        return draw(HUGE)
    return draw(FLOATS_IN_SCHEMAS if "float" in type else NAMES_IN_SCHEMAS)


@st.composite
def mutated_calls(draw):
    function, args = draw(st.sampled_from(recorded_calls()))
    args = list(args)
    places = st.integers(0, len(args) - 1)
    for i in draw(st.lists(places, min_size=1, max_size=2, unique=True)):
        args[i] = replaced(draw, str(function._schema.arguments[i].type), args[i])
    return function, args


def _copies(args, device):
    """Tensors of their own, so that what a call writes is not seen by the next."""

    def copy(x):
        if not isinstance(x, torch.Tensor) or x.device.type == "meta" or x.numel() > 2**20:
            return x
        return x.clone().to(device)

    return [copy(value) for value in args]


@DEVICES
@given(call=mutated_calls())
def test_a_mutated_call_is_right_or_refused(device, call):
    function, args = call
    try:
        first = function(*_copies(args, device))
    except CLEAR as error:
        name, text = function._schema.name, str(error).split("\n")[0]
        named = re.search(r"^my_ops\.\w+: \w+: expected .*, got ", text) or name in text
        assert named or "can't allocate memory" in text or "out of memory" in text, text
    else:
        again = function(*_copies(args, device))
        torch.testing.assert_close(first, again, rtol=0, atol=0, equal_nan=True)
        if first is not None:
            assert_fake_agrees(function, tuple(_copies(args, device)), first)
    assert_works(device)
