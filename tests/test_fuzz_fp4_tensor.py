"""Random chains of PyTorch's functions on an FP4Tensor: what its values give, or a refusal."""

import copy
import io

import torch
from fuzz_strategies import DEVICES, FP4_DTYPES, samples
from hypothesis import given
from hypothesis import strategies as st

import my_ops

SIZES = st.integers(0, 4) | st.sampled_from([16, 33])


def reloaded(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def dim(x, d):
    return d % max(1, x.dim())


# (of x and three small numbers) -> a tensor, or an error of torch's
STEPS = {
    "t": lambda x, i, j, k: x.t(),
    "mT": lambda x, i, j, k: x.mT if x.dim() else x,
    "transpose": lambda x, i, j, k: x.transpose(dim(x, i), dim(x, j)),
    "permute": lambda x, i, j, k: x.permute(*sorted(range(x.dim()), key=lambda d: (d + i) % 3)),
    "slice": lambda x, i, j, k: x[j:k],
    "slice with a step": lambda x, i, j, k: x[j :: k + 1],
    "slice of columns": lambda x, i, j, k: x[..., j:k],
    "narrow": lambda x, i, j, k: x.narrow(dim(x, i), j, k),
    "select": lambda x, i, j, k: x.select(dim(x, i), j),
    "unbind": lambda x, i, j, k: x.unbind(dim(x, i))[j],
    "split": lambda x, i, j, k: x.split(k + 1, dim(x, i))[j],
    "chunk": lambda x, i, j, k: x.chunk(k + 1, dim(x, i))[j],
    "index": lambda x, i, j, k: x[torch.tensor([j, k, j], device=x.device)],
    "index_select": lambda x, i, j, k: x.index_select(
        dim(x, i), torch.tensor([k, j], device=x.device)
    ),
    "mask": lambda x, i, j, k: x[torch.arange(len(x), device=x.device) % (k + 1) == 0],
    "clone": lambda x, i, j, k: x.clone(),
    "contiguous": lambda x, i, j, k: x.contiguous(),
    "detach": lambda x, i, j, k: x.detach(),
    "float": lambda x, i, j, k: x.to([torch.float32, torch.float64, torch.float32][i]),
    "to": lambda x, i, j, k: x.to(x.device, copy=True),
    "view": lambda x, i, j, k: x.view(x.shape),
    "reshape": lambda x, i, j, k: x.reshape(-1),
    "flatten": lambda x, i, j, k: x.flatten(0, min(1, x.dim() - 1)),
    "unsqueeze": lambda x, i, j, k: x.unsqueeze(i),
    "squeeze": lambda x, i, j, k: x.squeeze(),
    "expand": lambda x, i, j, k: x.expand(2, *x.shape),
    "flip": lambda x, i, j, k: x.flip(dim(x, i)),
    "abs": lambda x, i, j, k: x.abs(),
    "cat": lambda x, i, j, k: torch.cat([x, x], dim(x, i)),
    "stack": lambda x, i, j, k: torch.stack([x, x], i),
    "matmul": lambda x, i, j, k: x.mT.float() @ x.float(),
    "linear": lambda x, i, j, k: torch.nn.functional.linear(x.new_ones(3, x.shape[-1]), x),
    "where": lambda x, i, j, k: torch.where(x > 0, x, 0),
    "deepcopy": lambda x, i, j, k: copy.deepcopy(x),
    "save and load": lambda x, i, j, k: reloaded(x),
    "parameter": lambda x, i, j, k: torch.nn.Parameter(x, requires_grad=False),
}
CHAINS = st.lists(
    st.tuples(st.sampled_from(list(STEPS)), *[st.integers(0, 2)] * 3), min_size=1, max_size=5
)


def values(x):
    return x.dequantize(torch.float32) if isinstance(x, my_ops.FP4Tensor) else x


def follow(x, step):
    name, *numbers = step
    try:
        return STEPS[name](x, *numbers), None
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return None, str(error)


@DEVICES
@given(
    sample=samples(st.lists(SIZES, min_size=1, max_size=3), [torch.float32]),
    format=st.sampled_from(["nvfp4", "mxfp4"]),
    axis=st.sampled_from([-1, 0]),
    chain=CHAINS,
)
def test_a_chain_of_functions(device, sample, format, axis, chain):
    x = sample.tensor(device)
    q = my_ops.fp4_quantize(x, format, axis=axis if x.dim() == 2 else -1)
    dense = q.dequantize()
    for step in chain:
        (q, refusal), (expected, error) = follow(q, step), follow(dense, step)
        if refusal is not None:
            assert error is not None or "my_ops.FP4Tensor: " in refusal, (step, refusal)
            return
        assert error is None, (step, error)
        assert (q.shape, q.dtype, q.device) == (expected.shape, expected.dtype, expected.device)
        tolerance = 1e-5 if step[0] in ("matmul", "linear") else 0
        torch.testing.assert_close(values(q), expected, rtol=tolerance, atol=tolerance)
        dense = expected


WRITES = {
    "copy_": lambda x, y: x.copy_(y),
    "rows": lambda x, y: x[:1].copy_(y[:1]),
    "set rows": lambda x, y: x.__setitem__(slice(None, 2), y[:2]),
    "set element": lambda x, y: x.__setitem__((0,) * x.dim(), 1.0),
    "add_": lambda x, y: x.add_(y),
    "zero_": lambda x, y: x.zero_(),
    "fill_ of a row": lambda x, y: x[0].fill_(2.0),
    "transposed copy": lambda x, y: x.mT.copy_(y.mT),
    "swap": lambda x, y: torch.utils.swap_tensors(x, y.clone()),
    "data": lambda x, y: setattr(x, "data", y.clone()),
}


@DEVICES
@given(
    pair=st.lists(SIZES.filter(bool), min_size=1, max_size=3).flatmap(
        lambda shape: st.tuples(*[samples(tuple(shape), FP4_DTYPES)] * 2)
    ),
    format=st.sampled_from(["nvfp4", "mxfp4"]),
    level=st.booleans(),
    write=st.sampled_from(list(WRITES)),
    dense=st.booleans(),
)
def test_a_write(device, pair, format, level, write, dense):
    """It does what it does to the values, or raises and changes nothing."""
    q, other = (
        my_ops.fp4_quantize(s.tensor(device), format, two_level=level).to(torch.float32)
        for s in pair
    )
    before, expected = q.dequantize(), q.dequantize()
    source = other.dequantize() if dense else other
    refusal = None
    try:
        WRITES[write](q, source)
    except (RuntimeError, TypeError, IndexError) as error:
        refusal = str(error)
    if refusal is None:
        WRITES[write](expected, other.dequantize())
        assert torch.equal(values(q), expected)
    else:
        assert "my_ops.FP4Tensor: " in refusal or write in ("swap", "transposed copy")
        assert torch.equal(q.dequantize(), before)
