"""Modules with the operators of my_ops, and how a model gets them.

RMSNorm is torch.nn.RMSNorm over one dimension with eps=1e-6 by default, FP4Linear an nn.Linear with
an FP4 weight; patch() puts them in the place of a model's own.
"""

from my_ops.nn._patch import PatchReport, patch, unpatch
from my_ops.nn._state_dict import flatten_state_dict, unflatten_state_dict
from my_ops.nn.fp4_linear import FP4Linear
from my_ops.nn.rmsnorm import RMSNorm

__all__ = [
    "FP4Linear",
    "PatchReport",
    "RMSNorm",
    "flatten_state_dict",
    "patch",
    "unflatten_state_dict",
    "unpatch",
]
