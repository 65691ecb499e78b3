"""Kernel-level functions of my_ops. They record no gradients; use my_ops.<op>."""

from torch import Tensor

def fp4_amax(x: Tensor) -> Tensor: ...
def fp4_quantize(
    x: Tensor,
    amax: Tensor | None = None,
    format: str = "nvfp4",
    scale_mode: str = "floor",
    rounding: str = "nearest",
    seed: int = 0,
) -> tuple[Tensor, Tensor]: ...
def fp4_dequantize(
    packed: Tensor,
    scale: Tensor,
    amax: Tensor | None,
    K: int,
    format: str = "nvfp4",
    dtype: str = "float32",
) -> Tensor: ...
def square(x: Tensor) -> Tensor: ...
def square_(x: Tensor) -> Tensor: ...
def rmsnorm(x: Tensor, weight: Tensor | None = None, eps: float | None = 1e-6) -> Tensor: ...
def rmsnorm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, eps: float | None = 1e-6
) -> tuple[Tensor, Tensor]: ...
