"""Kernel-level functions of my_ops. They record no gradients; use my_ops.<op>.

packed, scale: an FP4 operand as fp4_quantize returns it, uint8 [..., ceil(K / 2)] and
[..., ceil(K / 16)] (NVFP4) or [..., ceil(K / 32)] (MXFP4); amax: one float32, or None. A shape is
logical; a transposed operand is stored as its transpose.
"""

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

# The operators of torch.ops.my_ops by name, called through the dispatcher without boxing.
ops: ModuleType

def fp4_amax(x: Tensor) -> Tensor:
    """The largest magnitude in x, of any shape, without NaN: one float32, without dimensions."""

def fp4_quantize(
    x: Tensor,
    amax: Tensor | None = None,
    format: str = "nvfp4",
    scale_mode: str = "floor",
    rounding: str = "nearest",
    seed: int = 0,
    block2d: bool = False,
) -> tuple[Tensor, Tensor]:
    """x [..., K] -> packed, scale; without amax NVFP4 has block scales alone."""

def fp4_dequantize(
    packed: Tensor,
    scale: Tensor,
    amax: Tensor | None,
    K: int,
    format: str = "nvfp4",
    dtype: str = "float32",
) -> Tensor:
    """packed, scale -> the values [..., K]."""

def matmul(A: Tensor, B: Tensor, precision: str = "ieee") -> Tensor:
    """A [..., M, K], B [K, N] -> A B [..., M, N]."""

def matmul_backward_A(grad: Tensor, B: Tensor, precision: str = "ieee") -> Tensor:
    """grad [..., M, N], B [K, N] -> grad B^T [..., M, K]."""

def matmul_backward_B(A: Tensor, grad: Tensor, precision: str = "ieee") -> Tensor:
    """A [..., M, K], grad [..., M, N] -> A^T grad [K, N], summed over all leading dimensions."""

def fp4_matmul(
    a_packed: Tensor,
    a_scale: Tensor,
    a_amax: Tensor | None,
    a_shape: Sequence[int],
    a_transposed: bool,
    b_packed: Tensor,
    b_scale: Tensor,
    b_amax: Tensor | None,
    b_shape: Sequence[int],
    b_transposed: bool,
    format: str = "nvfp4",
    dtype: str = "float32",
) -> Tensor:
    """a [..., M, K], b [K, N], both FP4 -> a b [..., M, N]."""

def fp4_matmul_backward_A(
    grad: Tensor,
    b_packed: Tensor,
    b_scale: Tensor,
    b_amax: Tensor | None,
    b_shape: Sequence[int],
    b_transposed: bool,
    format: str = "nvfp4",
    dtype: str = "float32",
) -> Tensor:
    """grad [..., M, N], b [K, N] in FP4 -> grad b^T [..., M, K]."""

def fp4_matmul_backward_B(
    a_packed: Tensor,
    a_scale: Tensor,
    a_amax: Tensor | None,
    a_shape: Sequence[int],
    a_transposed: bool,
    grad: Tensor,
    format: str = "nvfp4",
    dtype: str = "float32",
) -> Tensor:
    """a [..., M, K] in FP4, grad [..., M, N] -> a^T grad [K, N]."""

def fp4_linear(
    x: Tensor,
    weight_packed: Tensor,
    weight_scale: Tensor,
    weight_amax: Tensor | None,
    weight_shape: Sequence[int],
    weight_transposed: bool = False,
    bias: Tensor | None = None,
    format: str = "nvfp4",
) -> Tensor:
    """x [..., K], weight [N, K] in FP4, bias [N] -> x weight^T + bias [..., N], the dtype of x."""

def square(x: Tensor) -> Tensor:
    """x of any shape -> x * x, the shape and memory format of x."""

def square_(x: Tensor) -> Tensor:
    """Replaces x, of any shape, by x * x and returns it."""

def rmsnorm(x: Tensor, weight: Tensor | None = None, eps: float | None = 1e-6) -> Tensor:
    """x [..., H], weight [H] -> x / sqrt(mean(x^2) + eps) * weight [..., H], contiguous."""

def rmsnorm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float | None = 1e-6
) -> tuple[Tensor, Tensor]:
    """grad and x [..., H], weight [H] -> grad_x [..., H], grad_weight [H]."""
