"""The package in threads, copies, other processes and other orders of import; its types."""

import ast
import copy
import inspect
import io
import os
import pickle
import runpy
import subprocess
import sys
import typing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from operators import OPERATORS, assert_same_bits, forward_and_backward

import my_ops

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", OPERATORS)
def test_threads(device, name):
    """Each of several Python threads gets, forward and backward, what it gets alone."""
    function = OPERATORS[name].function
    inputs = [OPERATORS[name].sample(rows, device) for rows in range(2, 10)]
    expected = [forward_and_backward(function, i) for i in inputs]

    def call(i):
        return [forward_and_backward(function, inputs[i]) for _ in range(20)]

    # Torch's number of threads is each thread's own, and the bits of its CPU matmul depend on it.
    as_here = {"initializer": torch.set_num_threads, "initargs": (torch.get_num_threads(),)}
    with ThreadPoolExecutor(4, **as_here) as threads:
        for results, wanted in zip(threads.map(call, range(len(inputs))), expected, strict=True):
            for result in results:
                assert_same_bits(result, wanted)


MODULES = {
    "RMSNorm": lambda: my_ops.nn.RMSNorm(64, eps=None, weight_offset=1.0, cast_order="hf"),
    "FP4Linear": lambda: my_ops.nn.FP4Linear(64, 32),
    "FP4Linear trainable": lambda: my_ops.nn.FP4Linear(64, 32, trainable=True),
}


def through_pickle(module):
    return pickle.loads(pickle.dumps(module))


def through_torch_save(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def through_torch_package(module):
    file = io.BytesIO()
    with torch.package.PackageExporter(file) as exporter:
        exporter.extern("my_ops.**")  # a compiled module cannot be part of a package
        exporter.save_pickle("model", "model.pkl", module)
    file.seek(0)
    return torch.package.PackageImporter(file).load_pickle("model", "model.pkl")


@pytest.mark.filterwarnings("ignore")  # of torch.package, about its storages
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, through_pickle, through_torch_save, through_torch_package]
)
@pytest.mark.parametrize("name", MODULES)
def test_copies_of_modules(device, name, copied):
    module = MODULES[name]().to(device)
    same = copied(module)
    x = torch.randn(3, 64, device=device)
    assert repr(same) == repr(module)
    assert torch.equal(same(x), module(x))
    for own, other in zip(same.parameters(), module.parameters(), strict=True):
        assert type(own) is type(other)
        own, other = (getattr(weight, "packed", weight) for weight in (own, other))
        assert own.data_ptr() != other.data_ptr()


@pytest.mark.parametrize("name", [n for n in my_ops.__all__ if n[0].islower() and n != "nn"])
def test_functions_pickle_by_name(name):
    assert pickle.loads(pickle.dumps(getattr(my_ops, name))) is getattr(my_ops, name)


@pytest.mark.parametrize("first", ["my_ops.nn.fp4_linear", "my_ops.distributed, torch"])
def test_any_part_can_be_imported_first(first):
    code = (
        f"import {first}\n"
        "import torch, my_ops\n"
        "x = torch.ones(2, 32)\n"
        "assert my_ops.fp4_linear(x, my_ops.fp4_quantize(x)).tolist() == [[32.0] * 2] * 2\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], env=environment, cwd="/", check=True)


def public_callables():
    """Functions, classes and their public methods, by name."""
    for module in (my_ops, my_ops.nn):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            elif inspect.isclass(value):
                for method, function in vars(value).items():
                    function = getattr(function, "__func__", getattr(function, "fget", function))
                    if inspect.isfunction(function) and not method.startswith("_"):
                        yield f"{module.__name__}.{name}.{method}", function


@pytest.mark.parametrize("name,function", list(public_callables()))
def test_public_functions_say_their_types(name, function):
    """mypy, in `make check`, holds the types to be right; this, that none is left out."""
    hints = typing.get_type_hints(function)
    parameters = [p for p in inspect.signature(function).parameters if p not in ("self", "cls")]
    untyped = {"device", "options", "args", "kwargs"}  # what PyTorch takes, handed on
    assert set(parameters) - untyped <= hints.keys() and "return" in hints


def signature(function: ast.FunctionDef) -> list:
    """Names, defaults, which are tensors, which may be None."""
    arguments = function.args.args
    missing = [ast.Name("required")] * (len(arguments) - len(function.args.defaults))
    types = [ast.unparse(a.annotation) for a in arguments] + [ast.unparse(function.returns)]
    return [
        [a.arg for a in arguments],
        [ast.unparse(default) for default in missing + function.args.defaults],
        [(t.count("Tensor"), "None" in t or "Optional" in t) for t in types],
    ]


STUB = ast.parse((ROOT / "my_ops" / "_C.pyi").read_text())


@pytest.mark.parametrize(
    "function", [f for f in STUB.body if isinstance(f, ast.FunctionDef)], ids=lambda f: f.name
)
def test_stub_has_the_signature_of_the_binding(function):
    """Which stubtest cannot see: pybind11 writes it into the docstring."""
    bound = getattr(my_ops._C, function.name).__doc__.splitlines()[0]
    (compiled,) = ast.parse(f"def {bound}: ...").body
    assert signature(function) == signature(compiled)
    assert ast.get_docstring(function)


def test_typed_program_runs():
    runpy.run_path(str(ROOT / "tests" / "typed_program.py"))
