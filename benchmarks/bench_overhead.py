"""What a call costs beside torch's own and other libraries': eager, with a gradient recorded,
compiled, and in a CUDA graph, on tensors so small that their work does not count.

    python benchmarks/bench_overhead.py [--quick]
"""

import peers
import torch
from bars import time_ratio
from suite import Case, Lazy, Suite
from torch.nn import functional as F

import my_ops

EPS = 1e-6
CALLS_IN_GRAPH = 50
# The most that a call may take of the time of torch's, without and with a gradient.
LONGEST_OF_TORCH = {
    ("square", "eager"): 1.0,
    ("square", "gradient"): 1.4,
    ("rmsnorm", "eager"): 1.0,
    ("rmsnorm", "gradient"): 1.4,
    ("fp4_linear", "eager"): 1.2,
    ("fp4_matmul", "eager"): 1.2,
}
OPERATORS = [
    "square", "rmsnorm", "add_rmsnorm", "matmul",
    "fp4_quantize", "fp4_dequantize", "fp4_linear", "fp4_matmul",
]  # fmt: skip
MODES = {
    "gpu": ["eager", "gradient", "compiled", "CUDA graph"],
    "gpu quick": ["eager", "gradient", "CUDA graph"],
    "cpu": ["eager", "gradient", "compiled"],
    "cpu quick": ["eager", "gradient"],
}

suite = Suite("overhead")


class Operands:
    """bfloat16 [16, 1024] (on a CPU, whose work would count, [1, 64]) for the elementwise, one row
    and a weight [64, 64] for the products."""

    def __init__(self, device, gradient):
        def tensor(*shape, dtype=torch.bfloat16):
            return torch.randn(*shape, device=device, dtype=dtype).requires_grad_(gradient)

        rows, H = (1, 64) if device == "cpu" else (16, 1024)
        self.x, self.residual, self.scale = tensor(rows, H), tensor(rows, H), tensor(H)
        self.a, self.b = (tensor(64, 64, dtype=torch.float32) for _ in range(2))
        self.row, self.weight = tensor(1, 64), tensor(64, 64)
        self.amax = torch.ops.my_ops.fp4_amax(self.x.detach())
        self.q = my_ops.fp4_quantize(self.x.detach())
        self.q_row = my_ops.fp4_quantize(self.row.detach())
        self.q_weight = my_ops.fp4_quantize(self.weight.detach())
        self.q_right = self.q_weight.t()


def calls(operator, device, gradient):
    """The call by library; torch has no FP4, its linear layer is in bfloat16."""
    o = Operands(device, gradient)
    rms_norm, add_rms_norm = (
        peers.torch_rms_norm(device, EPS),
        peers.torch_add_rms_norm(device, EPS),
    )
    torch_linear = {"torch": lambda: F.linear(o.row, o.weight)}
    return {
        "square": {"my_ops": lambda: my_ops.square(o.x), "torch": lambda: torch.square(o.x)},
        "rmsnorm": {
            "my_ops": lambda: my_ops.rmsnorm(o.x, o.scale, EPS),
            "torch": lambda: rms_norm(o.x, o.scale),
        },
        "add_rmsnorm": {
            "my_ops": lambda: my_ops.add_rmsnorm(o.x, o.residual, o.scale, EPS),
            "torch": lambda: add_rms_norm(o.x, o.residual, o.scale),
        },
        "matmul": {"my_ops": lambda: my_ops.matmul(o.a, o.b), "torch": lambda: torch.mm(o.a, o.b)},
        "fp4_quantize": {"my_ops": lambda: my_ops.fp4_quantize(o.x, amax=o.amax)},
        "fp4_dequantize": {"my_ops": lambda: my_ops.fp4_dequantize(o.q)},
        "fp4_linear": {"my_ops": lambda: my_ops.fp4_linear(o.row, o.q_weight)} | torch_linear,
        "fp4_matmul": {"my_ops": lambda: my_ops.fp4_matmul(o.q_row, o.q_right)} | torch_linear,
    }[operator], o


def other_libraries(operator, device, o):
    """Their rmsnorm, on a GPU."""
    if operator != "rmsnorm" or device == "cpu":
        return {}
    norms = {"liger": peers.liger_rms_norm, "quack": peers.quack_rms_norm}

    def prepare(make):
        norm = make(device, EPS)
        return lambda: norm(o.x, o.scale)

    return {name: Lazy(lambda make=make: prepare(make)) for name, make in norms.items()}


def finite(result):
    """That the values are right is the tests' business; these calls are all timed there."""
    first = result[0] if isinstance(result, tuple) else result
    values = my_ops.fp4_dequantize(first) if isinstance(first, my_ops.FP4Tensor) else first
    assert values.isfinite().all() and values.abs().sum() > 0, "no values"


@suite.group(operator=OPERATORS, mode=MODES)
def call(device, operator, mode):
    """Host time of a call; in a CUDA graph the time on the GPU."""
    functions, operands = calls(operator, device, gradient=mode == "gradient")
    if mode in ("eager", "gradient"):
        functions |= other_libraries(operator, device, operands)
    if mode == "compiled":
        functions = {
            name: Lazy(lambda f=f: peers.compiled(device, f)) for name, f in functions.items()
        }
    if mode == "CUDA graph":
        functions = {name: lambda i, f=f: f() for name, f in functions.items()}
    bound = LONGEST_OF_TORCH.get((operator, mode))
    return Case(
        functions,
        finite,
        how="graph" if mode == "CUDA graph" else "host",
        calls=CALLS_IN_GRAPH,
        bars=[time_ratio("torch", bound)] if bound else [],
    )


if __name__ == "__main__":
    suite.main()
