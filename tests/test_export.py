"""torch.export and AOTInductor over every operator."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from operators import (
    OPERATORS,
    Block,
    K,
    Module,
    as_list,
    assert_same_bits,
    forward_and_backward,
)

ROOT = Path(__file__).resolve().parent.parent
ROWS = torch.export.Dim("rows", min=2)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_export(device, name, strict):
    """One program for every number of rows; saved, loaded and decomposed it has the same bits."""
    module = Module(name, device)
    rows = tuple(OPERATORS[name].rows(6, device))
    shapes = (({0: ROWS},) * len(rows),)
    program = torch.export.export(module, rows, dynamic_shapes=shapes, strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).run_decompositions()
    for graph in (program, loaded):
        for rows in (6, 11):
            x = OPERATORS[name].rows(rows, device)
            with torch.no_grad():
                assert_same_bits(as_list(graph.module()(*x)), as_list(module(*x)))
    if name != "square_":  # which is written as a mutation, that decomposes into a copy
        assert any(str(node.target).startswith("my_ops.") for node in loaded.graph.nodes)


@pytest.mark.parametrize("name", ["square", "rmsnorm", "add_rmsnorm"])
def test_exported_graph_has_derivatives(device, name):
    module = Module(name, device)
    inputs = [x.requires_grad_() for x in OPERATORS[name].rows(6, device)]
    program = torch.export.export(module, tuple(inputs)).module()
    expected = forward_and_backward(module, inputs, module.parameters())
    assert_same_bits(forward_and_backward(program, inputs, program.parameters()), expected)


RUN_PACKAGE = """
import sys
import my_ops, torch
package, inputs, outputs = sys.argv[1:]
model = torch._inductor.aoti_load_package(package)
torch.save([model(x) for x in torch.load(inputs)], outputs)
assert not [name for name in sys.modules if name.startswith(("operators", "test_"))]
assert "torch._inductor.graph" not in sys.modules, "nothing is compiled again"
"""


def test_aot_inductor_package(device, tmp_path):
    """Made here, run by a process that has imported my_ops and nothing else."""
    model = Block(device).eval().requires_grad_(False)
    x = torch.randn(6, K, device=device)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: ROWS},))
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "block.pt2")
    )
    inputs = [torch.randn(rows, K, device=device) for rows in (6, 11)]
    torch.save(inputs, tmp_path / "inputs.pt")
    done = subprocess.run(
        [sys.executable, "-c", RUN_PACKAGE, package, tmp_path / "inputs.pt", tmp_path / "out.pt"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_bits(torch.load(tmp_path / "out.pt"), [model(x) for x in inputs])
