"""FP4Tensor: what fp4_quantize returns. A tensor subclass that holds codes and block scales.

It has the shape and dtype of the tensor that it stands for. PyTorch functions take it: those that
only move it (detach, clone, to, t, rows by index) keep it quantized, all others see its values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from my_ops import _fp4_exchange
from my_ops._dense import DTYPE_NAMES, FP4_DTYPES, dense_strides
from my_ops._errors import raise_expected
from my_ops._fp4_handlers import HANDLERS, handle, refuse_data, values
from my_ops._fp4_scales import BLOCK_SIZE, SCALE_DTYPE


class FP4Tensor(Tensor):
    """A tensor in NVFP4 or MXFP4.

    ``FP4Tensor(packed, scale_bytes, amax, format, K, dtype)`` makes one of bytes that are there:
    ``scale_bytes`` is uint8, the bits of ``scale``; what the parts hold is checked when they are
    used. RuntimeError for another format or dtype, parts that are no tensors, a K that is no size.

    Attributes:
        packed: uint8 ``[..., ceil(K / 2)]``, two E2M1 codes a byte, the even element in the low
            nibble. K is the quantized dimension: the last, of ``t()`` the one before it.
        scale: ``[..., ceil(K / 16)]`` of float8_e4m3fn (NVFP4) or ``[..., ceil(K / 32)]`` of
            float8_e8m0fnu (MXFP4), a view of the stored bytes.
        amax: the largest magnitude of the tensor, from which NVFP4 with two levels derives its
            tensor scale: one float32 element, or None.
        format: ``"nvfp4"`` or ``"mxfp4"``.
        transposed: whether the quantized dimension is the last but one, as in ``q.t()``.
        partial: whether this is a view of some rows of a tensor, which owns ``amax``.
        shape, dtype: those of the tensor that it stands for.
        nbytes: what it really takes.

    ``copy_`` takes an FP4Tensor of the same format. Rows (``q[2:4] = rows``) share the amax of
    their tensor: they take rows with the same amax, or without one, and raise for others.

    Its gradient is a plain tensor. Therefore a compiled function that gradients flow through cannot
    return one with its gradient (torch expects the gradient of an output to be of its class):
    return ``q.detach()``, or the dequantized tensor.
    """

    packed: Tensor
    scale_bytes: Tensor
    amax: Tensor | None  # type: ignore[assignment]  # a method of Tensor
    format: str
    transposed: bool
    partial: bool

    @staticmethod
    def __new__(cls, packed, scale_bytes, amax, format, K, dtype, transposed=False, partial=False):
        if not isinstance(packed, Tensor):
            raise_expected("FP4Tensor", "packed", "a tensor", type(packed).__name__)
        if not isinstance(scale_bytes, Tensor):
            raise_expected("FP4Tensor", "scale_bytes", "a tensor", type(scale_bytes).__name__)
        if format not in BLOCK_SIZE:
            raise_expected("FP4Tensor", "format", "'nvfp4' or 'mxfp4'", repr(format))
        if dtype not in FP4_DTYPES:
            raise_expected("FP4Tensor", "dtype", "float32, float16 or bfloat16", dtype)
        shape = [*packed.shape[:-1], K]
        strides = None  # of a dense tensor
        try:
            if transposed:
                strides = dense_strides(shape)
                shape[-2:], strides[-2:] = shape[:-3:-1], strides[:-3:-1]
            return torch.Tensor._make_wrapper_subclass(
                cls, shape, strides=strides, dtype=dtype, device=packed.device, requires_grad=False
            )
        except (RuntimeError, TypeError):  # asked beforehand it would cost every call
            if isinstance(K, torch.SymInt) or (isinstance(K, int) and K >= 0):
                raise
            raise_expected("FP4Tensor", "K", "an integer from 0 on", repr(K))

    def __init__(
        self, packed, scale_bytes, amax, format, K, dtype, transposed=False, partial=False
    ):
        self.packed = packed
        self.scale_bytes = scale_bytes
        self.amax = amax
        self.format = format
        self.transposed = transposed
        self.partial = partial

    @property
    def scale(self) -> Tensor:
        return self.scale_bytes.view(SCALE_DTYPE[self.format])

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        held = [getattr(self, name) for name in self._tensor_names()]
        return sum(t.numel() * t.itemsize for t in held)  # .nbytes has no symbolic sizes

    @property
    def K(self) -> int:
        """The length of the quantized dimension."""
        return self.shape[-2 if self.transposed else -1]

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The values, in ``dtype`` or the tensor's own; see :func:`my_ops.fp4_dequantize`."""
        from my_ops.ops.fp4 import fp4_dequantize

        return fp4_dequantize(self, dtype)

    # ---- Checkpoints: the tensor scale by either side ----
    def to_compressed_tensors(self) -> dict[str, Tensor]:
        """What compressed-tensors (vLLM) stores for a weight: nvfp4- or mxfp4-pack-quantized.

        Its ``weight_global_scale`` (NVFP4) is on the encode side: 2688 / amax. RuntimeError for
        rows of an odd number of elements, and for a transposed tensor.
        """
        return _fp4_exchange.store(_fp4_exchange.COMPRESSED_TENSORS, self)

    @classmethod
    def from_compressed_tensors(
        cls, tensors: dict[str, Tensor], dtype: torch.dtype = torch.bfloat16
    ) -> FP4Tensor:
        """The weight of which ``tensors`` holds what :meth:`to_compressed_tensors` returns.

        RuntimeError where its ``weight_packed`` or ``weight_scale`` is no tensor.
        """
        return cls(*_fp4_exchange.load(_fp4_exchange.COMPRESSED_TENSORS, tensors), dtype)

    def to_modelopt(self) -> dict[str, Tensor]:
        """What ModelOpt (TensorRT-LLM) stores for a weight.

        Its ``weight_scale_2`` (NVFP4) is on the decode side: amax / 2688.
        """
        return _fp4_exchange.store(_fp4_exchange.MODELOPT, self)

    @classmethod
    def from_modelopt(
        cls, tensors: dict[str, Tensor], dtype: torch.dtype = torch.bfloat16
    ) -> FP4Tensor:
        """The weight of which ``tensors`` holds what :meth:`to_modelopt` returns.

        RuntimeError where its ``weight`` or ``weight_scale`` is no tensor.
        """
        return cls(*_fp4_exchange.load(_fp4_exchange.MODELOPT, tensors), dtype)

    def __repr__(self, *, tensor_contents=None) -> str:  # type: ignore[override]
        gradient = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"{type(self).__name__}(shape={tuple(self.shape)}, format='{self.format}', "
            f"dtype={self.dtype}, device='{self.device}', nbytes={self.nbytes}{gradient})"
        )

    def __dlpack__(self, **kwargs):
        got = "a quantized one; call dequantize() first, or exchange packed and scale_bytes"
        raise_expected("FP4Tensor", "__dlpack__", "a dense tensor", got)

    def share_memory_(self) -> FP4Tensor:
        for name in self._tensor_names():
            getattr(self, name).share_memory_()
        return self

    # ---- How torch.compile, pickle and deepcopy take it apart and put it together ----

    def _tensor_names(self) -> list[str]:
        return ["packed", "scale_bytes"] + (["amax"] if self.amax is not None else [])

    def __tensor_flatten__(self):
        return self._tensor_names(), (self.format, self.dtype, self.transposed, self.partial)

    @staticmethod
    def __tensor_unflatten__(inner, context, outer_size, outer_stride):
        format, dtype, transposed, partial = context
        K = outer_size[-2 if transposed else -1]
        tensors = inner["packed"], inner["scale_bytes"], inner.get("amax")
        return FP4Tensor(*tensors, format, K, dtype, transposed, partial)

    def _stable_hash_for_caching(self) -> str:  # of the cache of torch.compile
        held = [getattr(self, name) for name in self._tensor_names()]
        layout = [(t.shape, t.stride(), t.dtype, t.device) for t in held]
        return repr((self.__tensor_flatten__(), self.shape, layout, self.requires_grad))

    def _replace(self, **changes) -> FP4Tensor:
        names = "packed", "scale_bytes", "amax", "format", "K", "dtype", "transposed", "partial"
        return FP4Tensor(*(changes.get(name, getattr(self, name)) for name in names))

    def _map(self, function, **changes) -> FP4Tensor:
        """The same tensor with copies by `function` of all that it holds."""
        held = {name: function(getattr(self, name)) for name in self._tensor_names()}
        return self._replace(**held, **changes, partial=False)

    def __reduce_ex__(self, protocol):
        parameter = isinstance(self, torch.nn.Parameter)
        name = DTYPE_NAMES[self.dtype]
        state = self.packed, self.scale_bytes, self.amax, self.format, self.K, name
        flags = self.transposed, parameter, self.requires_grad, self.partial
        return _rebuild_fp4_tensor, (*state, *flags)

    def __deepcopy__(self, memo):
        if id(self) not in memo:
            rebuild, state = self._map(torch.clone).__reduce_ex__(2)
            parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = rebuild(*state[:-3], parameter, self.requires_grad)
        return memo[id(self)]

    # ---- PyTorch's functions ----

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    data = property(Tensor.detach, refuse_data)  # torch's setter would keep the old bytes

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        handler = HANDLERS.get(func)
        if handler is not None:
            result = handle(handler, func, args, kwargs)
            if result is not NotImplemented:
                return result
        # Inference mode brings functions here that otherwise come in parts: to(), linear().
        result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        given = {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
        given |= kwargs
        for argument in func._schema.arguments:
            held = tree_leaves(given.get(argument.name))
            if argument.alias_info and any(isinstance(value, FP4Tensor) for value in held):
                does = "writes to" if argument.alias_info.is_write else "is a view of"
                expected = "a function that takes values or whole rows"
                got = f"one that {does} a quantized tensor; call dequantize() first"
                raise_expected("FP4Tensor", func, expected, got)
        args, kwargs = tree_map_only(FP4Tensor, values, (args, kwargs))
        return func(*args, **kwargs)


def _rebuild_fp4_tensor(
    packed, scale_bytes, amax, format, K, dtype, transposed, parameter, requires_grad, partial=False
):
    state = packed, scale_bytes, amax, format, K, getattr(torch, dtype), transposed, partial
    q = FP4Tensor(*state)
    q = torch.nn.Parameter(q, requires_grad=False) if parameter else q
    return q.requires_grad_(requires_grad)


torch.serialization.add_safe_globals([_rebuild_fp4_tensor])
