"""my_ops: custom CUDA and CPU operators for PyTorch, forward and backward, eager and compiled."""

from my_ops import _load  # noqa: F401  (checks the build, then loads _C: before the operators)
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops.fp4 import fp4_dequantize, fp4_quantize
from my_ops.ops.square import square, square_

__version__ = "0.1.0"

__all__ = [
    "FP4Tensor",
    "fp4_dequantize",
    "fp4_quantize",
    "square",
    "square_",
]
