"""Small calls that reach every CUDA kernel, room by room, and which kernels they have reached.

Sizes are ragged and views misaligned, so that a kernel that reads or writes past an end is seen.
They are the smallest for which a kernel is chosen on an H200 (the plans in csrc say when), since a
sanitizer makes every launch slow: dtypes and layouts alternate over the sizes.
"""

import itertools
import re
from pathlib import Path

import torch

import my_ops

CSRC = Path(__file__).resolve().parent.parent / "csrc"
FORMATS = "nvfp4", "mxfp4"


def kernels() -> dict[str, str]:
    """The name of every __global__ function in csrc, with its namespace if it has one of its own,
    and the room that it is in."""
    found = {}
    for path in sorted(CSRC.rglob("*.cu*")):
        text = path.read_text()
        for match in re.finditer(r"__global__", text):
            name = re.search(r"\b(\w+_kernel)\s*\(", text[match.end() :]).group(1)
            own = re.findall(r"^namespace (?!my_ops)(\w+) {", text[: match.start()], re.MULTILINE)
            found["::".join([*own[-1:], name])] = path.relative_to(CSRC).parts[0]
    return found


def reached(rooms) -> set[str]:
    """Runs the cases of the rooms and returns the kernels that ran."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for room in rooms:
            ROOMS[room]()
        torch.cuda.synchronize()
    launched = {event.name for event in profile.events()}
    return {name for name in kernels() if any(is_kernel(name, text) for text in launched)}


def is_kernel(name: str, text: str) -> bool:
    """Whether `text`, as the profiler or a sanitizer prints it, names the kernel."""
    return re.search(rf"(?<!\w){re.escape(name)}\b", text) is not None


def tensor(*shape, dtype=torch.float32, misaligned=False):
    numel = torch.Size(shape).numel()
    flat = torch.randn(numel + misaligned, device="cuda").to(dtype)
    return flat[int(misaligned) :].view(shape).requires_grad_()


def backward(*outputs):
    """The gradients of all leaves; reads every element of the outputs."""
    sum(y.float().sum() for y in outputs).backward()


def square():
    for dtype in (torch.float32, torch.bfloat16):
        for misaligned in (False, True):
            x = tensor(7, 131, dtype=dtype, misaligned=misaligned)
            backward(my_ops.square(x))
            my_ops.square_(x.detach())


# Lanes, warps, blocks and clusters of a row, in whole and ragged packs; then slices of one row for
# which no cluster is wide enough.
NORM_WIDTHS = (1, 7, 64, 111, 500, 1024, 2051, 4096, 5125, 16384, 20001, 65544, 300000)
NORM_LONG_ROWS = (200_001, 1_000_000)


def rmsnorm():
    recipes = itertools.cycle(
        [
            (torch.float32, False),
            (torch.bfloat16, True),
            (torch.bfloat16, False),
            (torch.float32, True),
            (torch.float16, False),
        ]
    )
    for width in NORM_WIDTHS:
        for dtype, misaligned in itertools.islice(recipes, 2):
            x, residual = (tensor(3, width, dtype=dtype, misaligned=misaligned) for _ in "xr")
            weight = tensor(width, misaligned=misaligned)
            backward(my_ops.rmsnorm(x, weight))
            backward(*my_ops.add_rmsnorm(x, residual, weight))
    for width, misaligned in itertools.product((4501, 5501), (False, True)):  # 5 and 6 chunks
        x, residual = (tensor(3, width, misaligned=misaligned) for _ in "xr")
        weight = tensor(width, misaligned=misaligned)
        backward(my_ops.rmsnorm(x, weight))
        backward(*my_ops.add_rmsnorm(x, residual, weight))
    for width in (200_000, 262_144):  # float32 rows of which registers and shared memory hold parts
        x, residual, weight = tensor(3, width), tensor(3, width), tensor(width)
        backward(my_ops.rmsnorm(x, weight))
        backward(*my_ops.add_rmsnorm(x, residual, weight))
    for misaligned in (False, True):  # tiles that all multiprocessors share, the last one ragged
        recipe = {"dtype": torch.bfloat16, "misaligned": misaligned}
        x, residual = (tensor(5, 401_416, **recipe) for _ in "xr")
        weight = tensor(401_416, misaligned=misaligned)
        backward(my_ops.rmsnorm(x, weight))
        backward(*my_ops.add_rmsnorm(x, residual, weight))
    for width in (32_768, 262_144):  # all of a 16-bit weight ahead
        x, residual = (tensor(3, width, dtype=torch.bfloat16) for _ in "xr")
        weight = tensor(width, dtype=torch.bfloat16)
        backward(my_ops.rmsnorm(x, weight))
        backward(*my_ops.add_rmsnorm(x, residual, weight))
    for width in NORM_LONG_ROWS:
        x, weight = tensor(2, width, dtype=torch.bfloat16), tensor(width)
        backward(my_ops.rmsnorm(x, weight))
    x, weight = tensor(5, 1000, dtype=torch.float64), tensor(1000, dtype=torch.float64)
    backward(my_ops.rmsnorm(x, weight))


def layouts(rows, cols, dtype=torch.float32, misaligned=False):
    yield tensor(rows, cols, dtype=dtype, misaligned=misaligned)
    yield tensor(cols, rows, dtype=dtype, misaligned=misaligned).t()


def matmul():
    # A single tile, whole and ragged ones, K in slices, a wide tile, vectors; large tiles.
    shapes = [(1, 1, 1), (33, 65, 17), (128, 128, 256), (5, 3000, 7), (6, 5000, 300), (3, 300, 515)]
    dtypes = torch.float32, torch.float64
    for (m, k, n), dtype in itertools.product(shapes, dtypes):
        misaligned = m % 3 == 0
        for a in layouts(m, k, dtype, misaligned):
            for b in layouts(k, n, dtype, misaligned):
                my_ops.matmul(a, b).sum().item()
        backward(my_ops.matmul(a, b))
    for dtype in dtypes:
        backward(my_ops.matmul(tensor(3000, 20, dtype=dtype), tensor(20, 2000, dtype=dtype)))
    backward(my_ops.matmul(tensor(1, 4096), tensor(4096, 64)))
    # Rows that are no whole vectors, in a result so large that they are copied to such.
    my_ops.matmul(tensor(5, 3073).t(), tensor(5, 3075)).sum().item()
    for precision in ("bf16x6", "fp16x3", "tf32"):
        # Narrow tiles, K in slices; wide tiles, and their gradients.
        my_ops.matmul(tensor(512, 2050), tensor(2050, 1001), precision=precision).sum().item()
        backward(my_ops.matmul(tensor(1537, 520), tensor(520, 1601), precision=precision))
    # "tf32" as the operands lie in memory: K in slices, whole; each layout, and one copied.
    for m, k, n in ((260, 2052, 260), (1540, 132, 1604)):
        backward(my_ops.matmul(tensor(m, k), tensor(k, n), precision="tf32"))
    for a, b in itertools.product(layouts(1540, 1028), layouts(1028, 1604)):
        my_ops.matmul(a, b, precision="tf32").sum().item()
    my_ops.matmul(tensor(261, 1028)[1:, 1:-3], tensor(1024, 516), precision="tf32").sum().item()
    # What the scaled fp16 of "tf32" cannot hold; what no tensor core takes.
    a, b = tensor(1537, 520).detach(), tensor(520, 1601).detach()
    a[:, ::2] *= 2.0**35
    b[::2] *= 2.0**-35
    my_ops.matmul(a, b, precision="tf32").sum().item()
    a[5, 6] = torch.inf
    my_ops.matmul(a, b, precision="bf16x6").isnan().sum().item()


def fp4():
    for format, dtype in itertools.product(FORMATS, (torch.float32, torch.bfloat16)):
        for i, width in enumerate((1, 16, 33, 1000, 4096)):
            x = tensor(5, width, dtype=dtype, misaligned=i % 2 == 1)
            rounding = ("nearest", "stochastic")[i % 2]
            for axis in (-1, 0):
                q = my_ops.fp4_quantize(x, format, rounding=rounding, axis=axis)
                backward(q.dequantize())
        tall = my_ops.fp4_quantize(tensor(3000, 40, dtype=dtype), format)
        tall.dequantize(torch.float16).sum().item()
        for x in (tensor(33, 50, dtype=dtype), tensor(50, 33, dtype=dtype).t()):
            torch.ops.my_ops.fp4_hadamard(x.detach()).sum().item()
    my_ops.fp4_quantize(tensor(700, 500)).dequantize().sum().item()  # amax by many blocks
    for shape in ((64, 96), (33, 50)):
        my_ops.fp4_quantize(tensor(*shape), block2d=True).dequantize().sum().item()
    for format, H in itertools.product(FORMATS, (2048, 5120, 8192)):
        for dtype, w_dtype in ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)):
            x, weight = tensor(3, H, dtype=dtype).detach(), tensor(H, dtype=w_dtype).detach()
            options = {"two_level": False} if format == "nvfp4" else {}
            q = my_ops.rmsnorm_fp4_quantize(x, weight, format=format, **options)
            q.dequantize().sum().item()


# (rows of x, N, K) for each plan of fp4_linear: few rows, their K in one slice and in two; every
# tile of the fused kernel, one with K in two slices; what is too small or too odd for both; what
# has a kernel for the gradient of x; rows of the weight that no vectors of 16 bytes reach, and one
# row of x with them; panels that the copy engine brings; results that it stores; K in parts of
# several clusters; a last tile of boxes that is not full.
LINEAR_SHAPES = [
    *((1, 1030, 1024), (5, 1030, 2080), (8, 70, 16384)),
    *((9, 1030, 1024), (40, 1030, 2048), (97, 5000, 256), (193, 5000, 256), (385, 5000, 256)),
    *((37, 29, 53), (1031, 2057, 64)),
    *((8, 1032, 1024), (16, 2056, 1024), (40, 4104, 1024)),
    *((3, 1030, 2064), (13, 1030, 2064), (29, 1030, 2064), (50, 1030, 2064), (97, 1030, 2064)),
    *((20, 17000, 256), (8, 2200, 2896), (16, 4203, 4112), (7, 9005, 4112)),
    *((9, 520, 4096), (3, 7200, 4096), (16, 8200, 6144), (13, 14340, 5120)),
    *((1, 4104, 2048), (7, 4104, 2048), (21, 8200, 4608), (29, 4104, 2560)),
    *((1530, 4112, 256), (2000, 2192, 2304)),
    *((50, 310, 6144), (120, 5003, 3072), (120, 5003, 3088), (70, 20000, 512)),
    *((8, 2200, 1040), (13, 1030, 1040)),
    *((300, 1030, 2064), (1, 1030, 2096), (3, 5000, 272), (13, 5000, 272), (3, 8203, 144)),
    *((1, 533, 4112), (1, 533, 4128), (1, 533, 4336), (1, 533, 4320)),
    *((1, 5003, 4112), (1, 4104, 4096), (1, 533, 4368), (1, 533, 4384)),
    *((120, 2064, 512), (400, 1168, 2560), (400, 2330, 1024), (140, 1017, 1040), (60, 300, 6160)),
    *((100, 4420, 272), (500, 4420, 272), (200, 8644, 2576), (12, 4300, 256), (9, 8460, 128)),
    *((3, 233, 4608), (1, 300, 4224), (1, 69, 16400)),
]


def fp4_matmul():
    for i, (m, n, k) in enumerate(LINEAR_SHAPES):
        dtype = (torch.bfloat16, torch.float16)[i % 2]
        for format in FORMATS:
            weight = my_ops.fp4_quantize(tensor(n, k).detach(), format)
            x, bias = tensor(m, k, dtype=dtype), tensor(n, dtype=dtype)
            backward(my_ops.fp4_linear(x, weight, bias))
    # Many rows of x that the copy engine cannot read.
    weight = my_ops.fp4_quantize(tensor(5000, 256).detach())
    x = tensor(385, 256, dtype=torch.bfloat16, misaligned=True)
    backward(my_ops.fp4_linear(x, weight))
    for format, dtype in itertools.product(FORMATS, (torch.float32, torch.bfloat16)):
        for m, k, n in ((37, 53, 29), (300, 1024, 1100), (1031, 203, 2057)):
            backward(
                my_ops.fp4_matmul(tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype), format)
            )
    # Both gradients by wide tiles, the second factor widened beside the first product.
    for format in FORMATS:
        a, b = (tensor(*shape, dtype=torch.bfloat16) for shape in ((1040, 1024), (1024, 1104)))
        backward(my_ops.fp4_matmul(a, b, format))
    # Both operands quantized together: b along its rows, and transposed.
    for i, format in enumerate(FORMATS):
        dtype = (torch.bfloat16, torch.float16)[i]
        a = tensor(385, 256, dtype=dtype)
        for b in tensor(256, 5000, dtype=dtype), tensor(5000, 256, dtype=dtype).t():
            backward(my_ops.fp4_matmul(a, b, format))


ROOMS = {
    "square": square,
    "rmsnorm": rmsnorm,
    "matmul": matmul,
    "fp4": fp4,
    "fp4_matmul": fp4_matmul,
}
