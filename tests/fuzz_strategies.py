"""What hypothesis draws for the fuzz tests: tensors of any shape, dtype, memory layout and values.

A Sample is drawn, not a tensor: it is short to print, and makes its tensor on any device.
"""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
FP4_DTYPES = [torch.float32, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]

# Whole and ragged packs, warps and FP4 blocks.
LENGTHS = st.integers(0, 9) | st.sampled_from([15, 16, 17, 31, 32, 33, 48, 64, 65, 130])


@dataclass(frozen=True)
class Layout:
    """Where the elements of a tensor lie. What lies between them is NaN, or 77 as an integer."""

    order: tuple[int, ...]  # of the dimensions in memory, outermost first
    steps: tuple[int, ...]
    starts: tuple[int, ...]
    expanded: tuple[bool, ...]  # with stride 0: all elements are the first one
    offset: int  # of the storage, in elements

    def of(self, x):
        shape = x.shape
        for dim in itertools.compress(range(x.dim()), self.expanded):
            x = x.narrow(dim, 0, min(1, x.shape[dim]))
        room = [n * step + a for n, step, a in zip(x.shape, self.steps, self.starts, strict=True)]
        room = [room[dim] for dim in self.order]
        between = 77 if not (x.is_floating_point() or x.is_complex()) else math.nan
        flat = torch.full((self.offset + math.prod(room),), between, dtype=x.dtype, device=x.device)
        memory = flat[self.offset :].view(room).permute(_inverse(self.order))
        view = memory[tuple(map(slice, self.starts, memory.shape, self.steps))]
        return view.copy_(x).expand(shape)


def _inverse(order):
    return sorted(range(len(order)), key=order.__getitem__)


@dataclass(frozen=True)
class Sample:
    shape: tuple[int, ...]
    dtype: torch.dtype
    values: str
    seed: int
    layout: Layout | None = None

    def tensor(self, device):
        x = self._dense().to(device)
        return x if self.layout is None else self.layout.of(x)

    def _dense(self):
        random = torch.Generator().manual_seed(self.seed)
        if self.dtype == torch.bool:
            return torch.randint(0, 2, self.shape, generator=random) > 0
        if not (self.dtype.is_floating_point or self.dtype.is_complex):
            return torch.randint(-200, 200, self.shape, generator=random).to(self.dtype)
        if self.values == "integers":
            return torch.randint(-4, 5, self.shape, generator=random).to(self.dtype)
        if self.values == "extremes":
            choices = _extremes(self.dtype)
            return choices[torch.randint(0, len(choices), self.shape, generator=random)]
        wide = torch.complex128 if self.dtype.is_complex else torch.float64
        return torch.randn(self.shape, dtype=wide, generator=random).to(self.dtype)


def _extremes(dtype):
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    magnitudes = [0, smallest, info.smallest_normal, 1e-3, 1, 6, 448, info.max, math.inf, math.nan]
    return torch.tensor([sign * m for m in magnitudes for sign in (1, -1)], dtype=dtype)


@st.composite
def layouts(draw, dims):
    if draw(st.booleans()):
        return None
    each = lambda values: tuple(draw(values) for _ in range(dims))  # noqa: E731
    return Layout(
        order=tuple(draw(st.permutations(range(dims)))),
        steps=each(st.integers(1, 3)),
        starts=each(st.integers(0, 2)),
        expanded=each(st.sampled_from([False, False, False, True])),
        offset=draw(st.integers(0, 3)),
    )


@st.composite
def samples(draw, shape, dtypes, values=("normal", "integers")):
    """`shape`: the sizes, or a strategy for them. `dtypes`: what to choose from."""
    shape = tuple(shape if isinstance(shape, tuple | list) else draw(shape))
    return Sample(
        shape,
        dtype=draw(st.sampled_from(dtypes)),
        values=draw(st.sampled_from(values)),
        seed=draw(st.integers(0, 2**16)),
        layout=draw(layouts(len(shape))),
    )


def shapes(min_dims=0, max_dims=4, last=LENGTHS):
    """A few elements in each dimension, more in the last."""
    leading = st.lists(st.integers(0, 4), min_size=max(0, min_dims - 1), max_size=max_dims - 1)
    shape = st.tuples(leading, last).map(lambda sizes: (*sizes[0], sizes[1]))
    return shape if min_dims else st.just(()) | shape


def assert_fake_agrees(function, args, results):
    """What the fakes of operators say of `function(*args)`, traced without data, is true."""
    mode = FakeTensorMode()
    fakes = tree_map_only(torch.Tensor, mode.from_tensor, args)
    with mode, torch.no_grad():
        faked = function(*fakes)
    pairs = zip(tree_leaves(faked), tree_leaves(results), strict=True)
    assert all(_metadata(fake) == _metadata(real) for fake, real in pairs)


def _metadata(x):
    strides = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if x.numel() else []
    return x.shape, x.dtype, x.device, strides
