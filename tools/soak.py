"""Calls all operators at random, a million times, and fails if memory grows: `make soak`.

Forward and backward, eager and compiled, on small tensors of changing shapes and dtypes; every call
is checked for NaN. What is looked at is the memory of the process and, on a GPU, what PyTorch holds
there: both have to be flat once the first tenth of the calls has warmed the caches.
"""

import argparse
import ctypes
import gc
import random
import time

import torch

import my_ops

FP4_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Soak:
    """Random calls on one device, the same for one seed."""

    def __init__(self, device: str, seed: int = 0, backend: str = "aot_eager"):
        self.device, self.random = device, random.Random(seed)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.weight = my_ops.fp4_quantize(self.tensor(24, 48), "nvfp4")
        self.compiled = torch.compile(self._model, backend=backend, dynamic=True)
        self.calls = (
            self.square,
            self.square_in_place,
            self.rmsnorm,
            self.add_rmsnorm,
            self.matmul,
            self.fp4_round_trip,
            self.fp4_matmul,
            self.fp4_linear,
            self.rmsnorm_fp4_quantize,
            self.fp4_rows,
            self.model,
            self.refused,
        )

    def tensor(self, *shape, dtype=torch.float32, grad=False):
        x = torch.randn(shape, device=self.device, generator=self.generator).to(dtype)
        if len(shape) == 2 and self.random.random() < 0.3:
            x = x.t().contiguous().t()
        return x.requires_grad_(grad)

    def size(self):
        return self.random.choice((1, 2, 3, 7, 8, 16, 33))

    def format(self):
        return self.random.choice(("nvfp4", "mxfp4"))

    def dtype(self):
        return self.random.choice(FP4_DTYPES)

    def call(self):
        """One random call, and its backward where it has one."""
        y = self.random.choice(self.calls)()
        if y.requires_grad:
            y.float().sum().backward()
        return y

    def square(self):
        return my_ops.square(self.tensor(self.size(), self.size(), dtype=self.dtype(), grad=True))

    def square_in_place(self):
        return my_ops.square_(self.tensor(self.size(), self.size()))

    def rmsnorm(self):
        H = self.size()
        weight = self.tensor(H, grad=True) if self.random.random() < 0.7 else None
        return my_ops.rmsnorm(self.tensor(self.size(), H, dtype=self.dtype(), grad=True), weight)

    def add_rmsnorm(self):
        shape = self.size(), self.size()
        x, residual = (self.tensor(*shape, grad=True) for _ in range(2))
        y, total = my_ops.add_rmsnorm(x, residual, self.tensor(shape[1]))
        return y + total

    def matmul(self):
        M, K, N = self.size(), self.size(), self.size()
        a, b = self.tensor(M, K, grad=True), self.tensor(K, N, grad=True)
        return my_ops.matmul(a, b, precision=self.random.choice(("ieee", "bf16x6", "tf32")))

    def fp4_round_trip(self):
        x = self.tensor(self.size(), self.size(), dtype=self.dtype(), grad=True)
        rounding = self.random.choice(("nearest", "stochastic"))
        axis = self.random.choice((0, -1))
        return my_ops.fp4_quantize(x, self.format(), rounding=rounding, axis=axis).dequantize()

    def fp4_matmul(self):
        M, K, N = self.size(), self.size(), self.size()
        a = self.tensor(M, K, dtype=self.dtype(), grad=True)
        return my_ops.fp4_matmul(a, self.tensor(K, N, grad=True), self.format())

    def fp4_linear(self):
        x = self.tensor(self.size(), 48, dtype=self.dtype(), grad=True)
        return my_ops.fp4_linear(x, self.weight, self.tensor(24, grad=True))

    def rmsnorm_fp4_quantize(self):
        x = self.tensor(self.size(), 32)
        return my_ops.rmsnorm_fp4_quantize(x, format=self.format(), two_level=False).dequantize()

    def fp4_rows(self):
        rows = self.weight[self.random.randrange(24) :].t().t()
        return torch.nn.functional.linear(self.tensor(2, 48), rows)

    @staticmethod
    def _model(x, weight, b):
        y = my_ops.matmul(my_ops.rmsnorm(my_ops.square(x), weight), b)
        return my_ops.fp4_matmul(y, b.t()) + y.sum()

    def model(self):
        rows = self.random.choice((2, 5, 9))
        x, b = self.tensor(rows, 16, grad=True), self.tensor(16, 32, grad=True)
        return self.compiled(x, self.tensor(16, grad=True), b)

    def refused(self):
        try:
            my_ops.matmul(self.tensor(2, 3), self.tensor(2, 3))
        except RuntimeError:
            return self.tensor(1)
        raise AssertionError("a product of shapes that do not fit was not refused")


def held_bytes(device: str) -> dict[str, int]:
    """Memory in use, after what is garbage has been given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as pages:
        held = {"process": int(pages.read().split()[1]) * 4096}
    if device == "cuda":
        torch.cuda.synchronize()
        held["allocated"] = torch.cuda.memory_allocated()
        held["reserved"] = torch.cuda.memory_reserved()
    return held


def run(device: str, calls: int, seed: int = 0, backend: str = "aot_eager", report=print):
    """Makes the calls; returns the growth in bytes after the first tenth of them."""
    soak, start, warm = Soak(device, seed, backend), time.perf_counter(), None
    tenth = max(1, calls // 10)
    for done in range(1, calls + 1):
        if soak.call().isnan().any():
            raise AssertionError(f"call {done} of seed {seed} gave a NaN")
        if done % tenth == 0:
            held = held_bytes(device)
            warm = warm or held
            rate = done / (time.perf_counter() - start)
            sizes = ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in held.items())
            report(f"{done} calls, {rate:.0f}/s: {sizes}")
    return {name: held[name] - warm[name] for name in held}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--growth", type=float, default=16, help="what is allowed, in MiB")
    args = parser.parse_args()
    grown = run(args.device, args.calls, args.seed, args.backend, lambda s: print(s, flush=True))
    print("grown: " + ", ".join(f"{name} {size / 2**20:.2f} MiB" for name, size in grown.items()))
    if max(grown.values()) > args.growth * 2**20:
        raise SystemExit(f"more than {args.growth} MiB")


if __name__ == "__main__":
    main()
