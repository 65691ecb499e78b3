"""The FP4 sources compiled straight from csrc/, without an installed my_ops.

    python examples/jit_load.py

`torch.utils.cpp_extension.load` builds csrc/fp4 into a library whose operators register themselves
under `torch.ops.my_ops`. They are the raw operators: gradients and `FP4Tensor` are Python's, in
my_ops. A tensor then makes the trip to four bits and back.
"""

import time

import torch
from jit_build import ROOT, describe, devices, jit_options

# Elements that share a scale, and the largest error of one of them, relative to the largest
# magnitude of its block. FP4's values are 0 .5 1 1.5 2 3 4 6.
#   nvfp4: the block's largest becomes 6, give or take 1/16 for rounding the scale to 8 bits; the
#          widest interval, 4 to 6, is wrong by at most 1.
#   mxfp4: the largest comes to lie between 4 and 8: 1 of 4, or 2 of 8 where it saturates at 6.
FORMATS = {"nvfp4": (16, 17 / 16 / 6), "mxfp4": (32, 1 / 4)}


def build(options: dict) -> None:
    """Compiles csrc/fp4 and loads it; from the cache when no source or header has changed."""
    from torch.utils.cpp_extension import load

    csrc = ROOT / "csrc"
    suffixes = {".cpp", ".cu"} if options["with_cuda"] else {".cpp"}
    files = sorted([*csrc.glob("common/*"), *csrc.glob("fp4/*")])
    sources = [str(path) for path in files if path.suffix in suffixes]
    sources = [path for path in sources if "fp4_rmsnorm" not in path]  # needs the rmsnorm room too
    # As in setup.py: CPU and GPU give the same bytes, so the CPU must not contract to FMA.
    changed = {
        "extra_cflags": [*options["extra_cflags"], "-ffp-contract=off"],
        "extra_include_paths": [str(csrc), *options["extra_include_paths"]],
    }
    load(sources=sources, is_python_module=False, **{**options, **changed})


def quantize(x: torch.Tensor, format: str) -> tuple:
    """(packed, scale, amax) of x; only NVFP4 has a scale for the whole tensor."""
    amax = torch.ops.my_ops.fp4_amax(x) if format == "nvfp4" else None
    return *torch.ops.my_ops.fp4_quantize(x, amax, format, "floor", "nearest", 0), amax


def round_trip(x: torch.Tensor, format: str) -> torch.Tensor:
    return torch.ops.my_ops.fp4_dequantize(*quantize(x, format), x.shape[-1], format, "float32")


def check(device: str, format: str) -> str:
    """Round trips of FP4's own values and of random ones; the result for a person."""
    block, bound = FORMATS[format]
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=device)
    exact = torch.cat((values, -values)).repeat(64, block // 8)
    torch.testing.assert_close(round_trip(exact, format), exact, rtol=0, atol=0)

    x = torch.randn(512, 1024)
    packed, scale, _ = quantize(x.to(device), format)
    on_cpu = quantize(x, format)
    assert torch.equal(packed.cpu(), on_cpu[0]), "codes differ from the CPU's"
    assert torch.equal(scale.cpu(), on_cpu[1]), "scales differ from the CPU's"

    y = round_trip(x.to(device), format).cpu()
    largest = x.unflatten(-1, (-1, block)).abs().amax(-1, keepdim=True)
    error = ((y - x).unflatten(-1, (-1, block)).abs() / largest).max().item()
    assert error <= bound, f"{format} on {device}: error {error:.4f} of the block's largest"
    bits = 8 * (packed.nbytes + scale.nbytes) / x.numel()
    return f"{bits:.2f} bits an element, largest error {error:.3f} of a block (bound {bound:.3f})"


def main() -> None:
    options = jit_options("jit_load")
    print(f"Building csrc/fp4: {describe(options)} ...", flush=True)
    start = time.perf_counter()
    build(options)
    print(f"  {time.perf_counter() - start:.1f} s (unchanged sources are not built again)\n")

    torch.manual_seed(0)
    for device in devices(options):
        for format in FORMATS:
            print(f"{format} on {device}: {check(device, format)}")
    if devices(options) == ["cpu"]:
        fate = "compiled, not run" if options["with_cuda"] else "left out"
        print(f"\nNo GPU here: the CUDA kernels were {fate}.")


if __name__ == "__main__":
    main()
