"""DTensor rules of the FP4 operators: which placements each of them keeps.

The packed bytes and the block scales of an FP4Tensor are DTensors with the same placements, its
amax is replicated: each process quantizes its part with the amax of the whole, so the bytes are
those of the unsharded tensor.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from my_ops._fp4_scales import BLOCK_SIZE
from my_ops.distributed._operands import Dense, Packed, call, local_amax
from my_ops.distributed._placements import product, product_over_rows
from my_ops.ops._fp4_checks import blocks
from my_ops.ops._fp4_training import POINTS

_R = Replicate()


def _rule(name):
    """Decorator: what the operator `name` does where an argument is a DTensor."""

    def register(function):
        def dispatch(cls, operator, types, args, kwargs):
            return function(operator, *args, **(kwargs or {}))

        torch.library.register_torch_dispatch(f"my_ops::{name}", DTensor, dispatch)
        return function

    return register


def _same(dims, operands=1):
    """Options: results and operands replicated, or all sharded in one of the dimensions."""
    return [(p,) * (1 + operands) for p in (_R, *map(Shard, dims))]


@_rule("fp4_amax")
def _amax(operator, x):
    options = [*_same([]), *((Partial("max"), Shard(d)) for d in range(x.ndim))]
    amax = call("fp4_quantize", operator, [Dense("x", x)], options, [[]])
    return amax.redistribute(placements=[_R] * amax.device_mesh.ndim)


@_rule("fp4_quantize")
def _quantize(operator, x, amax, format, scale_mode, rounding, seed, block2d=False):
    def quantize(x):
        return operator(x, local_amax(amax), format, scale_mode, rounding, seed, block2d)

    # Stochastic rounding counts elements from the first one of the whole tensor.
    options = _same([] if rounding == "stochastic" else range(x.ndim))
    operands = [Dense("x", x, format, tiles=block2d)]
    return call("fp4_quantize", quantize, operands, options, _packed_shapes(x, format))


@_rule("fp4_hadamard")
def _hadamard(operator, x):
    *rows, K = x.shape
    shape = [*rows, blocks(K, POINTS) * POINTS]
    return call("fp4_hadamard", operator, [Dense("x", x)], _same(range(x.ndim - 1)), [shape])


@_rule("fp4_quantize_two_level")
def _quantize_two_level(operator, x, scale_mode, rounding, seed, block2d=False):
    amax = torch.ops.my_ops.fp4_amax(x)
    quantize = torch.ops.my_ops.fp4_quantize
    return *quantize(x, amax, "nvfp4", scale_mode, rounding, seed, block2d), amax


@_rule("fp4_quantize_stochastic")
def _quantize_stochastic(operator, x, amax, format, seed):
    def quantize(x):
        return operator(x, local_amax(amax), format, seed)

    return call("fp4_quantize", quantize, [Dense("x", x)], _same([]), _packed_shapes(x, format))


def _packed_shapes(x, format):
    *rows, K = x.shape
    return [[*rows, blocks(K, size)] for size in (2, BLOCK_SIZE[format])]


@_rule("fp4_dequantize")
def _dequantize(operator, packed, scale, amax, K, format, dtype):
    def dequantize(packed, scale, amax, shape, transposed):
        return operator(packed, scale, amax, shape[-1], format, dtype)

    shape = [*packed.shape[:-1], K]
    q = Packed("q", packed, scale, amax, shape, False, format)
    return call("fp4_dequantize", dequantize, [q], _same(range(len(shape))), [shape])


@_rule("rmsnorm_fp4_quantize")
def _rmsnorm_fp4_quantize(operator, x, weight, eps, weight_offset, amax, format, scale_mode):
    def quantize(x, weight):
        return operator(x, weight, eps, weight_offset, local_amax(amax), format, scale_mode)

    options = [(p, p, _R) for p, _ in _same(range(x.ndim - 1))]
    operands = [Dense("x", x), Dense("weight", weight)]
    shapes = _packed_shapes(x, format)
    return call("rmsnorm_fp4_quantize", quantize, operands, options, shapes)


@_rule("fp4_linear_forward")
def _linear(operator, x, packed, scale, amax, shape, transposed, bias, format):
    def linear(x, packed, scale, amax, shape, transposed, bias):
        return operator(x, packed, scale, amax, shape, transposed, bias, format)

    # The bias follows the result: sharded with its columns, a term of its sum.
    last = x.ndim - 1
    options = [
        (y, *others, Shard(0) if y == Shard(last) else y if y.is_partial() else _R)
        for y, *others in product(x.ndim, kept=0, contracted=1)
    ]
    weight = Packed("weight", packed, scale, amax, shape, transposed, format)
    operands = [Dense("x", x), weight, Dense("bias", bias)]
    return call("fp4_linear", linear, operands, options, [[*x.shape[:-1], shape[0]]])


@_rule("fp4_matmul_forward")
def _matmul(operator, *arguments):
    *parts, format, dtype = arguments
    a, b = Packed("a", *parts[:5], format), Packed("b", *parts[5:], format)
    options = product(len(a.stored_shape), kept=1, contracted=0)
    shape = [*a.shape[:-1], b.shape[1]]
    return call("fp4_matmul", _with(operator, format, dtype), [a, b], options, [shape])


@_rule("fp4_matmul_backward_A")
def _matmul_backward_A(operator, grad, *arguments):
    *parts, format, dtype = arguments
    operands = [Dense("grad", grad), Packed("b", *parts, format)]
    options = product(grad.ndim, kept=0, contracted=1)
    shape = [*grad.shape[:-1], operands[1].shape[0]]
    return call("fp4_matmul_backward_A", _with(operator, format, dtype), operands, options, [shape])


@_rule("fp4_matmul_backward_B")
def _matmul_backward_B(operator, *arguments):
    *parts, grad, format, dtype = arguments
    operands = [Packed("a", *parts, format), Dense("grad", grad)]
    options = product_over_rows(grad.ndim)
    shape = [operands[0].shape[-1], grad.shape[-1]]
    return call("fp4_matmul_backward_B", _with(operator, format, dtype), operands, options, [shape])


def _with(operator, *options):
    return lambda *operands: operator(*operands, *options)
