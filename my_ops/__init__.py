"""my_ops: custom CUDA and CPU operators for PyTorch, forward and backward, eager and compiled.

square, square_                 x * x
rmsnorm, add_rmsnorm            RMS normalization, with a residual added first
matmul                          a @ b in true float32, or by tensor cores at float32's accuracy
fp4_quantize, fp4_dequantize    NVFP4 and MXFP4, as an FP4Tensor
fp4_report, fp4_swizzle_scales  what a tensor loses in FP4; its scales as Blackwell reads them
rmsnorm_fp4_quantize            rmsnorm and fp4_quantize in one pass
fp4_matmul, fp4_linear          products of which both operands, or the weight, are FP4
nn.RMSNorm, nn.FP4Linear        the same as modules

torch.ops.my_ops holds the operators, my_ops._C the kernels without gradients.
"""

from my_ops import _load, nn  # noqa: F401  (_load checks the build and loads _C, hence first)
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops import _fp4_vmap  # noqa: F401  (registers)
from my_ops.ops.fp4 import fp4_dequantize, fp4_quantize
from my_ops.ops.fp4_linear import fp4_linear
from my_ops.ops.fp4_matmul import fp4_matmul
from my_ops.ops.fp4_report import fp4_report
from my_ops.ops.fp4_swizzle import fp4_swizzle_scales, fp4_unswizzle_scales
from my_ops.ops.matmul import matmul
from my_ops.ops.rmsnorm import add_rmsnorm, rmsnorm
from my_ops.ops.rmsnorm_fp4 import rmsnorm_fp4_quantize
from my_ops.ops.square import square, square_

__version__ = "0.1.0"

__all__ = [
    "FP4Tensor",
    "add_rmsnorm",
    "fp4_dequantize",
    "fp4_linear",
    "fp4_matmul",
    "fp4_quantize",
    "fp4_report",
    "fp4_swizzle_scales",
    "fp4_unswizzle_scales",
    "matmul",
    "nn",
    "rmsnorm",
    "rmsnorm_fp4_quantize",
    "square",
    "square_",
]
