"""Tensors that no operator takes are named in one sentence; those on "meta" have no memory."""

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
