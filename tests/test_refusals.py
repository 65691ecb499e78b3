"""Tensors that no operator takes are named in one sentence; those on "meta" have no memory."""

from fractions import Fraction
from functools import partial

import numpy
import pytest
import torch
from helpers import message
from operators import OPERATORS

import my_ops

KINDS = {
    "sparse_coo": lambda t: t.to_sparse(),
    "sparse_csr": lambda t: t.to_sparse_csr(),
    "nested": lambda t: torch.nested.nested_tensor([t, t]),
    "nested jagged": lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
    "quantized": lambda t: torch.quantize_per_tensor(t.cpu(), 0.1, 0, torch.qint8),
}
ARGUMENTS = {
    "square": ["x"],
    "square_": ["x"],
    "rmsnorm": ["x"],
    "add_rmsnorm": ["x", "residual"],
    "matmul": ["a", "b"],
    "fp4_quantize": ["x"],
    "rmsnorm_fp4_quantize": ["x"],
    "fp4_matmul": ["a", "b"],
    "fp4_linear": ["x"],
}


@pytest.mark.filterwarnings("ignore")  # prototypes, and quantized tensors on their way out
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_not_dense(device, name, kind):
    inputs = [t.detach() for t in OPERATORS[name].sample(6, device)]
    for i, argument in enumerate(ARGUMENTS[name]):
        wrong = [*inputs[:i], KINDS[kind](inputs[i]), *inputs[i + 1 :]]
        assert message(OPERATORS[name].function, *wrong) == (
            f"my_ops.{name}: {argument}: expected a dense tensor, got one that is "
            + ("torch." * kind.startswith("sparse") + kind).removesuffix(" jagged")
        )


@pytest.mark.parametrize("name", [n for n in OPERATORS if n not in ("square", "square_")])
def test_complex(device, name):
    inputs = [t.detach().to(torch.complex64) for t in OPERATORS[name].sample(6, device)]
    text = message(OPERATORS[name].function, *inputs)
    assert text.startswith("my_ops.") and "expected" in text and "omplex" in text


@pytest.mark.parametrize("name", OPERATORS)
def test_meta(name):
    """Shapes, dtypes and strides, without memory; mixed with memory it is refused."""
    operator = OPERATORS[name]
    inputs = [t.detach() for t in operator.sample(6)]
    expected = operator.function(*inputs)
    actual = operator.function(*(t.to("meta") for t in inputs))
    pairs = [(actual, expected)] if torch.is_tensor(actual) else zip(actual, expected, strict=True)
    for a, e in pairs:
        assert a.is_meta
        assert (a.shape, a.dtype, a.stride()) == (e.shape, e.dtype, e.stride())
    for i in range(1, len(inputs)):
        mixed = [t.to("meta") if j == i else t for j, t in enumerate(inputs)]
        assert "expected the device of" in message(operator.function, *mixed)


SHAPES = [(1, 5, 1), (5, 1, 1), (1, 1, 5), (2, 1, 3, 1), (1,), (0, 1), (1, 0, 3), (4, 1, 6), (4, 6)]


@pytest.mark.parametrize("shape", SHAPES)
def test_square_states_every_stride(device, shape):
    """Those of dimensions of one element too, of which eager never asks and a graph may."""
    x = torch.randn(shape, device=device)
    larger = torch.randn([size + 1 for size in shape], device=device)
    sliced = larger[tuple(slice(0, size) for size in shape)]
    views = [
        x,
        sliced,
        x[..., None].expand(*shape, 2),
        torch.randn(*shape, 2, device=device)[..., 0],
    ]
    if len(shape) == 4:
        views.append(x.to(memory_format=torch.channels_last))
    views += [view.transpose(0, -1) for view in views]
    for view in views:
        meta = torch.empty_strided(view.shape, view.stride(), device="meta")
        assert my_ops.square(meta).stride() == my_ops.square(view).stride()
        backward = torch.ops.my_ops.square_backward
        assert backward(meta, meta).stride() == backward(view, view).stride()


FLAGS = {
    "fp4_quantize": ("two_level", "block2d"),
    "fp4_matmul": ("rht", "block2d"),
    "rmsnorm_fp4_quantize": ("two_level",),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_are_no_bools(device, name):
    """A string is true, whatever it says, and a tensor on a GPU would be waited for."""
    inputs = [t.detach() for t in OPERATORS[name].sample(6, device)]
    values = "False", 0, torch.tensor(True), numpy.bool_(True), numpy.ones(1)
    types = "str", "int", "torch.Tensor", type(values[3]).__name__, "numpy.ndarray"
    for options in ({"backward": "exact"}, {"backward": "fp4"}) if name == "fp4_matmul" else ({},):
        for flag in FLAGS[name]:
            for value, kind in zip(values, types, strict=True):
                text = message(getattr(my_ops, name), *inputs, **options, **{flag: value})
                assert text.startswith(f"my_ops.{name}: {flag}: expected a bool, got ")
                assert text.endswith(kind)


@pytest.mark.parametrize("options", [{}, {"format": "mxfp4"}])
@pytest.mark.parametrize("name", ["rmsnorm", "add_rmsnorm", "rmsnorm_fp4_quantize"])
def test_numbers_of_rmsnorm(device, name, options):
    """Of a tensor the gradient would be lost; whatever else is a number is taken."""
    options = options if name == "rmsnorm_fp4_quantize" else {}
    x, weight = torch.randn(4, 32, device=device), torch.ones(32, device=device)
    function = partial(getattr(my_ops, name), *[x] * (1 + (name == "add_rmsnorm")), weight)
    refused = torch.nn.Parameter(torch.ones(())), torch.ones(1), numpy.ones(()), "1", 1j
    for argument, expected in ("eps", "a number or None"), ("weight_offset", "a number"):
        for value in refused:
            assert message(function, **options, **{argument: value}, error=TypeError) == (
                f"my_ops.{name}: {argument}: expected {expected}, got {type(value).__name__}"
            )
        text = message(function, **options, **{argument: 10**400}, error=TypeError)
        assert f"{argument}: expected a number that a double can hold, got an int" in text
        for value in (1, True, numpy.float32(1), numpy.int64(1), Fraction(1)):
            results = [function(**options, **{argument: v}) for v in (value, 1.0)]
            one, other = [torch.cat(r) if isinstance(r, tuple) else r for r in results]
            assert torch.equal(*(getattr(r, "packed", r) for r in (one, other)))
    function(**options, eps=None)


def test_the_one_pass_refuses_as_the_two_do(device):
    """By the same class, with what came named by its type: a tensor is not printed."""
    x = torch.randn(4, 32, device=device)
    for format in ("nvfp4", "mxfp4"):
        for error, argument, value, got in (
            (TypeError, "weight", 3, "a tensor or None, got int"),
            (TypeError, "weight_offset", None, "a number, got NoneType"),
            (RuntimeError, "scale_mode", x, "a string, got Tensor"),
            (RuntimeError, "weight", x[0].to_sparse(), "a dense tensor, got one that is torch.spa"),
        ):
            options = {"format": format, argument: value}
            text = message(my_ops.rmsnorm_fp4_quantize, x, **options, error=error)
            assert f": {argument}: expected {got}" in text


@pytest.mark.parametrize("name", ["fp4_quantize", "rmsnorm_fp4_quantize"])
def test_amax_that_is_not_dense(device, name):
    x = torch.randn(4, 32, device=device)
    for shape in ((), (1,)):
        text = message(getattr(my_ops, name), x, amax=torch.ones(shape, device=device).to_sparse())
        assert text == (
            f"my_ops.{name}: amax: expected a dense tensor, got one that is torch.sparse_coo"
        )


def test_square_inplace_of_what_cannot_be_written(device):
    x = torch.randn(6, 32, device=device)
    leaf = x.clone().requires_grad_()
    with torch.inference_mode():
        inference = x.clone()
    for wrong in (leaf, leaf[0].expand(6, 32), inference):
        assert message(my_ops.square_, wrong).startswith(
            "my_ops.square_: x: expected a tensor that can be written in place, got one that torch "
        )
    assert message(my_ops.square_, my_ops.fp4_quantize(x)) == (
        "my_ops.square_: x: expected a dense tensor, got a quantized one; call dequantize() first"
    )
