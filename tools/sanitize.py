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
            x, weight = tensor(3, width, dtype=dtype), tensor(width)
            backward(my_ops.rmsnorm(x, weight))
            backward(*my_ops.add_rmsnorm(x, tensor(3, width, dtype=dtype), weight))


def matmul():
    for m, k, n in ((1, 1, 1), (33, 65, 17), (128, 128, 256), (5, 3000, 7), (257, 31, 129)):
        for misaligned in (False, True):
            a, b = tensor(m, k, misaligned=misaligned), tensor(k, n, misaligned=misaligned)
            backward(my_ops.matmul(a, b))
    backward(my_ops.matmul(tensor(9, 10, dtype=torch.float64), tensor(10, 11, dtype=torch.float64)))


def fp4():
    for format in ("nvfp4", "mxfp4"):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for width in (1, 16, 33, 1000):
                x = tensor(5, width, dtype=dtype, misaligned=width == 1000)
                for rounding in ("nearest", "stochastic"):
                    q = my_ops.fp4_quantize(x, format, rounding=rounding)
                    backward(q.dequantize())
            a, b = tensor(37, 53, dtype=dtype), tensor(53, 29, dtype=dtype)
            backward(my_ops.fp4_matmul(a, b, format))
            weight = my_ops.fp4_quantize(tensor(29, 53).detach(), format)
            backward(my_ops.fp4_linear(a, weight, tensor(29, dtype=dtype)))


if __name__ == "__main__":
    for room in (square, rmsnorm, matmul, fp4):
        room()
        torch.cuda.synchronize()
        print(f"{room.__name__}: done", flush=True)
