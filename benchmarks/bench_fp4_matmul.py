"""my_ops.fp4_linear beside cuBLAS in 16 bits (torch), Humming and bitsandbytes; fp4_matmul, whose
operands are both FP4, beside torch.

    python benchmarks/bench_fp4_matmul.py [--quick]

A linear layer runs inside a CUDA graph, its weights rotate through more memory than L2 holds.
"""

import functools

import peers
import torch
from bars import microseconds, speed, time_ratio, value
from suite import Case, Lazy, Suite, Values, close, rotations
from torch.nn import functional as F

import my_ops

FORMATS = ("nvfp4", "mxfp4")
PACKED_BYTES = {"nvfp4": 9 / 16, "mxfp4": 17 / 32}
BF16 = [torch.bfloat16]
DTYPES = {s: [torch.bfloat16, torch.float16] for s in ("gpu", "cpu", "cpu quick")}
DTYPES["gpu quick"] = BF16
LAYER = {"gpu": [8192], "gpu quick": [8192], "cpu": [512], "cpu quick": [64]}
ROWS = {
    "gpu": [1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096],
    "gpu quick": [1, 64, 1024],
    "cpu": [1, 16, 128],
    "cpu quick": [1, 8],
}
OTHER_LAYERS = {  # N, K
    "gpu": [(4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192), (5003, 4112)],
    "gpu quick": [(4096, 14336)],
    "cpu": [(256, 512)],
    "cpu quick": [(37, 48)],
}
OTHER_ROWS = {"gpu": [1, 16, 64, 128, 512, 1024], "gpu quick": [16], "cpu": [1], "cpu quick": [1]}
PRODUCTS = {"gpu": [4096, 8192], "gpu quick": [4096], "cpu": [512], "cpu quick": [32]}
# The longest times of an 8192 x 8192 layer in us, from M = 256 over the time of torch.
LONGEST_US = {1: 12.5, 4: 12.5, 8: 12.5, 16: 14, 32: 16, 64: 20, 128: 28}
LONGEST_OF_TORCH = {256: 1, 512: 1}
LONGEST_OF_TORCH_BEYOND = 1.03
OTHER_LAYERS_SLACK = 1.2  # of the same ratio to the bytes of the weight

suite = Suite("fp4_matmul")


class Product:
    """Square operands, dense and packed, and a graph for their gradients."""

    def __init__(self, device, n):
        self.a, self.b, self.grad = (
            torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(3)
        )
        self.leaves = [t.clone().requires_grad_() for t in (self.a, self.b)]

    def packed(self, format):
        return my_ops.fp4_quantize(self.a, format), my_ops.fp4_quantize(self.b, format, axis=0)

    def wide(self, format):
        return [q.dequantize(torch.float32) for q in self.packed(format)]

    def gradients(self, y):
        return torch.autograd.grad(y, self.leaves, self.grad, retain_graph=True)


def product_case(product, make, check, bound, products=1):
    """make(format) is our function in a format, make(None) that of torch."""
    functions = {}
    for format in (*FORMATS, None):
        name = f"my_ops {format}" if format else "torch"
        functions[name] = Lazy(functools.partial(prepared, make, check, format))
    bars = [speed("torch", bound, f"my_ops {format}") for format in FORMATS]
    flops = 2 * products * product.a.shape[0] ** 3
    return Case(functions, lambda result: None, flops=flops, bars=bars)


def prepared(make, check, format):
    function = make(format)
    if format:
        check(function(), format)
    return function


def product_forward(device, n, operands, bound):
    """operands(product, format) are those of fp4_matmul."""
    p = Product(device, n)

    def make(format):
        if format is None:
            return lambda: p.a @ p.b
        a, b = operands(p, format)
        return lambda: my_ops.fp4_matmul(a, b, format)

    def check(y, format):
        wide_a, wide_b = p.wide(format)
        close(y, wide_a @ wide_b)

    return product_case(p, make, check, bound)


@suite.group(n=PRODUCTS)
def forward(device, n):
    """2 n^3 operations; both operands are quantized in the call."""
    return product_forward(device, n, lambda p, format: (p.a, p.b), 0.85 if n == 4096 else 0.90)


@suite.group(n=PRODUCTS)
def packed_forward(device, n):
    """2 n^3 operations; the operands were quantized before."""
    return product_forward(device, n, Product.packed, 0.90)


@suite.group(n=PRODUCTS)
def backward(device, n):
    """4 n^3 operations: both gradients, from the packed operands."""
    p = Product(device, n)

    def make(format):
        y = my_ops.fp4_matmul(*p.leaves, format) if format else p.leaves[0] @ p.leaves[1]
        return lambda: p.gradients(y)

    def check(gradients, format):
        wide_a, wide_b = p.wide(format)
        close(gradients[0], p.grad.float() @ wide_b.t())
        close(gradients[1], wide_a.t() @ p.grad.float())

    return product_case(p, make, check, 0.90, products=2)


@suite.group(n=PRODUCTS)
def memory(device, n):
    """Bytes kept between forward and backward, over those of the bfloat16 operands."""
    p = Product(device, n)
    dense = p.a.nbytes + p.b.nbytes
    kept = {f"my_ops {f}": saved_bytes(my_ops.fp4_matmul, *p.leaves, f) / dense for f in FORMATS}
    kept["torch"] = saved_bytes(torch.matmul, *p.leaves) / dense
    return Values(kept, "of the operands", [value(0.30, f"my_ops {f}") for f in FORMATS])


def saved_bytes(function, *args):
    """Bytes of all distinct tensors that function(*args) saves for its backward."""
    saved = {}

    def pack(tensor):
        saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = function(*args)
    assert kept.requires_grad
    return sum(saved.values())


@functools.lru_cache(maxsize=1)
def dense_weight(device, N, K, dtype):
    seeded = torch.Generator(device).manual_seed(0)  # one weight, whichever case asks first
    return torch.randn(N, K, device=device, dtype=dtype, generator=seeded) / K**0.5


@functools.lru_cache(maxsize=6)  # the libraries of one layer
def linear(library, device, N, K, dtype):
    """linear(x, i) with the i-th copy of the weight, for which the library has its own format."""
    dense = dense_weight(device, N, K, dtype)
    name, _, format = library.partition(" ")
    packed = int(PACKED_BYTES.get(format, 9 / 16) * N * K)
    count = rotations(dense.nbytes if name == "torch" else packed, device)
    if name == "torch":
        weights = [dense.clone() for _ in range(count)]
        return lambda x, i: F.linear(x, weights[i % count])
    if name == "my_ops":
        q = my_ops.fp4_quantize(dense, format)
        quantized = [q, *(q.clone() for _ in range(count - 1))]
        return lambda x, i: my_ops.fp4_linear(x, quantized[i % count])
    if name == "humming":
        layer = peers.humming_linear(device, [dense] * count, format)
    else:
        layer = peers.bitsandbytes_linear(device, [dense] * count)
    return lambda x, i: layer(x, i % count)


def layer(device, dtype, N, K, M, bars):
    x = torch.randn(M, K, device=device, dtype=dtype)
    wide = F.linear(x.float(), dense_weight(device, N, K, dtype).float())
    libraries = ["my_ops nvfp4", "my_ops mxfp4", "torch"]
    if device != "cpu" and dtype == torch.bfloat16:
        libraries += ["humming nvfp4", "humming mxfp4", "bitsandbytes"]

    def prepare(library):
        function = linear(library, device, N, K, dtype)
        if library.startswith("my_ops"):  # exact up to rounding, of what the weight became
            q = my_ops.fp4_quantize(dense_weight(device, N, K, dtype), library[-5:])
            close(function(x, 0), F.linear(x.float(), q.dequantize(torch.float32)))
        return lambda i: function(x, i)

    return Case(
        {name: Lazy(functools.partial(prepare, name)) for name in libraries},
        lambda y: close(y, wide, 0.2),  # the noise of 4 bits
        bytes=int(PACKED_BYTES["nvfp4"] * N * K),
        flops=2 * M * N * K,
        how="graph",
        calls=2 if device == "cpu" else 24 if M <= 128 else 9,
        bars=bars,
    )


def bars_of(M, us_scale=1.0, slack=1.0):
    names = [f"my_ops {format}" for format in FORMATS]
    if M in LONGEST_US:
        return [microseconds(LONGEST_US[M] * us_scale * slack, name) for name in names]
    ratio = LONGEST_OF_TORCH.get(M, LONGEST_OF_TORCH_BEYOND)
    return [time_ratio("torch", ratio * slack, name) for name in names]


@suite.group(dtype=DTYPES, N=LAYER, M=ROWS)
def linear_layer(device, dtype, N, M):
    """2 M N K operations, K = N; 9/16 N K bytes: those of the NVFP4 weight."""
    return layer(device, dtype, N, N, M, bars_of(M))


@suite.group(dtype=BF16, shape=OTHER_LAYERS, M=OTHER_ROWS)
def other_layers(device, dtype, shape, M):
    """2 M N K operations; 9/16 N K bytes: those of the NVFP4 weight."""
    N, K = shape
    bars = bars_of(M, us_scale=N * K / 8192**2, slack=OTHER_LAYERS_SLACK)
    return layer(device, dtype, N, K, M, bars)


if __name__ == "__main__":
    suite.main()
