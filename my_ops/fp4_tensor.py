"""FP4Tensor: what fp4_quantize returns. A tensor subclass that holds codes and block scales.

It has the shape and dtype of the tensor that it stands for. PyTorch functions take it: those that
only move it (detach, clone, to, t, rows by index) keep it quantized, all others see its values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

BLOCK_SIZE = {"nvfp4": 16, "mxfp4": 32}
_SCALE_DTYPE = {"nvfp4": torch.float8_e4m3fn, "mxfp4": torch.float8_e8m0fnu}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)

_dequantize = torch.ops.my_ops.fp4_dequantize.default
_linear = torch.ops.my_ops.fp4_linear_forward.default
_aten = torch.ops.aten


class FP4Tensor(Tensor):
    """A tensor in NVFP4 or MXFP4.

    Attributes:
        packed: uint8 ``[..., ceil(K / 2)]``, two E2M1 codes a byte, the even element in the low
            nibble. K is the quantized dimension: the last, of ``t()`` the one before it.
        scale: ``[..., ceil(K / 16)]`` of float8_e4m3fn (NVFP4) or ``[..., ceil(K / 32)]`` of
            float8_e8m0fnu (MXFP4), a view of the stored bytes.
        amax: the largest magnitude of the tensor, from which NVFP4 with two levels derives its
            tensor scale: one float32 element, or None.
        format: ``"nvfp4"`` or ``"mxfp4"``.
        transposed: whether the quantized dimension is the last but one, as in ``q.t()``.
        shape, dtype: those of the tensor that it stands for.
        nbytes: what it really takes.
    """

    packed: Tensor
    scale_bytes: Tensor
    amax: Tensor | None
    format: str
    transposed: bool

    @staticmethod
    def __new__(cls, packed, scale_bytes, amax, format, K, dtype, transposed=False):
        shape = [*packed.shape[:-1], K]
        strides = [1] * len(shape)
        for d in range(len(shape) - 2, -1, -1):
            strides[d] = strides[d + 1] * shape[d + 1]
        if transposed:
            shape[-2:] = shape[:-3:-1]
            strides[-2:] = strides[:-3:-1]
        return torch.Tensor._make_wrapper_subclass(
            cls, shape, strides=strides, dtype=dtype, device=packed.device, requires_grad=False
        )

    def __init__(self, packed, scale_bytes, amax, format, K, dtype, transposed=False):
        self.packed = packed
        self.scale_bytes = scale_bytes
        self.amax = amax
        self.format = format
        self.transposed = transposed

    @property
    def scale(self) -> Tensor:
        return self.scale_bytes.view(_SCALE_DTYPE[self.format])

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self._tensor_names())

    @property
    def K(self) -> int:
        """The length of the quantized dimension."""
        return self.shape[-2 if self.transposed else -1]

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values, in ``dtype`` or the tensor's own; see :func:`my_ops.fp4_dequantize`."""
        from my_ops.ops.fp4 import fp4_dequantize

        return fp4_dequantize(self, dtype)

    def __repr__(self, *, tensor_contents=None) -> str:
        gradient = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"{type(self).__name__}(shape={tuple(self.shape)}, format='{self.format}', "
            f"dtype={self.dtype}, device='{self.device}', nbytes={self.nbytes}{gradient})"
        )

    # ---- How torch.compile, pickle and deepcopy take it apart and put it together ----

    def _tensor_names(self) -> list[str]:
        return ["packed", "scale_bytes"] + (["amax"] if self.amax is not None else [])

    def __tensor_flatten__(self):
        return self._tensor_names(), (self.format, self.dtype, self.transposed)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        format, dtype, transposed = context
        K = outer_size[-2 if transposed else -1]
        tensors = inner["packed"], inner["scale_bytes"], inner.get("amax")
        return FP4Tensor(*tensors, format, K, dtype, transposed)

    def _replace(self, **changes) -> FP4Tensor:
        names = "packed", "scale_bytes", "amax", "format", "K", "dtype", "transposed"
        return FP4Tensor(*(changes.get(name, getattr(self, name)) for name in names))

    def _map(self, function, **changes) -> FP4Tensor:
        """The same tensor with `function` applied to all that it holds."""
        held = {name: function(getattr(self, name)) for name in self._tensor_names()}
        return self._replace(**held, **changes)

    def __reduce_ex__(self, protocol):
        dtype = str(self.dtype).removeprefix("torch.")
        parameter = isinstance(self, torch.nn.Parameter)
        state = self.packed, self.scale_bytes, self.amax, self.format, self.K, dtype
        return _rebuild_fp4_tensor, (*state, self.transposed, parameter, self.requires_grad)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            rebuild, state = self._map(torch.clone).__reduce_ex__(2)
            parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = rebuild(*state[:-2], parameter, self.requires_grad)
        return memo[id(self)]

    # ---- PyTorch's functions ----

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _HANDLERS:
            # In inference mode, a view of a tensor from outside of it is no inference tensor.
            inference = torch.is_inference_mode_enabled()
            with torch.inference_mode(inference and (not func.is_view or args[0].is_inference())):
                result = _HANDLERS[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        # Inference mode brings functions here that otherwise come in parts: to(), linear().
        result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        for argument, schema in zip(args, func._schema.arguments, strict=False):
            if isinstance(argument, FP4Tensor) and schema.alias_info is not None:
                does = "writes to" if schema.alias_info.is_write else "is a view of"
                raise RuntimeError(
                    f"my_ops.FP4Tensor: {func}: expected a function that takes values or whole "
                    f"rows, got one that {does} a quantized tensor; call dequantize() first"
                )
        args, kwargs = tree_map_only(FP4Tensor, _values, (args, kwargs))
        return func(*args, **kwargs)


def _rebuild_fp4_tensor(
    packed, scale_bytes, amax, format, K, dtype, transposed, parameter, requires_grad
):
    q = FP4Tensor(packed, scale_bytes, amax, format, K, getattr(torch, dtype), transposed)
    q = torch.nn.Parameter(q, requires_grad=False) if parameter else q
    return q.requires_grad_(requires_grad)


torch.serialization.add_safe_globals([_rebuild_fp4_tensor])


def _values(q: FP4Tensor) -> Tensor:
    """The values, below autograd."""
    dtype = str(q.dtype).removeprefix("torch.")
    x = _dequantize(q.packed, q.scale_bytes, q.amax, q.K, q.format, dtype)
    return x.mT if q.transposed else x


def _share(q):
    return q._replace()


def _clone(q, memory_format=None):
    return q._map(torch.clone)


def _to_copy(q, dtype=None, memory_format=None, **options):
    if dtype not in (None, *DTYPES):
        return NotImplemented
    return q._map(lambda t: _aten._to_copy(t, **options), dtype=dtype or q.dtype)


def _copy_(q, source, non_blocking=False):
    alike = (
        isinstance(q, FP4Tensor)
        and isinstance(source, FP4Tensor)
        and (q.shape, q.format, q.transposed, q.amax is None)
        == (source.shape, source.format, source.transposed, source.amax is None)
    )
    if not alike:
        return NotImplemented
    for name in q._tensor_names():
        getattr(q, name).copy_(getattr(source, name), non_blocking)
    return q


def _transpose(q, *dims):
    dims = dims or (0, 1)
    if q.dim() < 2 or sorted(d % q.dim() for d in dims) != [q.dim() - 2, q.dim() - 1]:
        return NotImplemented
    return q._replace(transposed=not q.transposed)


def _permute(q, dims):
    return _transpose(q, *dims) if [d % 2 for d in dims] == [1, 0] else NotImplemented


def _rows(function):
    """A handler for slice, select and the like, along a dimension that is not quantized."""

    def handler(q, dim=0, *args, **kwargs):
        dim %= q.dim()
        quantized = q.dim() - (2 if q.transposed else 1)
        if dim == quantized:
            return NotImplemented
        stored = q.dim() - 2 if dim > quantized else dim
        packed, scale_bytes = (
            function(t, stored, *args, **kwargs) for t in (q.packed, q.scale_bytes)
        )
        # Of a matrix that loses its rows, the quantized dimension is the last again.
        transposed = q.transposed and not (packed.dim() < q.dim() and stored == q.dim() - 2)
        return q._replace(packed=packed, scale_bytes=scale_bytes, transposed=transposed)

    return handler


def _index(q, indices):
    if q.transposed or len(indices) != 1 or q.dim() < 2:
        return NotImplemented
    packed, scale_bytes = (_aten.index(t, indices) for t in (q.packed, q.scale_bytes))
    return q._replace(packed=packed, scale_bytes=scale_bytes)


def _embedding(q, indices, *args):
    return NotImplemented if q.transposed else _values(_index(q, [indices]))


def _mm(x, q, bias=None):
    """x @ q from the packed bytes: what F.linear and x @ w.t() come to, and their gradients."""
    if isinstance(x, FP4Tensor) or not isinstance(q, FP4Tensor) or x.dtype not in DTYPES:
        return NotImplemented
    shape = q.shape[::-1]
    return _linear(x, q.packed, q.scale_bytes, q.amax, shape, not q.transposed, bias, q.format)


def _addmm(bias, x, q, beta=1, alpha=1):
    if isinstance(bias, FP4Tensor) or bias.shape != q.shape[1:] or (beta, alpha) != (1, 1):
        return NotImplemented
    return _mm(x, q, bias)


_HANDLERS = {
    _aten.detach.default: _share,
    _aten.alias.default: _share,
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to_copy,
    _aten.copy_.default: _copy_,
    _aten.t.default: _transpose,
    _aten.transpose.int: _transpose,
    _aten.permute.default: _permute,
    _aten.slice.Tensor: _rows(_aten.slice.Tensor),
    _aten.select.int: _rows(_aten.select.int),
    _aten.index_select.default: _rows(_aten.index_select.default),
    _aten.index.Tensor: _index,
    _aten.embedding.default: _embedding,
    _aten.mm.default: _mm,
    _aten.addmm.default: _addmm,
}
