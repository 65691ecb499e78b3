"""torch.func, forward mode, checkpointing and saved-tensor hooks over every operator."""

import pytest
import torch
from operators import OPERATORS, K, as_list, assert_same_bits, cotangents, forward_and_backward
from torch.utils.checkpoint import checkpoint

import my_ops

# What makes an FP4Tensor from a tensor inside of a transform is refused there.
REFUSED = ("fp4_quantize", "rmsnorm_fp4_quantize")


def of_x(name, others):
    """The operator as a function of its first argument to one tensor; the weight is quantized."""
    if name == "fp4_linear":
        weight, bias = others
        q = my_ops.fp4_quantize(weight.detach())
        return lambda x: my_ops.fp4_linear(x, q, bias)
    return lambda x: as_list(OPERATORS[name].function(x, *others))[0]


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("name", OPERATORS)
def test_grad_and_vmap(device, name):
    x, *others = OPERATORS[name].sample(6, device)
    function = of_x(name, others)
    batch = torch.stack([x.detach(), x.detach() * 2])

    def loss(x):
        y = function(x)
        return (y * torch.linspace(-1, 1, y.numel(), device=device).view_as(y)).sum()

    transforms = {
        "grad": lambda: torch.func.grad(loss)(batch[1]),
        "vmap": lambda: torch.vmap(function)(batch),
        "vmap of grad": lambda: torch.vmap(torch.func.grad(loss))(batch),
        "grad of vmap": lambda: torch.func.grad(lambda b: torch.vmap(loss)(b).sum())(batch),
    }
    if name in REFUSED:
        for transform in transforms.values():
            with pytest.raises(RuntimeError, match=r"my_ops\.fp4_quantize: x: expected .* outside"):
                transform()
        return
    values = torch.stack([function(x) for x in batch])
    gradients = torch.stack(
        [torch.autograd.grad(loss(x.requires_grad_()), x)[0] for x in batch.clone().unbind()]
    )
    expected = {"grad": gradients[1], "vmap": values}
    for what, transform in transforms.items():
        torch.testing.assert_close(transform(), expected.get(what, gradients))


@pytest.mark.parametrize("name", OPERATORS)
def test_forward_mode_is_refused(device, name):
    """With a sentence that names a public function, never with tangents of zero."""
    x, *others = OPERATORS[name].sample(6, device)
    function = of_x(name, [t.detach() for t in others])
    x = x.detach()
    names = "|".join(OPERATORS)
    why = r"no forward-mode differentiation|outside of torch\.func"
    refusal = rf"my_ops\.({names}): (x: )?expected .*({why})"
    with pytest.raises(RuntimeError, match=refusal):
        torch.func.jvp(function, (x,), (x,))
    with pytest.raises(RuntimeError, match=refusal):
        torch.func.jacfwd(function)(x)
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match=refusal):
        function(torch.autograd.forward_ad.make_dual(x, x))


def test_a_weight_in_training_is_not_quantized_inside_of_a_transform(device):
    weight = torch.randn(K, K, device=device, requires_grad=True)
    function = lambda x: my_ops.fp4_linear(x, my_ops.fp4_quantize(weight))  # noqa: E731
    x = torch.randn(2, 3, K, device=device)
    with pytest.raises(RuntimeError, match=r"x: expected .* outside .* one inside that needs a gr"):
        torch.vmap(function)(x)
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(function)(x), function(x))


@pytest.mark.parametrize("name", ["square", "rmsnorm", "add_rmsnorm"])
def test_compiled_autograd(device, name):
    """Which traces the nodes of C++ into its graph."""
    function = OPERATORS[name].function
    inputs = OPERATORS[name].sample(6, device)
    expected = forward_and_backward(function, inputs)
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    with torch._dynamo.compiled_autograd._enable(compiler):
        outputs = as_list(function(*inputs))
        torch.autograd.backward(outputs, cotangents(outputs))
    assert_same_bits([*outputs, *(t.grad for t in inputs)], expected)


def test_compiled_autograd_tells_numbers_apart(device):
    """The graph of one eps is not that of another."""
    x = torch.randn(6, K, device=device, requires_grad=True)
    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    for eps in (1e-6, 0.5):
        (expected,) = torch.autograd.grad(my_ops.rmsnorm(x, eps=eps).sum(), x)
        with torch._dynamo.compiled_autograd._enable(compiler):
            my_ops.rmsnorm(x, eps=eps).sum().backward()
        assert_same_bits([x.grad], [expected])
        x.grad = None


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_checkpoint(device, name, reentrant):
    function = OPERATORS[name].function
    inputs = OPERATORS[name].sample(6, device)
    expected = forward_and_backward(function, inputs)
    outputs = as_list(checkpoint(function, *inputs, use_reentrant=reentrant))
    torch.autograd.backward(outputs, cotangents(outputs))  # grad() is not for the reentrant mode
    assert_same_bits([*outputs, *(t.grad for t in inputs)], expected)


@pytest.mark.parametrize("name", OPERATORS)
def test_saved_tensor_hooks(device, name):
    """What is saved goes through the hooks, and backward uses what comes back."""
    function = OPERATORS[name].function
    inputs = OPERATORS[name].sample(6, device)
    expected = forward_and_backward(function, inputs)
    packed = []

    def pack(tensor):
        packed.append(tensor.cpu())
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i].to(device)):
        assert_same_bits(forward_and_backward(function, inputs), expected)
    assert len(packed) > 0 or name == "fp4_quantize", "straight-through: nothing is saved"
    with torch.autograd.graph.save_on_cpu():
        assert_same_bits(forward_and_backward(function, inputs), expected)
    if packed:
        zeroed = torch.autograd.graph.saved_tensors_hooks(lambda t: t, torch.zeros_like)
        with zeroed:
            changed = forward_and_backward(function, inputs)
        assert not all(torch.equal(a, b) for a, b in zip(changed, expected, strict=True))
