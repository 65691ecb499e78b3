"""Modules with the operators of my_ops, drop-in for those of torch.nn."""

from my_ops.nn.fp4_linear import FP4Linear
from my_ops.nn.rmsnorm import RMSNorm

__all__ = ["FP4Linear", "RMSNorm"]
