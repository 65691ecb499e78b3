"""What my_ops works with: the table of the README, and that its tests exist.

`python tests/test_works_with.py` writes the table into the README.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- works-with:begin -->\n", "<!-- works-with:end -->"

ROWS = [  # feature, status, the test that shows it
    (
        "`torch.compile(fullgraph=True)`",
        "yes: every operator, one graph for every size, the bits of eager",
        "test_compile.py::test_one_graph_for_every_size",
    ),
    (
        '`torch.compile` in a model, `mode="reduce-overhead"`',
        "yes",
        "test_compile.py::test_between_linear_layers",
    ),
    (
        "CUDA graphs, side streams",
        "yes, forward and backward",
        "test_compile.py::test_in_a_stream_and_a_graph",
    ),
    (
        "several GPUs in a process",
        "yes, whichever is current",
        "test_two_gpus.py::test_on_a_device_that_is_not_current",
    ),
    (
        "`torch.export`, strict or not",
        "yes; of what is exported only square and rmsnorm have derivatives",
        "test_export.py::test_export",
    ),
    (
        "AOTInductor packages",
        "yes: the process that runs one has to `import my_ops`",
        "test_export.py::test_aot_inductor_package",
    ),
    (
        "autocast",
        "yes: norms keep their dtypes, FP4 products follow it, `matmul` takes 16 bits as float32",
        "test_compile.py::test_between_linear_layers",
    ),
    (
        "`torch.func.grad`, `vmap` and their compositions",
        "yes; `fp4_quantize` raises inside of them",
        "test_transforms.py::test_grad_and_vmap",
    ),
    (
        "forward mode: `torch.func.jvp`, `dual_level`",
        "no, raises",
        "test_transforms.py::test_forward_mode_is_refused",
    ),
    (
        "activation checkpointing, reentrant or not",
        "yes",
        "test_transforms.py::test_checkpoint",
    ),
    (
        "saved-tensor hooks, `save_on_cpu`",
        "yes",
        "test_transforms.py::test_saved_tensor_hooks",
    ),
    (
        "deterministic algorithms",
        "always: the same bits in every run",
        "test_rmsnorm_gradients.py::test_weight_gradient_has_the_same_bits_every_time",
    ),
    (
        "DTensor",
        "yes, with `import my_ops.distributed`",
        "test_distributed.py::test_rmsnorm",
    ),
    (
        "tensor parallelism, FSDP2",
        "yes",
        "test_distributed_models.py::test_fsdp",
    ),
    ("DDP", "yes", "test_distributed_models.py::test_ddp"),
    (
        "`torch.distributed.checkpoint`",
        "yes",
        "test_distributed_models.py::test_checkpoint",
    ),
    (
        "Hugging Face Transformers",
        "yes: `my_ops.nn.patch(model)`, generation and training",
        "test_patch.py::test_generation_and_training",
    ),
    ("safetensors", "yes", "test_patch.py::test_safetensors"),
    (
        "`state_dict`, `torch.save`, `weights_only=True`",
        "yes",
        "test_fp4_tensor.py::test_save_and_load",
    ),
    (
        "`pickle`, `deepcopy`, `torch.package`",
        "yes; the last with my_ops as `extern`",
        "test_processes.py::test_copies_of_modules",
    ),
    ("Python threads", "yes", "test_processes.py::test_threads"),
    (
        "free-threaded Python",
        "no: it turns its GIL on when it imports my_ops",
        None,
    ),
    (
        "fork after the import",
        "yes; importing does not initialize CUDA",
        "test_build.py::test_import_survives_fork",
    ),
    (
        "mypy, type stubs of `_C`",
        "yes, checked by `make check`",
        "test_processes.py::test_typed_program_runs",
    ),
    (
        "tensors without memory (`meta`), fake tensors",
        "yes",
        "test_refusals.py::test_meta",
    ),
    (
        "sparse, nested, quantized tensors",
        "no, raises",
        "test_refusals.py::test_not_dense",
    ),
]


def table() -> str:
    lines = ["| | | shown by |", "|---|---|---|"]
    lines += [f"| {what} | {how} | {f'`{test}`' if test else ''} |" for what, how, test in ROWS]
    return "\n".join(lines) + "\n"


def test_readme_has_this_table():
    text = README.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    assert written == table(), "run: python tests/test_works_with.py"


@pytest.mark.parametrize("test", sorted({test for *_, test in ROWS if test}))
def test_the_named_test_exists(test):
    file, function = test.split("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


if __name__ == "__main__":
    before, _, rest = README.read_text().partition(BEGIN)
    README.write_text(before + BEGIN + table() + rest[rest.index(END) :])
