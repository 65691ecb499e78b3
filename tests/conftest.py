"""Fixtures of all tests: the device, two processes, a fixed seed, quiet compilation; profiles of
hypothesis."""

import os
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings
from two_processes import Pair

# "quick" draws the same examples in every run, so that what it finds is due to a change; "long" is
# for `make fuzz`, which draws others each time.
settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
settings.register_profile(
    "long", max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request):
    """Runs a test on the CPU and, where there is one, on the GPU."""
    return request.param


_two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture(scope="session", params=["gloo", pytest.param("nccl", marks=_two_gpus)])
def pair(request):
    """Two processes on the CPU and, where there are two GPUs, on those: see two_processes.py."""
    pair = Pair(request.param)
    yield pair
    pair.stop(seconds=10)


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    """Compiled functions of one test do not count against the recompile limit of the next."""
    yield
    if "torch._dynamo" in sys.modules:  # importing it takes seconds
        torch._dynamo.reset()


def pytest_runtest_setup(item):
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")


def pytest_configure():
    # Of two pytest processes on two cores, or 24 on 32, more threads only wait for each other.
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(1 if torch.get_num_threads() // processes <= 2 else 4)
    # And each would start a pool of processes for Inductor, which takes longer than it saves.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    # As would be found by compiling for each of the CPU's vector units in turn. In torch 2.11 every
    # trial imports torch, and all other processes wait: 24 of them for 100 s.
    os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
