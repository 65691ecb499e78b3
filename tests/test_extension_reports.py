"""Public bug reports about extensions of PyTorch, replayed on every operator.

Those that need a test of their own are elsewhere: launches on the wrong stream and one graph for
every length in test_compile.py, torch.func in test_transforms.py, another device than the current
one in test_two_gpus.py, builds, imports and mismatches of versions in test_build.py, the cost of a
call in test_overhead.py, DTensor in test_distributed.py.
"""

import pytest
import torch
from operators import OPERATORS, K, as_list, assert_same_bits, forward_and_backward
from torch.library import opcheck

GRADIENTS = {
    "of a sum": lambda y: torch.ones((), device=y.device).expand_as(y),
    "of a transpose": lambda y: torch.randn(y.shape[::-1], device=y.device).t(),
    "of a cat": lambda y: torch.randn(y.shape[0], 3 * y.shape[1], device=y.device).chunk(3, 1)[1],
}


@pytest.mark.parametrize("layout", GRADIENTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_gradients_are_read_as_they_lie(device, name, layout):
    """pytorch#195210, pytorch#194719, flash-attention#355: as if they were contiguous."""
    inputs = OPERATORS[name].sample(6, device)
    outputs = as_list(OPERATORS[name].function(*inputs))
    gradients = [GRADIENTS[layout](y) for y in outputs]
    strided = torch.autograd.grad(outputs, inputs, gradients, retain_graph=True)
    dense = torch.autograd.grad(outputs, inputs, [g.contiguous() for g in gradients])
    for actual, expected in zip(strided, dense, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("name", OPERATORS)
def test_no_rows(device, name):
    """pytorch#189831, pytorch#17256: a launch of nothing fails, or gives NaN."""
    inputs = OPERATORS[name].sample(0, device)
    for result, like in zip(
        forward_and_backward(OPERATORS[name].function, inputs)[-len(inputs) :], inputs, strict=True
    ):
        assert result.shape == like.shape
        assert not result.any()
    assert torch.ones(3, device=device).sum() == 3, "the device still works"


@pytest.mark.parametrize("name", OPERATORS)
def test_deterministic_algorithms(device, name, recwarn, monkeypatch):
    """vision#7579: the flag not honoured. Here it changes nothing and warns of nothing."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which torch's own products ask for
    inputs = OPERATORS[name].sample(200, device)
    expected = forward_and_backward(OPERATORS[name].function, inputs)
    for warn_only in (False, True):
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        try:
            for _ in range(3):
                assert_same_bits(forward_and_backward(OPERATORS[name].function, inputs), expected)
        finally:
            torch.use_deterministic_algorithms(False)
    assert not [w for w in recwarn if "determinis" in str(w.message)]


NAMED = {"square": (), "rmsnorm": ((K,),), "matmul": ((K, K), "ieee")}


@pytest.mark.parametrize("shapes", ["static", "dynamic"])
@pytest.mark.parametrize("name", NAMED)
def test_named_operators_under_aot_autograd(device, name, shapes):
    """pytorch#144514, pytorch#143773: right eager, wrong once the autograd code is traced."""
    others = [
        other if isinstance(other, str) else torch.randn(other, device=device, requires_grad=True)
        for other in NAMED[name]
    ]
    x = torch.randn(5, K, device=device, requires_grad=True)
    operator = getattr(torch.ops.my_ops, name).default
    opcheck(operator, (x, *others), test_utils=f"test_aot_dispatch_{shapes}")


def test_compiled_norm_has_the_bits_of_eager_for_another_length(device):
    """quack#52, Liger-Kernel#1350: compiled it ran in float64, and again for each length."""
    norm = torch.compile(OPERATORS["rmsnorm"].function, backend="aot_eager", dynamic=True)
    weight = torch.randn(3072, device=device)
    for rows in (512, 96):
        x = torch.randn(rows, 3072, device=device, dtype=torch.bfloat16)
        with torch.compiler.set_stance("default" if rows == 512 else "fail_on_recompile"):
            y = norm(x, weight)
        assert torch.equal(y, OPERATORS["rmsnorm"].function(x, weight))
