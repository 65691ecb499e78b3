"""backward="fp4" of fp4_matmul: gradients by FP4 products, as a GPU with FP4 cores computes them.

    grad_A = q(grad) q(B)^T        along N; q(B) in tiles of 16 x 16 is also what forward takes
    grad_B = q(A)^T q(grad)        along M; rht: both times the 16-point Hadamard transform before

A product of FP4 operands needs their blocks along the dimension it sums over, so each operand is
quantized twice, and what is kept for backward is the second one. grad is rounded stochastically:
its mean over the seeds is grad, but for the 256 steps of the random numbers and where the largest
element of a block is cut off (in NVFP4, whose block scales round to the nearest, by 1/17 at most).
"""

import torch
from torch import Tensor

from my_ops._errors import check_bool, raise_expected
from my_ops._fp4_handlers import values
from my_ops.fp4_tensor import FP4Tensor
from my_ops.ops._fp4_checks import blocks, check_x, signed_seed
from my_ops.ops._fp4_factor import (
    PackedFactor,
    quantized,
    rows,
    save_factors,
    saved_factors,
    tensor_amax,
    without_gradient,
)
from my_ops.ops._fp4_first_order import first_order
from my_ops.ops._function import check, distinct, fast_apply, needs_function, raw_operator
from my_ops.ops.fp4 import quantize_fake

_forward = raw_operator("fp4_matmul_forward")
_hadamard = raw_operator("fp4_hadamard")
_quantize = raw_operator("fp4_quantize")

POINTS = 16  # of the Hadamard transform


def check_options(
    op: str, format: str, backward: str, block2d: bool | None, rht: bool, seed
) -> bool:
    """Returns block2d, or what it is by default."""
    if not isinstance(backward, str) or backward not in ("exact", "fp4"):
        raise_expected(op, "backward", "'exact' or 'fp4'", repr(backward))
    check_bool(op, "rht", rht)
    if block2d is not None:
        check_bool(op, "block2d", block2d)
    if backward == "exact":
        for name, value, default in ("rht", rht, False), ("seed", seed, None):
            if value is not default:
                raise_expected(op, name, f"{default} with backward='exact'", value)
    if block2d and format == "mxfp4":
        raise_expected(op, "block2d", "False, but for 'nvfp4'", "True for 'mxfp4'")
    return (backward == "fp4" and format == "nvfp4") if block2d is None else block2d


def seed_tensor(seed) -> Tensor:
    """A seed on the CPU, where reading it makes nobody wait: the given one, or the next of torch.

    Drawn in forward, so that a recomputed forward (activation checkpointing restores the state of
    the generator) has the same.
    """
    if seed is None:
        return torch.randint(2**63 - 1, (), dtype=torch.int64, device="cpu")
    if not isinstance(seed, Tensor):
        seed = signed_seed(seed, "fp4_matmul")
        return torch.full((), seed, dtype=torch.int64, device="cpu")
    if seed.dtype != torch.int64 or seed.numel() != 1 or seed.device.type != "cpu":
        got = f"{seed.numel()} of {seed.dtype} on {seed.device}"
        raise_expected("fp4_matmul", "seed", "an integer or one int64 element on the CPU", got)
    return seed.detach().clone().view(())


def fp4_training_matmul(
    a: Tensor, b: Tensor, left: PackedFactor, right: PackedFactor, format: str, dtype: str,
    block2d: bool, rht: bool, seed: Tensor,
) -> Tensor:  # fmt: skip
    """The product of left and right; its gradients are those of a and b."""
    a_along_M = b_along_N = PackedFactor(None, None, None, (), False)  # type: ignore[arg-type]
    if needs_function(b):
        columns = rows(_values(a)).t()
        if rht:
            a_along_M = quantized(*_transformed(columns, format), format)
        else:
            a_along_M = quantized(columns, left.amax, format)
    if needs_function(a):
        if block2d and not isinstance(b, FP4Tensor):  # the same codes both ways
            b_along_N = right.t()
        else:
            b_along_N = quantized(_values(b), right.amax, format, block2d).t()
    factors = distinct(a, b, seed, *left, *right, *a_along_M, *b_along_N)
    return FP4TrainingFunction.apply(*factors, rht, format, dtype)


@fast_apply("fp4_matmul")
class FP4TrainingFunction(torch.autograd.Function):
    """As FP4MatMulFunction, with the factors of the gradients after those of the product."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a, b, seed, *others):
        *factors, _, format, dtype = others
        return _forward(*factors[:10], format, dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, seed, *factors, ctx.rht, ctx.format, _ = inputs
        save_factors(ctx, a, b, factors[10:15], factors[15:], seed)

    @staticmethod
    def backward(ctx, grad):
        left, right, (seed, *anchors) = saved_factors(ctx)
        arguments = *left, *right, ctx.format, *ctx.dtypes, *ctx.needs_input_grad[:2], ctx.rht
        gradients = first_order(_gradients, anchors, grad, seed, *arguments)
        return *gradients, *(None,) * 24


def _gradients(
    grad: Tensor, seed: Tensor,
    a_packed, a_scale, a_amax, a_shape, a_transposed,
    b_packed, b_scale, b_amax, b_shape, b_transposed,
    format: str, a_dtype: str, b_dtype: str, need_a: bool, need_b: bool, rht: bool,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """The two products, of a along M and b along N."""
    grad_a = grad_b = None
    amax = tensor_amax(grad, format) if need_a or not rht else None
    if need_a:
        along_N = *_quantize_stochastic(grad, amax, format, seed), amax, grad.shape, False
        right = b_packed, b_scale, b_amax, b_shape, b_transposed
        grad_a = _forward(*along_N, *right, format, a_dtype)
    if need_b:
        columns = rows(grad).t()
        columns, amax = _transformed(columns, format) if rht else (columns, amax)
        # Other random numbers than those of grad_A, whatever seeds other calls have (from 0 on).
        along_M = *_quantize_stochastic(columns, amax, format, ~seed), amax, columns.shape[::-1]
        left = a_packed, a_scale, a_amax, a_shape, a_transposed
        grad_b = _forward(*left, *along_M, True, format, b_dtype)
    return grad_a, grad_b


def hadamard(x: Tensor) -> Tensor:
    """x [..., K] times an orthogonal matrix in groups of 16, in float32; K is filled up with zeros.

    Each group of a row becomes x diag(s) H / 4, H Sylvester's matrix, s fixed signs. It spreads an
    outlier over its group, and cancels in a product along K of two that are transformed.
    """
    return _hadamard(x)


def _transformed(x: Tensor, format: str) -> tuple[Tensor, Tensor | None]:
    x = hadamard(x)
    return x, tensor_amax(x, format)


def _values(x: Tensor) -> Tensor:
    return values(x, torch.float32) if isinstance(x, FP4Tensor) else without_gradient(x)


def _scale_mode(format: str) -> str:
    """In MXFP4 that in which no element exceeds the largest code, which would cut it off."""
    return "rceil" if format == "mxfp4" else "floor"


@torch.library.register_fake("my_ops::fp4_hadamard")
def _(x):
    check_x("fp4_hadamard", x)
    *leading, K = x.shape
    return x.new_empty((*leading, blocks(K, POINTS) * POINTS), dtype=torch.float32)


# With a tensor as the seed, unlike fp4_quantize, so that a compiled graph does not hold a number.
@torch.library.custom_op(
    "my_ops::fp4_quantize_stochastic",
    mutates_args=(),
    schema="(Tensor x, Tensor? amax, str format, Tensor seed) -> (Tensor, Tensor)",
)
def _quantize_stochastic(x, amax, format, seed):
    return _quantize(x, amax, format, _scale_mode(format), "stochastic", seed.item(), False)


@_quantize_stochastic.register_fake
def _(x, amax, format, seed):
    op = "fp4_quantize_stochastic"
    check(seed.dtype == torch.int64, op, "seed", "int64", seed.dtype)
    return quantize_fake(x, amax, format, _scale_mode(format), "stochastic", 0, op=op)
