"""Runs every CUDA kernel once or twice on small tensors, for compute-sanitizer: `make sanitize`.

Sizes are ragged and views misaligned, so that a kernel that reads or writes past an end is seen;
the caching allocator is off, so that every tensor has an allocation of its own.
"""

import os

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import torch

import my_ops


def tensor(*shape, dtype=torch.float32, misaligned=False):
    numel = torch.Size(shape).numel()
    flat = torch.randn(numel + misaligned, device="cuda").to(dtype)
    return flat[int(misaligned) :].view(shape).requires_grad_()


def backward(*outputs):
    sum(y.float().sum() for y in outputs).backward()


def square():
    for dtype in (torch.float32, torch.bfloat16):
        for misaligned in (False, True):
            x = tensor(7, 131, dtype=dtype, misaligned=misaligned)
            backward(my_ops.square(x))
            my_ops.square_(x.detach())


def rmsnorm():
    for width in (1, 7, 64, 111, 1024, 4096, 5125, 16384, 65544, 262144, 300000):
        for dtype in (torch.float32, torch.bfloat16):
            for misaligned in (False, True):
                x, residual = (tensor(3, width, dtype=dtype, misaligned=misaligned) for _ in "xr")
                weight = tensor(width, misaligned=misaligned)
                backward(my_ops.rmsnorm(x, weight))
                backward(*my_ops.add_rmsnorm(x, residual, weight))
    x, weight = tensor(5, 1000, dtype=torch.float64), tensor(1000, dtype=torch.float64)
    backward(my_ops.rmsnorm(x, weight))


def matmul():
    for m, k, n in ((1, 1, 1), (33, 65, 17), (128, 128, 256), (5, 3000, 7), (257, 31, 129)):
        for misaligned in (False, True):
            for a in (tensor(m, k, misaligned=misaligned), tensor(k, m, misaligned=misaligned).t()):
                for b in (
                    tensor(k, n, misaligned=misaligned),
                    tensor(n, k, misaligned=misaligned).t(),
                ):
                    backward(my_ops.matmul(a, b))
    for precision in ("bf16x6", "fp16x3", "tf32"):  # smaller products than these are "ieee"
        for m, k, n in ((1537, 1030, 1601), (700, 4099, 1001)):
            backward(my_ops.matmul(tensor(m, k), tensor(k, n), precision=precision))
    for m, k, n in ((9, 10, 11), (130, 300, 140), (20, 300, 1030), (3, 300, 1030)):
        for dtype in (torch.float32, torch.float64):
            for a in (tensor(m, k, dtype=dtype), tensor(k, m, dtype=dtype).t()):
                for b in (tensor(k, n, dtype=dtype), tensor(n, k, dtype=dtype).t()):
                    backward(my_ops.matmul(a, b))


def fp4():
    for format in ("nvfp4", "mxfp4"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for width in (1, 16, 33, 1000):
                x = tensor(5, width, dtype=dtype, misaligned=width == 1000)
                for rounding in ("nearest", "stochastic"):
                    for axis in (-1, 0):
                        q = my_ops.fp4_quantize(x, format, rounding=rounding, axis=axis)
                        backward(q.dequantize())
            # A ragged small tile, and so many ragged large ones that they are chosen.
            for m, k, n in ((37, 53, 29), (1031, 203, 2057)):
                a, b = tensor(m, k, dtype=dtype), tensor(k, n, dtype=dtype)
                backward(my_ops.fp4_matmul(a, b, format))
            weight = my_ops.fp4_quantize(tensor(29, 53).detach(), format)
            backward(
                my_ops.fp4_linear(tensor(37, 53, dtype=dtype), weight, tensor(29, dtype=dtype))
            )


if __name__ == "__main__":
    for room in (square, rmsnorm, matmul, fp4):
        room()
        torch.cuda.synchronize()
        print(f"{room.__name__}: done", flush=True)
