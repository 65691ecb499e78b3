"""Every operator of my_ops on samples, for the tests of what PyTorch does with operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import my_ops

K = 64


class Operator(NamedTuple):
    """A function of dense tensors: `inputs` that are [rows, K], then one of each shape in `others`.

    It returns a tensor or two.
    """

    function: Callable
    others: tuple[tuple[int, ...], ...] = ()
    inputs: int = 1

    def rows(self, rows: int, device="cpu", requires_grad=False) -> list[Tensor]:
        return [
            torch.randn(rows, K, device=device, requires_grad=requires_grad)
            for _ in range(self.inputs)
        ]

    def sample(self, rows: int, device="cpu") -> list[Tensor]:
        """All arguments; each needs a gradient."""
        others = [torch.randn(shape, device=device, requires_grad=True) for shape in self.others]
        return self.rows(rows, device, requires_grad=True) + others


def _square_(x):
    return my_ops.square_(x.clone())


def _fp4_quantize(x):
    return my_ops.fp4_quantize(x).dequantize()


def _rmsnorm_fp4_quantize(x, weight):
    return my_ops.rmsnorm_fp4_quantize(x, weight, format="mxfp4").dequantize()


def _fp4_linear(x, weight, bias):
    return my_ops.fp4_linear(x, my_ops.fp4_quantize(weight), bias)


OPERATORS = {
    "square": Operator(my_ops.square),
    "square_": Operator(_square_),
    "rmsnorm": Operator(my_ops.rmsnorm, ((K,),)),
    "add_rmsnorm": Operator(my_ops.add_rmsnorm, ((K,),), inputs=2),
    "matmul": Operator(my_ops.matmul, ((K, K),)),
    "fp4_quantize": Operator(_fp4_quantize),
    "rmsnorm_fp4_quantize": Operator(_rmsnorm_fp4_quantize, ((K,),)),
    "fp4_matmul": Operator(my_ops.fp4_matmul, ((K, K),)),
    "fp4_linear": Operator(_fp4_linear, ((K, K), (K,))),
}


class Module(torch.nn.Module):
    """An operator as a module: its `others` are parameters."""

    def __init__(self, name: str, device="cpu"):
        super().__init__()
        self.function, shapes, self.inputs = OPERATORS[name]
        others = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
        self.others = torch.nn.ParameterList(others)

    def forward(self, *rows):
        others = tuple(self.others)  # Dynamo of torch 2.11 cannot unpack a ParameterList
        return self.function(*rows, *others)


class Block(torch.nn.Module):
    """Every operator, each between two linear layers, without a bias that Inductor would add."""

    def __init__(self, device="cpu"):
        super().__init__()
        self.operators = torch.nn.ModuleList(Module(name, device) for name in OPERATORS)
        self.linears = torch.nn.ModuleList(
            torch.nn.Linear(K, K, bias=False, device=device) for _ in range(len(OPERATORS) + 1)
        )

    def forward(self, x):
        *linears, last = self.linears
        for linear, operator in zip(linears, self.operators, strict=True):
            x = as_list(operator(*[linear(x)] * operator.inputs))[0]
        return last(x)


def as_list(outputs) -> list[Tensor]:
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def cotangents(outputs) -> list[Tensor]:
    """Not all alike, so that a gradient read otherwise than it lies in memory shows."""
    return [torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y) for y in outputs]


def forward_and_backward(function, inputs, parameters=()) -> list[Tensor]:
    """The outputs, and the gradients of all that needs one."""
    outputs = as_list(function(*inputs))
    wanted = [t for t in (*inputs, *parameters) if t.requires_grad]
    return outputs + list(torch.autograd.grad(outputs, wanted, cotangents(outputs)))


def assert_same_bits(actual, expected):
    for a, e in zip(actual, expected, strict=True):
        assert (a.dtype, a.device, a.stride()) == (e.dtype, e.device, e.stride())
        assert torch.equal(a, e)
