"""torch.compile over every operator: one graph, for every size, with the bits of eager."""

import pytest
import torch
from operators import OPERATORS, Block, K, assert_same_bits, forward_and_backward

import my_ops


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", OPERATORS)
def test_one_graph_for_every_size(device, backend, name):
    operator = OPERATORS[name]
    compiled = torch.compile(operator.function, backend=backend, fullgraph=True, dynamic=True)
    stance = "default"
    for rows in (3, 8, 200):
        inputs = operator.sample(rows, device)
        with torch.compiler.set_stance(stance):
            actual = forward_and_backward(compiled, inputs)
        assert_same_bits(actual, forward_and_backward(operator.function, inputs))
        stance = "fail_on_recompile"


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_between_linear_layers(device, mode, autocast):
    """In a model, where a launch on another stream than the linears' would show."""
    model = Block(device)
    compiled = torch.compile(model, mode=mode, fullgraph=True)
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(16, K, device=device)
            actual = forward_and_backward(compiled, [x], model.parameters())
            expected = forward_and_backward(model, [x], model.parameters())
            assert_same_bits(actual, expected)
