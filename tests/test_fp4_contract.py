"""The FP4 functions with unusual callers: exporters, meta tensors, transforms, wrong arguments."""

from fractions import Fraction

import numpy
import pytest
import torch
from helpers import message
from torch.nn import functional as F

import my_ops
from my_ops import fp4_quantize
from my_ops.nn import FP4Linear
from my_ops.ops.fp4_matmul import PackedFactor


@pytest.fixture
def x(device):
    return torch.randn(3, 8, device=device)


@pytest.fixture
def q(device):
    return fp4_quantize(torch.randn(5, 8, device=device))


# ---- Compiler, export, modules without memory ----


def test_compiled_linear_with_a_dynamic_weight(x, q):
    compiled = torch.compile(my_ops.fp4_linear, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 4):
        x = torch.randn(rows, 8, device=q.device, requires_grad=True)
        y, expected = compiled(x, q), my_ops.fp4_linear(x, q)
        torch.testing.assert_close(y, expected)
        grads = [torch.autograd.grad(z.pow(2).sum(), x)[0] for z in (y, expected)]
        torch.testing.assert_close(*grads)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_export_of_the_module(x, strict, bias):
    layer = FP4Linear(8, 5, bias=bias, device=x.device).requires_grad_(False)
    program = torch.export.export(layer, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), layer(x))
    lowered = program.run_decompositions()
    assert any("my_ops.fp4_linear" in str(node.target) for node in lowered.graph.nodes)
    torch.testing.assert_close(lowered.module()(x), layer(x))


def test_module_without_memory(x):
    layer = FP4Linear(8, 5, device="meta")
    assert layer(x.to("meta")).shape == (3, 5)
    layer = layer.to_empty(device=x.device)
    assert isinstance(layer.weight, my_ops.FP4Tensor)
    assert isinstance(layer.weight, torch.nn.Parameter)
    trained = FP4Linear(8, 5, device=x.device)
    layer.load_state_dict(trained.state_dict())
    assert torch.equal(layer(x), trained(x))


def test_a_float64_checkpoint_is_quantized(x):
    dense, layer = torch.nn.Linear(8, 5, device=x.device), FP4Linear(8, 5, device=x.device)
    layer.load_state_dict(dense.double().state_dict())
    assert torch.equal(layer(x), FP4Linear.from_linear(dense.float())(x))


# ---- FP4Tensor as any tensor ----


def test_a_transposed_tensor_made_contiguous_is_dense(q):
    y = q.dequantize().t()
    for dense, expected in (
        (q.t().contiguous(), y),
        (q.t().reshape(-1), y.reshape(-1)),
        (q.t().flatten(), y.flatten()),
    ):
        assert dense.is_contiguous()
        assert torch.equal(dense, expected)
    assert q.contiguous() is q


def test_an_exchange_by_dlpack_is_refused(q):
    with pytest.raises(RuntimeError, match=r"FP4Tensor: __dlpack__: .* call dequantize\(\)"):
        torch.from_dlpack(q)


def test_embedding_of_one_dimension_says_what_torch_says(device):
    with pytest.raises(RuntimeError, match="must be 2-D"):
        F.embedding(torch.tensor([0], device=device), fp4_quantize(torch.ones(16, device=device)))


def test_shapes_that_do_not_fit_say_what_torch_says(x, q):
    for product in (lambda: x[:, :7] @ q.t(), lambda: F.linear(x[:, :7], q)):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            product()


# ---- Transforms that do not touch what is quantized ----


@pytest.mark.filterwarnings("ignore")
def test_quantizing_inside_of_a_transform_of_something_else(x):
    expected = fp4_quantize(x).dequantize().sum()
    a = torch.ones(2, 3, device=x.device)
    mapped = torch.func.vmap(lambda a: a * fp4_quantize(x).dequantize().sum())
    assert torch.equal(mapped(a), a * expected)
    loss = torch.func.grad(lambda a: (a * fp4_quantize(x).dequantize().sum()).sum())
    assert torch.equal(loss(a), expected.expand(2, 3))


@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_transform_of_quantize_is_refused(x, fullgraph):
    def derivative(x):
        return torch.func.grad(lambda z: fp4_quantize(z).dequantize().sum())(x)

    with pytest.raises(Exception, match=r"transforms, which do not carry|Observed exception"):
        torch.compile(derivative, backend="aot_eager", fullgraph=fullgraph)(x)


# ---- Fakes raise what the operators raise ----


def wrong_calls(x, q):
    """Calls that raise, of raw operators, by what the message says."""
    ops = torch.ops.my_ops
    packed, scale, amax, _, transposed = factor = PackedFactor.of(q)
    right = PackedFactor.of(q.t())
    grad, bias, other = x.new_ones(2, 5), x.new_ones(5), x.new_ones(4)
    names = "nvfp4", "float32"
    mx = "mxfp4", "float32"
    quantize = ops.fp4_quantize, x, None
    return {
        "x: expected float32": (ops.fp4_amax, x.double()),
        "x: expected at least one dimension": (ops.fp4_amax, x[0, 0]),
        "format: expected 'nvfp4' or 'mxfp4'": (*quantize, "zz", "floor", "nearest", 0),
        "scale_mode: expected 'floor', 'r": (*quantize, "mxfp4", "zz", "nearest", 0),
        "scale_mode: expected 'floor' (": (*quantize, "nvfp4", "even", "nearest", 0),
        "rounding: expected": (*quantize, "nvfp4", "floor", "zz", 0),
        "amax: expected None": (ops.fp4_quantize, x, amax, "mxfp4", "floor", "nearest", 0),
        "amax: expected one": (ops.fp4_quantize, x, bias, "nvfp4", "floor", "nearest", 0),
        "dtype: expected": (ops.fp4_dequantize, packed, scale, amax, 8, "nvfp4", "float64"),
        "packed: expected the shape": (ops.fp4_dequantize, packed, scale, amax, 9, *names),
        "scale: expected the shape": (ops.fp4_dequantize, packed, scale[1:], amax, 8, *names),
        "scale: expected uint8": (ops.fp4_dequantize, packed, scale.int(), amax, 8, *names),
        "a_packed: expected": (ops.fp4_matmul_forward, packed[1:], *factor[1:], *right, *names),
        "b_shape: expected as many": (ops.fp4_matmul_forward, *factor, *factor, *names),
        "a_amax: expected None": (ops.fp4_matmul_forward, *factor, *right, *mx),
        "grad: expected as many": (ops.fp4_matmul_backward_A, grad[:, 1:], *right, *names),
        "grad: expected": (ops.fp4_matmul_backward_B, *factor, grad[:1], *names),
        "fp4_matmul_pair_backward: grad: expected as many": (
            ops.fp4_matmul_pair_backward, grad[:, 1:], *factor, *right, *names, "float32"
        ),
        "fp4_matmul_pair_backward: grad: expected the": (
            ops.fp4_matmul_pair_backward, grad[:1], *factor, *right, *names, "float32"
        ),
        "x: expected as many": (ops.fp4_linear_forward, x[:, 1:], *factor, None, "nvfp4"),
        "bias: expected the shape": (ops.fp4_linear_forward, x, *factor, other, "nvfp4"),
        "bias: expected float32": (ops.fp4_linear_forward, x, *factor, bias.int(), "nvfp4"),
        "weight_shape: expected two": (
            ops.fp4_linear_forward, x, packed, scale, amax, (5,), transposed, None, "nvfp4"
        ),
    }  # fmt: skip


def test_fakes_check_what_the_operators_check(x, q):
    real, fake = wrong_calls(x, q), wrong_calls(x.to("meta"), q.to("meta"))
    for expected, (op, *arguments) in real.items():
        assert expected in message(op, *arguments)
        assert expected in message(fake[expected][0], *fake[expected][1:])


def test_a_meta_tensor_beside_another_is_refused(x, q):
    bias, amax = torch.ones(5, device="meta"), torch.ones((), device="meta")
    pair_backward, grad = torch.ops.my_ops.fp4_matmul_pair_backward, torch.ones(5, 5, device="meta")
    meta = PackedFactor.of(q.t().to("meta"))
    for function, *arguments in (
        (my_ops.fp4_linear, x, q, bias),
        (lambda: fp4_quantize(x, amax=amax),),
        (torch.ops.my_ops.fp4_dequantize, q.packed, q.scale_bytes, amax, 8, "nvfp4", "float32"),
        (torch.ops.my_ops.fp4_linear_forward, bias, *PackedFactor.of(q.t()), None, "nvfp4"),
        (pair_backward, grad, *PackedFactor.of(q), *meta, "nvfp4", "float32", "float32"),
    ):
        assert "expected the device of" in message(function, *arguments)


# ---- Wrong arguments ----


def test_errors_name_what_was_called(x, q):
    for value in (None, "abc", [1.0], numpy.ones(3)):
        expected = f"my_ops.fp4_quantize: x: expected a tensor, got {type(value).__name__}"
        assert message(fp4_quantize, value) == expected
    for value in (x.double(), x.int()):
        expected = "my_ops.fp4_quantize: x: expected float32, float16 or bfloat16, got"
        assert message(fp4_quantize, value).startswith(expected)
    assert "fp4_quantize: x: expected at least one dimension" in message(fp4_quantize, x[0, 0])
    for function in (fp4_quantize, lambda x, f: my_ops.fp4_matmul(x, x.t(), f)):
        for format in ([], None, "fp4"):
            expected = f"format: expected 'nvfp4' or 'mxfp4', got {format!r}"
            assert message(function, x, format).endswith(expected)
    batch = fp4_quantize(torch.ones(2, 8, 3, device=x.device)).mT
    assert message(my_ops.fp4_matmul, batch, x.t()).startswith(
        "my_ops.fp4_matmul: a: expected a matrix"
    )


@pytest.mark.parametrize("differentiated", [False, True])
def test_arguments_of_another_type(x, q, differentiated):
    x = x.requires_grad_(differentiated)
    for out_dtype in (None, torch.bfloat16):
        assert message(my_ops.fp4_linear, x, q, 3, out_dtype=out_dtype) == (
            "my_ops.fp4_linear: bias: expected a tensor or None, got int"
        )
    for options, expected in (
        ({"scale_mode": 3}, "scale_mode: expected a string, got int"),
        ({"rounding": None}, "rounding: expected a string, got NoneType"),
        ({"block2d": "yes"}, "block2d: expected a bool, got str"),
    ):
        for format in ("nvfp4", "mxfp4"):
            assert message(fp4_quantize, x, format, **options) == f"my_ops.fp4_quantize: {expected}"
    assert message(my_ops.fp4_dequantize, x) == (
        "my_ops.fp4_dequantize: q: expected an FP4Tensor, got Tensor"
    )


def test_seed(x):
    for seed in (None, "1", 1.5, 2**64, 2**65, -(2**63) - 1):
        expected = f"seed: expected an integer from -2**63 below 2**64, got {seed!r}"
        assert message(lambda: fp4_quantize(x, seed=seed)).endswith(expected)  # noqa: B023
    first, last = (
        fp4_quantize(x, rounding="stochastic", seed=seed) for seed in (-1, numpy.uint64(2**64 - 1))
    )
    assert torch.equal(first.packed, last.packed)


def test_amax(x):
    for amax in ("3", [3.0], numpy.array(3.0), 1e39):
        actual = message(lambda: fp4_quantize(x, amax=amax))  # noqa: B023
        assert actual.startswith("my_ops.fp4_quantize: amax: expected a")
    for amax in (numpy.float32(3), 2**64, Fraction(1, 3)):
        assert fp4_quantize(x, amax=amax).amax == torch.tensor(float(amax))


def test_tensor_of_parts_that_no_format_has(q):
    parts = q.packed, q.scale_bytes, q.amax
    for arguments, expected in (
        ((*parts, "fp4", 8, torch.float32), "format: expected 'nvfp4' or 'mxfp4', got 'fp4'"),
        (
            (*parts, "nvfp4", 8, torch.int32),
            "dtype: expected float32, float16 or bfloat16, got torch.int32",
        ),
        (
            (None, *parts[1:], "nvfp4", 8, torch.float32),
            "packed: expected a tensor, got NoneType",
        ),
        (
            (parts[0], None, parts[2], "nvfp4", 8, torch.float32),
            "scale_bytes: expected a tensor, got NoneType",
        ),
        *(
            ((*parts, "nvfp4", K, torch.float32, t), f"K: expected an integer from 0 on, got {K!r}")
            for K in ("x", -3, None)
            for t in (False, True)
        ),
    ):
        assert message(my_ops.FP4Tensor, *arguments) == f"my_ops.FP4Tensor: {expected}"


def test_dtypes_that_no_fp4_tensor_has(q, x):
    expected = "my_ops.FP4Tensor: dtype: expected float32, float16 or bfloat16, got torch.float64"
    assert message(FP4Linear(8, 5, device=x.device).double) == expected
    assert q.to(torch.float64).dtype == torch.float64  # a dense tensor


@pytest.mark.parametrize("name", ["compressed_tensors", "modelopt"])
def test_checkpoint_without_a_part(q, name):
    tensors = getattr(q, f"to_{name}")()
    load = getattr(my_ops.FP4Tensor, f"from_{name}")
    for part in list(tensors)[:2]:
        rest = {other: tensor for other, tensor in tensors.items() if other != part}
        assert message(load, rest) == (
            f"my_ops.FP4Tensor.from_{name}: tensors['{part}']: expected a tensor, got NoneType"
        )


def test_module_errors(x):
    layer = FP4Linear(8, 5, device=x.device)
    assert message(layer, None).startswith("my_ops.fp4_linear: x: expected a dense tensor")
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        assert message(layer, x.int()).startswith("my_ops.fp4_linear: x: expected float32")
    for linear in (torch.nn.Conv1d(3, 4, 1), None):
        expected = "my_ops.nn.FP4Linear.from_linear: linear: expected a torch.nn.Linear, got"
        assert message(FP4Linear.from_linear, linear).startswith(expected)
    assert message(lambda: FP4Linear(8, 5, dtype=torch.float64)) == (
        "my_ops.nn.FP4Linear: dtype: expected float32, float16 or bfloat16, got torch.float64"
    )
    assert message(lambda: FP4Linear(8, 5, format=[])).startswith("my_ops.nn.FP4Linear: format:")
    for options, expected in (
        ({"in_features": "x"}, "in_features: expected an integer from 0 on, got 'x'"),
        ({"out_features": -3}, "out_features: expected an integer from 0 on, got -3"),
        ({"dtype": "half"}, "dtype: expected float32, float16 or bfloat16, got half"),
        ({"trainable": "no"}, "trainable: expected a bool, got str"),
    ):
        sizes = {"in_features": 8, "out_features": 5}
        assert message(FP4Linear, **(sizes | options)) == f"my_ops.nn.FP4Linear: {expected}"


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("trainable", [False, True])
def test_state_of_another_format(x, assign, trainable):
    state = FP4Linear(8, 5, device=x.device).state_dict()
    model = torch.nn.Sequential(FP4Linear(8, 5, format="mxfp4", trainable=trainable))
    state = {f"0.{name}": tensor for name, tensor in state.items()}
    if trainable:  # it takes the values
        model.load_state_dict(state, assign=assign)
        assert torch.equal(model[0].weight.cpu(), state["0.weight"].dequantize().cpu())
    else:
        with pytest.raises(RuntimeError) as caught:
            model.load_state_dict(state, assign=assign)
        assert str(caught.value).split("\n\t")[1:] == [
            "my_ops.nn.FP4Linear: 0.weight: expected format 'mxfp4', got 'nvfp4'"
        ]
        assert model[0].weight.format == "mxfp4"


def test_an_amax_that_is_not_a_number_is_refused_on_the_cpu():
    q = fp4_quantize(torch.randn(5, 8))
    broken = q._replace(amax=torch.tensor(float("nan")))
    for product, name in (
        (lambda: my_ops.fp4_linear(torch.ones(2, 8), broken), "fp4_linear: weight_amax"),
        (lambda: my_ops.fp4_matmul(torch.ones(2, 8), broken.t()), "fp4_matmul: b_amax"),
    ):
        assert message(product) == f"my_ops.{name}: expected a number from 0 on, got nan"
