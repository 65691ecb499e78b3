"""What PyTorch's functions do with an FP4Tensor that stays quantized.

They move, copy, transpose it, take whole rows, multiply by it. A handler returns NotImplemented
where it does not apply.
"""

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from my_ops._dense import DTYPE_NAMES, FP4_DTYPES
from my_ops._errors import raise_expected
from my_ops.ops._function import raw_operator

_aten = torch.ops.aten
_SetExcluded = torch._C._SetExcludeDispatchKeyGuard
_ADInplaceOrView = torch._C.DispatchKey.ADInplaceOrView
_dequantize = raw_operator("fp4_dequantize")
_linear = raw_operator("fp4_linear_forward")


def values(q, dtype: torch.dtype | None = None, K: int | None = None) -> Tensor:
    """The values in `dtype`, or q's own, below autograd.

    K: q.K, where the caller has it: a Function gets it as an argument, since Dynamo cannot read q's
    symbolic shape in there.
    """
    K = q.K if K is None else K
    x = _dequantize(q.packed, q.scale_bytes, q.amax, K, q.format, DTYPE_NAMES[dtype or q.dtype])
    return x.mT if q.transposed else x


def refuse_data(q, value) -> None:
    if not _is_quantized(value) and value.dtype not in FP4_DTYPES:  # of a module's double()
        raise_expected("FP4Tensor", "dtype", "float32, float16 or bfloat16", value.dtype)
    raise_expected("FP4Tensor", "data", "copy_() or torch.utils.swap_tensors()", "an assignment")


def _share(q):
    return q._replace()


def _clone(q, memory_format=None):
    # The bytes of a transposed tensor have no order in which it would be contiguous.
    if memory_format is torch.contiguous_format and not q.is_contiguous():
        return NotImplemented
    return q._map(torch.clone)


def _empty_like(q, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    if dtype not in (None, q.dtype):
        return NotImplemented
    return q._map(lambda t: torch.empty_like(t, device=device, pin_memory=pin_memory))


def _to_copy(q, dtype=None, memory_format=None, **options):
    if dtype not in (None, *FP4_DTYPES):
        return NotImplemented
    return q._map(lambda t: _aten._to_copy(t, **options), dtype=dtype or q.dtype)


def _copy_(q, source, non_blocking=False):
    alike = type(q) is type(source) and (q.shape, q.format, q.transposed, q.amax is None) == (
        source.shape,
        source.format,
        source.transposed,
        source.amax is None,
    )
    if not alike:
        return NotImplemented
    names = q._tensor_names()
    if q.partial:
        if not _same_amax(q.amax, source.amax):
            expected = (
                "the amax of the tensor that these rows are part of (by value on the CPU only)"
            )
            got = (
                "another, which would change its other rows; 'mxfp4' and two_level=False have none"
            )
            raise_expected("FP4Tensor", "copy_", expected, got)
        names.remove("amax")
    for name in names:
        getattr(q, name).copy_(getattr(source, name), non_blocking)
    return q


def _same_amax(a, b):
    on_cpu = type(a) is type(b) is Tensor and a.device.type == b.device.type == "cpu"
    return a is b or (on_cpu and torch.equal(a, b))


def _transpose(q, *dims):
    dims = dims or (0, 1)
    if q.dim() < 2 or sorted(d % q.dim() for d in dims) != [q.dim() - 2, q.dim() - 1]:
        return NotImplemented
    return q._replace(transposed=not q.transposed)


def _permute(q, dims):
    return _transpose(q, *dims) if [d % 2 for d in dims] == [1, 0] else NotImplemented


def _rows(overload):
    """A handler for slice, select and the like, along a dimension that is not quantized."""

    def handler(q, dim=0, *args, **kwargs):
        dim %= q.dim()
        quantized = q.dim() - (2 if q.transposed else 1)
        if dim == quantized:
            return NotImplemented
        stored = q.dim() - 2 if dim > quantized else dim
        packed, scale_bytes = (
            overload(t, stored, *args, **kwargs) for t in (q.packed, q.scale_bytes)
        )
        if q.amax is None:
            amax, partial = None, False
        elif not overload.is_view:
            amax, partial = q.amax.clone(), False
        else:
            amax, all_rows = q.amax, statically_known_true(packed.numel() == q.packed.numel())
            partial = q.partial or not all_rows
        # Of a matrix that loses its rows, the quantized dimension is the last again.
        transposed = q.transposed and not (packed.dim() < q.dim() and stored == q.dim() - 2)
        changes = {"packed": packed, "scale_bytes": scale_bytes, "amax": amax, "partial": partial}
        return q._replace(**changes, transposed=transposed)

    return handler


def _unbind(q, dim=0):
    rows = [HANDLERS[_aten.select.int](q, dim, i) for i in range(q.shape[dim])]
    return NotImplemented if NotImplemented in rows else rows


def _index(q, indices):
    if q.transposed or len(indices) != 1 or q.dim() < 2:
        return NotImplemented
    index = indices[0]
    if index.dtype in (torch.bool, torch.uint8) and index.dim() >= q.dim():
        return NotImplemented  # a mask of elements, not of rows
    packed, scale_bytes = (_aten.index(t, indices) for t in (q.packed, q.scale_bytes))
    amax = None if q.amax is None else q.amax.clone()
    return q._replace(packed=packed, scale_bytes=scale_bytes, amax=amax, partial=False)


def _embedding(q, indices, *args):
    return NotImplemented if q.transposed or q.dim() < 2 else values(_index(q, [indices]))


def _is_quantized(tensor):
    return hasattr(tensor, "scale_bytes")


def _mm(x, q, bias=None):
    """x @ q from the packed bytes: what F.linear and x @ w.t() come to, and their gradients."""
    if _is_quantized(x) or not _is_quantized(q) or x.dtype not in FP4_DTYPES:
        return NotImplemented
    if x.dim() != 2 or q.dim() != 2 or x.shape[1] != q.shape[0]:
        return NotImplemented  # torch says so
    shape = q.shape[::-1]
    return _linear(x, q.packed, q.scale_bytes, q.amax, shape, not q.transposed, bias, q.format)


def _addmm(bias, x, q, beta=1, alpha=1):
    if _is_quantized(bias) or bias.shape != q.shape[1:] or (beta, alpha) != (1, 1):
        return NotImplemented
    return _mm(x, q, bias)


HANDLERS = {
    _aten.detach.default: _share,
    _aten.alias.default: _share,
    _aten.clone.default: _clone,
    _aten._to_copy.default: _to_copy,
    _aten.copy_.default: _copy_,
    _aten.empty_like.default: _empty_like,
    _aten.t.default: _transpose,
    _aten.transpose.int: _transpose,
    _aten.permute.default: _permute,
    _aten.slice.Tensor: _rows(_aten.slice.Tensor),
    _aten.select.int: _rows(_aten.select.int),
    _aten.unbind.int: _unbind,
    _aten.index_select.default: _rows(_aten.index_select.default),
    _aten.index.Tensor: _index,
    _aten.embedding.default: _embedding,
    _aten.mm.default: _mm,
    _aten.addmm.default: _addmm,
}


def handle(handler, func, args, kwargs):
    """What `handler` makes of a call of `func`."""
    # ADInplaceOrView: a write counts as one for autograd, which has saved the bytes, and a view as
    # one of them.
    with _SetExcluded(_ADInplaceOrView, False):
        if torch.is_inference_mode_enabled() and func.is_view and not args[0].is_inference():
            # A view of a tensor from outside of inference mode is no inference tensor.
            with torch.inference_mode(False):
                return handler(*args, **kwargs)
        return handler(*args, **kwargs)
