"""The machine and the versions that a result was measured with."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch

import my_ops

ROOT = Path(__file__).resolve().parent.parent
PEERS = ("liger-kernel", "quack-kernels", "torchao", "bitsandbytes", "humming-kernels")
GPU_STATE = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
GPU_LIMITS = ("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit")


def slug(device: str) -> str:
    """The folder of this machine's results: "h200" for an NVIDIA H200, "cpu"."""
    if device == "cpu":
        return "cpu"
    return torch.cuda.get_device_name().removeprefix("NVIDIA ").lower().replace(" ", "-")


def describe(device: str) -> dict:
    machine = {
        "device": device,
        "name": _processor() if device == "cpu" else torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": " ".join(["python", *sys.argv]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": _version("triton"),
        "my_ops": my_ops.__version__,
        "peers": {name: _version(name) for name in PEERS},
    }
    if device == "cpu":
        machine["threads"] = torch.get_num_threads()
        machine["load"] = round(os.getloadavg()[0], 1)
    else:
        machine["gpu"] = gpu(GPU_LIMITS) | {"idle": gpu(GPU_STATE)}
    return machine


def gpu(fields) -> dict:
    """What nvidia-smi says of the current GPU, with its units; empty where it does not answer."""
    index = str(torch.cuda.current_device())
    command = [
        "nvidia-smi",
        "-i",
        index,
        f"--query-gpu={','.join(fields)}",
        "--format=csv,noheader",
    ]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, answer.stdout.strip().split(", "), strict=False))


def commit() -> str | None:
    """Of this checkout; MY_OPS_COMMIT says it where the files are a copy without git."""
    if "MY_OPS_COMMIT" in os.environ:
        return os.environ["MY_OPS_COMMIT"]
    command = [
        "git",
        "-C",
        str(ROOT),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
        "--exclude=*",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(": ", 1)[1] for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
