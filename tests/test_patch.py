"""my_ops.nn.patch and unpatch, and quantized models in safetensors files."""

import copy

import pytest
import torch
from helpers import message
from torch.nn.utils import prune

import my_ops
from my_ops.nn import FP4Linear, RMSNorm, patch, unpatch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

# What the norms of a family compute, and how many a decoder layer has (Gemma 3 and Qwen 3 have two
# more in the attention; Gemma 3 norms what comes out of each block as well).
FAMILIES = {
    "Llama": ("hf", 0.0, 2),
    "Mistral": ("hf", 0.0, 2),
    "Qwen3": ("hf", 0.0, 4),
    "Gemma": ("torch", 1.0, 2),
    "Gemma3": ("torch", 1.0, 6),
}
LAYERS = 2


def tiny(family, dtype=torch.bfloat16):
    """A random model of `family`, without a download, whose norm weights are not all alike."""
    config_name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 128, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": LAYERS}
    config = getattr(transformers, config_name)(**sizes, **heads, pad_token_id=0)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            torch.nn.init.normal_(module.weight, std=0.5)
    return model.to(dtype)


def tokens():
    return torch.randint(1, 128, (2, 12), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def logits(model):
    return model(tokens(), attention_mask=torch.ones_like(tokens())).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_norms_of_a_family(family):
    cast_order, offset, norms = FAMILIES[family]
    model = tiny(family)
    expected, keys = logits(model), list(model.state_dict())
    before = {name: type(module) for name, module in model.named_modules()}
    report = patch(model)
    assert len(report.replaced) == norms * LAYERS + 1 and not report.skipped
    for name in report.replaced:
        norm = model.get_submodule(name)
        assert isinstance(norm, RMSNorm) and not norm.training
        assert (norm.cast_order, norm.weight_offset) == (cast_order, offset)
    actual = logits(model)
    if cast_order == "hf":
        assert torch.equal(actual, expected)
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.02)
    assert list(model.state_dict()) == keys
    unpatch(model)
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize("family", ["Llama", "Gemma3"])
def test_generation_and_training(family):
    model = tiny(family, torch.float32)
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(tokens())}
    expected = model.generate(tokens(), **options)
    patch(model)
    assert torch.equal(model.generate(tokens(), **options), expected)
    plain = tiny(family, torch.float32)
    for network in (plain, model):
        network(tokens(), labels=tokens()).loss.backward()
    for (name, actual), wanted in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(actual.grad, wanted.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_linears_in_fp4():
    model = tiny("Llama")
    expected = logits(model)
    kept = copy.deepcopy(model.state_dict())
    report = patch(model, linear="fp4", format="mxfp4")
    assert report.skipped == {"lm_head": "named in skip"}
    assert sum(isinstance(m, FP4Linear) for m in model.modules()) == 7 * LAYERS
    assert model.model.layers[0].mlp.up_proj.weight.format == "mxfp4"
    error = (logits(model) - expected).norm() / expected.norm()
    assert 0.01 < error < 0.5  # quantized, and not broken
    assert "+ model.layers.1.mlp.down_proj: FP4Linear(in_features=96" in str(report)
    unpatch(model)
    assert torch.equal(logits(model), expected)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, kept[name])


def test_tied_and_named_modules_are_left_alone():
    model = tiny("Llama")
    model.lm_head.weight = model.model.embed_tokens.weight
    report = patch(
        model, rmsnorm=False, linear="fp4", skip=("q_proj", "model.layers.1.mlp.up_proj")
    )
    assert report.skipped["lm_head"] == "shares its weight with another module"
    assert report.skipped["model.layers.0.self_attn.q_proj"] == "named in skip"
    assert report.skipped["model.layers.1.mlp.up_proj"] == "named in skip"
    assert len(report.replaced) == 7 * LAYERS - 3
    assert not any(isinstance(module, RMSNorm) for module in model.modules())


def test_a_patched_model_is_copied_and_moved_whole():
    model = tiny("Llama")
    patch(model, linear="fp4")
    twin = copy.deepcopy(model)
    torch.nn.init.zeros_(model.model.norm.weight)
    assert logits(twin).abs().max() > 0
    unpatch(twin.float())
    assert {parameter.dtype for parameter in twin.parameters()} == {torch.float32}
    assert logits(twin).dtype == torch.float32


def test_a_bias_of_another_dtype_stays_so():
    linear = torch.nn.Linear(32, 4, dtype=torch.bfloat16)
    linear.bias = torch.nn.Parameter(linear.bias.float())
    model = torch.nn.Sequential(linear)
    bias = linear.bias
    patch(model, linear="fp4")
    unpatch(model)
    assert (linear.weight.dtype, linear.bias.dtype) == (torch.bfloat16, torch.float32)
    assert linear.bias is bias


HOOKS = {
    "forward": lambda m: m.register_forward_hook(lambda *_: None),
    "forward_pre": lambda m: m.register_forward_pre_hook(lambda *_: None),
    "backward": lambda m: m.register_full_backward_hook(lambda *_: None),
    "backward_pre": lambda m: m.register_full_backward_pre_hook(lambda *_: None),
    "state_dict": lambda m: m.register_state_dict_post_hook(lambda *_: None),
    "state_dict_pre": lambda m: m.register_state_dict_pre_hook(lambda *_: None),
    "load_state_dict_pre": lambda m: m.register_load_state_dict_pre_hook(lambda *_: None),
    "load_state_dict_post": lambda m: m.register_load_state_dict_post_hook(lambda *_: None),
    "spectral_norm": torch.nn.utils.spectral_norm,
    "prune": lambda m: prune.l1_unstructured(m, "weight", 0.5),
}


@pytest.mark.parametrize("hook", HOOKS)
def test_modules_with_hooks_are_left_alone(hook):
    modules = [torch.nn.Linear(8, 8)]
    if hook not in ("spectral_norm", "prune"):  # these want a matrix
        modules.append(torch.nn.RMSNorm(8))
    model = torch.nn.Sequential(*modules, torch.nn.Linear(8, 8))
    for module in modules:
        HOOKS[hook](module)
    report = patch(model, linear="fp4")
    assert list(model)[:-1] == modules
    assert report.skipped == {str(i): "it has hooks" for i in range(len(modules))}
    assert list(report.replaced) == [str(len(modules))]


def test_modules_whose_forward_was_replaced_are_left_alone():
    """As accelerate does, which moves inputs to the module's device in its own."""
    modules = [torch.nn.Linear(8, 8), torch.nn.RMSNorm(8)]
    for module in modules:
        module.forward = lambda x, forward=module.forward: 2 * forward(x)
    model = torch.nn.Sequential(*modules, torch.nn.Linear(8, 8))
    report = patch(model, linear="fp4")
    assert list(model)[:-1] == modules
    assert report.skipped == dict.fromkeys("01", "its forward was replaced")
    assert list(report.replaced) == ["2"]


@pytest.mark.parametrize("kind", [torch.nn.Linear, torch.nn.RMSNorm])
def test_unpatch_changes_nothing_where_a_module_is_another_or_gone(kind):
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Linear(8, 8) if kind is torch.nn.Linear else kind(8)
    )
    patch(model, linear="fp4")
    patched = list(model)
    ours = type(model[1]).__name__
    model[1] = torch.nn.Identity()
    with pytest.raises(ValueError, match=rf"model: expected the {ours} of patch as '1', got Ident"):
        unpatch(model)
    assert model[0] is patched[0]
    del model[1]
    with pytest.raises(ValueError, match=rf"model: expected the {ours} of patch as '1', got none"):
        unpatch(model)
    assert model[0] is patched[0]
    model.append(patched[1])
    unpatch(model)
    assert [type(module) for module in model] == [torch.nn.Linear, kind]


class OddRMSNorm(torch.nn.Module):
    def __init__(self, H, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(H))

    def forward(self, x):
        return x / (x.abs().mean(-1, keepdim=True) + self.eps) * self.weight


class NoEpsRMSNorm(OddRMSNorm):
    def __init__(self, H):
        super().__init__(H)
        del self.eps


class WrongEpsRMSNorm(OddRMSNorm):
    """eps where ours has it not: the samples must be small enough to show that."""

    def forward(self, x):
        wide = x.float()
        return (wide / (wide.square().mean(-1, keepdim=True).sqrt() + 1e-3) * self.weight).to(x)


def test_what_computes_something_else_is_left_alone():
    odd, no_eps, wrong_eps = OddRMSNorm(8), NoEpsRMSNorm(8), WrongEpsRMSNorm(8)
    two = torch.nn.RMSNorm((2, 4))
    model = torch.nn.ModuleList([odd, no_eps, wrong_eps, two, torch.nn.RMSNorm(8, eps=1e-5)])
    report = patch(model)
    assert list(report.replaced) == ["4"]
    assert model[4].cast_order == "torch" and model[4].eps == 1e-5
    assert report.skipped["0"] == report.skipped["2"] == "it computes something else"
    assert "no number named" in report.skipped["1"]
    assert "expected one weight [H]" in report.skipped["3"]
    assert list(model[:4]) == [odd, no_eps, wrong_eps, two]


def test_one_module_in_two_places_stays_one():
    norm = torch.nn.RMSNorm(8)
    model = torch.nn.Sequential(norm, torch.nn.Sequential(norm))
    report = patch(model)
    assert list(report.replaced) == ["0", "1.0"]
    assert model[0] is model[1][0]
    unpatch(model)
    assert model[0] is model[1][0] is norm


def test_errors():
    model = tiny("Llama")
    with pytest.raises(ValueError, match=r"linear: expected None or 'fp4', got 'int8'"):
        patch(model, linear="int8")
    with pytest.raises(ValueError, match=r"expected one that my_ops\.nn\.patch changed"):
        unpatch(model)
    for options, expected in {
        ("format", "int4"): "format: expected 'nvfp4' or 'mxfp4', got 'int4'",
        ("skip", None): "skip: expected names of modules, got None",
        ("skip", (3,)): "skip: expected names of modules, got (3,)",
        ("rmsnorm", "no"): "rmsnorm: expected a bool, got str",
        ("keep_linears", 0): "keep_linears: expected a bool, got int",
    }.items():
        error = RuntimeError if options[0] == "format" else TypeError
        assert (
            message(patch, model, error=error, **dict([options])) == f"my_ops.nn.patch: {expected}"
        )
    patch(model, linear="fp4", keep_linears=False)
    with pytest.raises(TypeError, match=r"model: expected a torch\.nn\.Module, got int"):
        my_ops.nn.patch(3)
    with pytest.raises(ValueError, match="expected a model not patched yet"):
        patch(model)
    with pytest.raises(ValueError, match=r"keep_linears=True, got one without .*q_proj"):
        unpatch(model)


@pytest.mark.parametrize("format", ["nvfp4", "mxfp4"])
def test_safetensors(tmp_path, format):
    safetensors = pytest.importorskip("safetensors")
    torch_files = pytest.importorskip("safetensors.torch")
    model = tiny("Llama")
    patch(model, linear="fp4", format=format)
    tensors, metadata = my_ops.nn.flatten_state_dict(model.state_dict())
    path = tmp_path / "model.safetensors"
    torch_files.save_file(tensors, path, metadata)
    with safetensors.safe_open(path, "pt") as file:
        read = {name: file.get_tensor(name) for name in file.keys()}
        state = my_ops.nn.unflatten_state_dict(read, file.metadata())
    other = tiny("Llama")
    torch.nn.init.normal_(other.model.layers[0].mlp.up_proj.weight)
    patch(other, linear="fp4", format=format)
    other.load_state_dict(state)
    assert torch.equal(logits(other), logits(model))
    del read["model.layers.0.mlp.up_proj.weight.packed"]
    with pytest.raises(ValueError, match=r"expected model.layers.0.mlp.up_proj.weight.packed of"):
        my_ops.nn.unflatten_state_dict(read, metadata)


@pytest.mark.parametrize("text", ["{", "[1]", '{"w": {}}', '{"w": {"format": "nvfp4", "K": 8}}'])
def test_metadata_of_someone_else(text):
    expected = "metadata: expected what flatten_state_dict wrote as 'my_ops.fp4', got "
    actual = message(my_ops.nn.unflatten_state_dict, {}, {"my_ops.fp4": text}, error=ValueError)
    assert actual.startswith(f"my_ops.nn.unflatten_state_dict: {expected}")
