"""torch.compile over every operator: one graph, for every size, with the bits of eager."""

import pytest
import torch
from helpers import check_stream_and_graph
from operators import OPERATORS, Block, K, assert_same_bits, forward_and_backward

import my_ops


def assert_same_results(actual, expected, bias):
    """bias: where the gradient of fp4_linear's bias is, a sum that Inductor compiles; or None."""
    if bias is not None:
        torch.testing.assert_close(actual.pop(bias), expected.pop(bias), atol=1e-4, rtol=1e-4)
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("name", OPERATORS)
def test_one_graph_for_every_size(device, name):
    operator = OPERATORS[name]
    compiled = torch.compile(operator.function, fullgraph=True, dynamic=True)
    stance = "default"
    for rows in (3, 8, 40):
        inputs = operator.sample(rows, device)
        with torch.compiler.set_stance(stance):
            actual = forward_and_backward(compiled, inputs)
        expected = forward_and_backward(operator.function, inputs)
        assert_same_results(actual, expected, -1 if name == "fp4_linear" else None)
        stance = "fail_on_recompile"


@pytest.mark.parametrize(
    ("options", "autocast"),
    [
        ({"backend": "inductor"}, False),
        ({"backend": "aot_eager"}, True),
        pytest.param({"mode": "reduce-overhead"}, False, marks=pytest.mark.cuda),
        pytest.param({"mode": "reduce-overhead"}, True, marks=pytest.mark.cuda),
    ],
)
def test_between_linear_layers(device, options, autocast):
    """In a model, replayed with other inputs: a launch on another stream than theirs would show."""
    model = Block(device)
    names = ["", *(name for name, _ in model.named_parameters())]  # of the results
    bias = names.index(f"operators.{list(OPERATORS).index('fp4_linear')}.others.1")
    compiled = torch.compile(model, fullgraph=True, **options)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(16, K, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            actual = forward_and_backward(compiled, [x], model.parameters())
            expected = forward_and_backward(model, [x], model.parameters())
        if autocast and device == "cuda":  # fp4_linear's weight gradient: mm(out_dtype) in eager
            for a, e in zip(actual, expected, strict=True):
                torch.testing.assert_close(a, e, rtol=1e-2, atol=1e-2)
        else:
            assert_same_results(actual, expected, bias)


def test_without_gradients(device):
    model = Block(device)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for context in (torch.no_grad(), torch.inference_mode()):
        for rows in (5, 9):
            x = torch.randn(rows, K, device=device)
            with context:
                assert_same_bits([compiled(x)], [model(x)])


TWICE = {
    "square_": lambda v, m: my_ops.square_(v.clone()) + v,
    "rmsnorm": lambda v, m: my_ops.rmsnorm(v, v),
    "add_rmsnorm": lambda v, m: torch.cat(my_ops.add_rmsnorm(m, m, v)),
    "matmul": lambda v, m: my_ops.matmul(m, m),
    "rmsnorm_fp4_quantize": lambda v, m: my_ops.rmsnorm_fp4_quantize(v, v).dequantize(),
    "fp4_matmul": lambda v, m: my_ops.fp4_matmul(m, m),
    "fp4_linear": lambda v, m: my_ops.fp4_linear(v, my_ops.fp4_quantize(m), v),
}


@pytest.mark.parametrize("name", TWICE)
def test_the_same_tensor_twice(device, name):
    """Of which Dynamo says that an autograd.Function cannot have it."""
    function = TWICE[name]
    inputs = [torch.randn(shape, device=device, requires_grad=True) for shape in ((K,), (K, K))]
    used = [inputs[0]] if name in ("square_", "rmsnorm", "rmsnorm_fp4_quantize") else inputs
    used = [inputs[1]] if name in ("matmul", "fp4_matmul") else used
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    results = [
        [y, *torch.autograd.grad(y.sum(), used)] for y in (compiled(*inputs), function(*inputs))
    ]
    assert_same_bits(*results)


@pytest.mark.parametrize("name", OPERATORS)
def test_in_a_stream_and_a_graph(device, name):
    """Forward and backward: behind other work in a side stream, captured and replayed."""
    operator = OPERATORS[name]
    x, *others = operator.sample(9, device)
    x = x.detach()

    def step():
        results = forward_and_backward(operator.function, [x.detach().requires_grad_(), *others])
        return torch.cat([result.flatten() for result in results])

    if device == "cpu":
        assert torch.equal(step(), step())
    else:
        check_stream_and_graph(step, x)


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", OPERATORS)
def test_a_device_that_is_not_current(name):
    """Eager: test_two_gpus.py."""
    function = OPERATORS[name].function
    inputs = OPERATORS[name].sample(9, "cuda:0")
    elsewhere = [t.detach().to("cuda:1").requires_grad_() for t in inputs]
    expected = forward_and_backward(function, inputs)
    actual = forward_and_backward(torch.compile(function, fullgraph=True), elsewhere)
    assert torch.cuda.current_device() == 0
    assert {t.device for t in actual} == {torch.device("cuda:1")}
    actual = [t.to("cuda:0") for t in actual]
    assert_same_results(actual, expected, -1 if name == "fp4_linear" else None)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_fp4_linear_in_another_dtype(device, with_bias, autocast):
    """Its checks are traced, too; of every rank, with and without a gradient."""
    q = my_ops.fp4_quantize(torch.randn(6, 32, device=device))
    bias = torch.randn(6, device=device) if with_bias else None

    def linear(x):
        return my_ops.fp4_linear(x, q, bias, out_dtype=torch.float16)

    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True, dynamic=True)
    for shape in ((32,), (3, 32), (2, 5, 32)):
        x = torch.randn(shape, device=device, requires_grad=True)
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            assert_same_bits(forward_and_backward(compiled, [x]), forward_and_backward(linear, [x]))
            assert_same_bits([compiled(x.detach())], [linear(x.detach())])


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
def test_swizzled_scales_of_a_tensor_made_in_the_graph(device, format):
    def there_and_back(x):
        q = my_ops.fp4_quantize(x, format)
        swizzled = my_ops.fp4_swizzle_scales(q)
        return swizzled, my_ops.fp4_unswizzle_scales(swizzled, *q.scale_bytes.shape)

    compiled = torch.compile(there_and_back, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (4, 130):
        x = torch.randn(rows, 96, device=device)
        for actual, expected in zip(compiled(x), there_and_back(x), strict=True):
            assert actual.dtype == expected.dtype
            assert torch.equal(actual.view(torch.uint8), expected.view(torch.uint8))


NUMBERS = {
    "rmsnorm": lambda x, eps, offset: my_ops.rmsnorm(x, x[0], eps, weight_offset=offset),
    "add_rmsnorm": lambda x, eps, offset: torch.cat(
        my_ops.add_rmsnorm(x, x, x[0], eps, weight_offset=offset)
    ),
    "rmsnorm_fp4_quantize": lambda x, eps, offset: my_ops.rmsnorm_fp4_quantize(
        x, x[0], eps, "mxfp4", weight_offset=offset
    ).dequantize(),
    "amax": lambda x, amax, _: my_ops.fp4_quantize(x, amax=amax).dequantize(),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_vary(device, name):
    """Of which Dynamo makes symbols, that their checks have to leave in the graph."""
    function = NUMBERS[name]
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=True)
    x = torch.randn(4, 32, device=device)
    for numbers in (0.25, 0.5), (1.5, 1.0), (1, 2):
        assert_same_bits([compiled(x, *numbers)], [function(x, *numbers)])
