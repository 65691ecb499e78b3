"""my_ops.nn.patch and unpatch: the RMSNorm and Linear modules of a model become those of my_ops."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from my_ops._dense import FP4_DTYPES
from my_ops._errors import check_bool, raise_expected
from my_ops.nn.fp4_linear import FP4Linear
from my_ops.nn.rmsnorm import RMSNorm
from my_ops.ops._fp4_checks import check_format

_EPS_NAMES = ("variance_epsilon", "eps", "epsilon")


@dataclasses.dataclass
class PatchReport:
    """What :func:`patch` did, by the names of the modules.

    Attributes:
        replaced: the new module's description.
        skipped: why a module that looked like a candidate was left alone.
    """

    replaced: dict[str, str] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)} modules, skipped {len(self.skipped)}"]
        for mark, modules in (("+", self.replaced), ("-", self.skipped)):
            lines += [f"{mark} {name}: {text}" for name, text in modules.items()]
        return "\n".join(lines)


def patch(
    model: nn.Module,
    *,
    rmsnorm: bool = True,
    linear: str | None = None,
    format: str = "nvfp4",
    skip: Iterable[str] = ("lm_head",),
    keep_linears: bool = True,
) -> PatchReport:
    """Replaces modules of ``model`` by those of my_ops, in place.

    A module with hooks is left alone, since they would be lost: one's own, and those by which
    spectral_norm, weight_norm and prune of ``torch.nn.utils`` work. So is one whose ``forward`` was
    replaced, as accelerate does for a ``device_map``.

    Args:
        model: any module, of Hugging Face or your own.
        rmsnorm: replace modules whose class is named ``...RMSNorm`` by :class:`my_ops.nn.RMSNorm`
            with the same parameter. Each is called on a sample first: what it computes decides the
            order of its casts and whether its weight is an offset from one. A module that computes
            something else is left alone.
        linear: ``"fp4"`` replaces each ``nn.Linear`` by an :class:`my_ops.nn.FP4Linear`, whose
            weight is quantized and frozen; None leaves them.
        format: of the quantized weights, ``"nvfp4"`` or ``"mxfp4"``.
        skip: modules to leave alone, by their full name or its last part. Weights that two modules
            share, as tied embeddings do, are left alone too.
        keep_linears: keep the replaced linears, so that :func:`unpatch` can bring them back. False
            frees their memory.

    Returns:
        A :class:`PatchReport`; printed, it lists every module.

    Raises:
        ValueError: for another ``linear``, or a ``model`` that is patched already.
        RuntimeError: for another ``format``.
        TypeError: for a ``model`` that is no module, names in ``skip`` that are no strings, or a
            ``rmsnorm`` or ``keep_linears`` that is no bool.
    """
    if linear not in (None, "fp4"):
        raise_expected("nn.patch", "linear", "None or 'fp4'", repr(linear), ValueError)
    if not isinstance(model, nn.Module):
        raise_expected("nn.patch", "model", "a torch.nn.Module", type(model).__name__, TypeError)
    if hasattr(model, "_my_ops_originals"):
        raise ValueError("my_ops.nn.patch: model: expected a model not patched yet (unpatch it)")
    check_format("nn.patch", format)
    check_bool("nn.patch", "rmsnorm", rmsnorm, TypeError)
    check_bool("nn.patch", "keep_linears", keep_linears, TypeError)
    skip = _names(skip)
    report, originals, replacements = PatchReport(), {}, {}
    shared = _shared_weights(model)
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if not name:
            continue
        is_norm = rmsnorm and type(module).__name__.endswith("RMSNorm")
        is_linear = linear == "fp4" and type(module) is nn.Linear
        if not (is_norm or is_linear) or isinstance(module, RMSNorm):
            continue
        if not skip.isdisjoint((name, name.rpartition(".")[2])):
            report.skipped[name] = "named in skip"
        elif is_linear and module.weight in shared:
            report.skipped[name] = "shares its weight with another module"
        elif _has_hooks(module):
            report.skipped[name] = "it has hooks"
        elif "forward" in vars(module):
            report.skipped[name] = "its forward was replaced"
        else:
            if module not in replacements:
                replacements[module] = (
                    _fp4_linear(module, format) if is_linear else _rmsnorm(module)
                )
            new = replacements[module]
            if isinstance(new, str):
                report.skipped[name] = new
            else:
                _set_module(model, name, new)
                originals[name] = module if is_norm or keep_linears else None
                report.replaced[name] = repr(new)
    model._my_ops_originals = originals  # type: ignore[assignment]
    return report


def unpatch(model: nn.Module) -> None:
    """Brings back the modules that :func:`patch` replaced.

    A norm keeps its parameter, with all training that it had since. A linear has the bias of now
    and the weight that it had before it was quantized, on the device and in the dtype where the
    quantized one is now. That weight does not change with the quantized one: after a
    ``load_state_dict`` in between, load the state again. Hooks of the new modules go with them.

    Args:
        model: what :func:`patch` was called with.

    Raises:
        ValueError: for a model that is not patched, whose linears were not kept, or in which
            another module, or none, is where patch put one. The model is then as it was.
    """
    originals = getattr(model, "_my_ops_originals", None)
    if originals is None:
        raise ValueError("my_ops.nn.unpatch: model: expected one that my_ops.nn.patch changed")
    gone = [name for name, original in originals.items() if original is None]
    if gone:
        got = f"one without the weights of {', '.join(gone)}"
        raise_expected("nn.unpatch", "model", "one patched with keep_linears=True", got, ValueError)
    replacements = {name: _replacement(model, name, old) for name, old in originals.items()}
    for name, original in originals.items():
        new = replacements[name]
        original.train(new.training)
        if isinstance(new, RMSNorm):
            original.register_parameter("weight", new.weight)
        else:
            original.bias = None  # the new one's has its own dtype
            original.to(new.weight.device, new.weight.dtype)
            original.bias = new.bias
        _set_module(model, name, original)
    del model._my_ops_originals


def _names(skip) -> set[str]:
    names = [skip] if isinstance(skip, str) or not isinstance(skip, Iterable) else list(skip)
    if not all(isinstance(name, str) for name in names):
        raise_expected("nn.patch", "skip", "names of modules", repr(skip), TypeError)
    return set(names)


def _has_hooks(module: nn.Module) -> bool:
    return any(hooks for name, hooks in vars(module).items() if name.endswith("_hooks"))


def _replacement(model: nn.Module, name: str, original: nn.Module) -> Any:
    """What patch put in the place of `original`."""
    kind = FP4Linear if isinstance(original, nn.Linear) else RMSNorm
    try:
        new: Any = model.get_submodule(name)
        got = type(new).__name__
    except AttributeError:
        new, got = None, "none"
    if not isinstance(new, kind):
        expected = f"the {kind.__name__} of patch as '{name}'"
        raise_expected("nn.unpatch", "model", expected, got, ValueError)
    return new


def _set_module(model: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)


def _shared_weights(model: nn.Module) -> set[nn.Parameter]:
    owners: dict[nn.Parameter, set[nn.Module]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(parameter, set()).add(module)
    return {parameter for parameter, modules in owners.items() if len(modules) > 1}


def _fp4_linear(linear: nn.Linear, format: str) -> FP4Linear | str:
    if linear.weight.dtype not in FP4_DTYPES:
        return f"its weight is {linear.weight.dtype}"
    return FP4Linear.from_linear(linear, format)


def _rmsnorm(norm: Any) -> RMSNorm | str:
    """The module of my_ops that computes what `norm` does, or why there is none."""
    names = [name for name, _ in norm.named_parameters()]
    eps = [getattr(norm, name) for name in _EPS_NAMES if hasattr(norm, name)]
    if names not in (["weight"], []) or (names and norm.weight.dim() != 1):
        return f"its parameters are {names}, expected one weight [H] or none"
    if not eps or not (eps[0] is None or isinstance(eps[0], float)):
        return f"it has no number named {' or '.join(_EPS_NAMES)}"
    sizes = norm.weight.shape if names else getattr(norm, "normalized_shape", None)
    if sizes is None or len(sizes) != 1:
        return "it does not tell the size of its one dimension"
    for cast_order in ("hf", "torch"):
        for offset in (0.0, 1.0) if names else (0.0,):
            new = RMSNorm(
                sizes, eps[0], bool(names), "meta", weight_offset=offset, cast_order=cast_order
            )
            if _computes_the_same(norm, new):
                new.register_parameter("weight", norm.weight if names else None)
                return new.train(norm.training)
    return "it computes something else"


@torch.no_grad()
def _computes_the_same(norm: Any, new: Any) -> bool:
    """Compares the two on bfloat16 samples, ordinary ones and some small enough to show eps."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, new.dim, generator=generator)
    x[::2] *= 1e-3
    x = x.bfloat16()
    results = []
    for module in (norm, new):
        module = copy.deepcopy(module).to_empty(device="cpu").bfloat16()
        if module.weight is not None:
            generator = torch.Generator().manual_seed(1)
            module.weight.copy_(torch.randn(new.dim, generator=generator))
        try:
            results.append(module(x))
        except (RuntimeError, TypeError, ValueError):
            return False
    expected, actual = results
    if not isinstance(expected, torch.Tensor) or expected.dtype != actual.dtype:
        return False
    # A last bit of 1 / sqrt() can turn a rounding: one in a thousand may be off by one.
    off = (expected != actual).float().mean().item()
    return expected.shape == actual.shape and off < 1e-3
