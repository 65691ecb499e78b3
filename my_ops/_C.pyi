"""Kernel-level functions of my_ops. They record no gradients; use my_ops.<op>."""

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

# The operators of torch.ops.my_ops by name, called through the dispatcher without boxing.
ops: ModuleType

def fp4_amax(x: Tensor) -> Tensor: ...
def fp4_quantize(
    x: Tensor,
    amax: Tensor | None = None,
    format: str = "nvfp4",
    scale_mode: str = "floor",
    rounding: str = "nearest",
    seed: int = 0,
    block2d: bool = False,
) -> tuple[Tensor, Tensor]: ...
def fp4_dequantize(
    packed: Tensor,
    scale: Tensor,
    amax: Tensor | None,
    K: int,
    format: str = "nvfp4",
    dtype: str = "float32",
) -> Tensor: ...
def matmul(A: Tensor, B: Tensor, precision: str = "ieee") -> Tensor: ...
def matmul_backward_A(grad: Tensor, B: Tensor, precision: str = "ieee") -> Tensor: ...
def matmul_backward_B(A: Tensor, grad: Tensor, precision: str = "ieee") -> Tensor: ...
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
) -> Tensor: ...
def fp4_matmul_backward_A(
    grad: Tensor,
    b_packed: Tensor,
    b_scale: Tensor,
    b_amax: Tensor | None,
    b_shape: Sequence[int],
    b_transposed: bool,
    format: str = "nvfp4",
    dtype: str = "float32",
) -> Tensor: ...
def fp4_matmul_backward_B(
    a_packed: Tensor,
    a_scale: Tensor,
    a_amax: Tensor | None,
    a_shape: Sequence[int],
    a_transposed: bool,
    grad: Tensor,
    format: str = "nvfp4",
    dtype: str = "float32",
) -> Tensor: ...
def fp4_linear(
    x: Tensor,
    weight_packed: Tensor,
    weight_scale: Tensor,
    weight_amax: Tensor | None,
    weight_shape: Sequence[int],
    weight_transposed: bool = False,
    bias: Tensor | None = None,
    format: str = "nvfp4",
) -> Tensor: ...
def square(x: Tensor) -> Tensor: ...
def square_(x: Tensor) -> Tensor: ...
def rmsnorm(x: Tensor, weight: Tensor | None = None, eps: float | None = 1e-6) -> Tensor: ...
def rmsnorm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float | None = 1e-6
) -> tuple[Tensor, Tensor]: ...
