"""The vmap rules of the FP4 operators: rows of one linear layer, else a call for each element."""

from functools import partial

import torch

from my_ops.ops import _fp4_training  # noqa: F401  (defines fp4_quantize_stochastic)
from my_ops.ops._function import map_each

# Not raw_operator: a rule is called without the arguments that have their default.
_ops = torch.ops.my_ops
_linear = _ops.fp4_linear_forward.default


@torch.library.register_vmap("my_ops::fp4_linear_forward")
def _(info, in_dims, x, *others):
    if any(isinstance(dim, int) for dim in in_dims[1:]):
        return map_each(_linear, info, in_dims, x, *others)
    return _linear(x.movedim(in_dims[0], 0), *others), 0


@torch.library.register_vmap("my_ops::fp4_hadamard")
def _(info, in_dims, x):
    return _ops.fp4_hadamard(x.movedim(in_dims[0], 0)), 0


for _name in (
    "fp4_amax",
    "fp4_quantize",
    "fp4_quantize_two_level",
    "fp4_quantize_stochastic",
    "fp4_dequantize",
    "fp4_matmul_forward",
    "fp4_matmul_pair_forward",
    "fp4_matmul_backward_A",
    "fp4_matmul_backward_B",
    "fp4_matmul_pair_backward",
):
    _rule = partial(map_each, getattr(_ops, _name).default)
    torch.library.register_vmap(f"my_ops::{_name}", _rule)
