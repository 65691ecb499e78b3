"""Two processes that run the bodies of tests together: for what is distributed.

Starting them takes longer than most of what they do, so many tests share one pair.
"""

import functools
import importlib
import inspect
import multiprocessing
import queue
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

SECONDS = 300  # of a body, with the start of the processes; of one collective, half of it
DEVICE = {"gloo": "cpu", "nccl": "cuda"}


class Pair:
    """Started by the first run, and again by the next one after a failure."""

    def __init__(self, backend: str):
        self.backend, self.device = backend, DEVICE[backend]
        self.processes, self.tasks = [], []

    def run(self, body, **arguments) -> None:
        """body(mesh, **arguments) in both processes; fails with the traceback of one that did."""
        if not self.processes:
            self._start()
        for tasks in self.tasks:
            tasks.put((body.__module__, body.__name__, arguments))
        deadline = time.monotonic() + SECONDS
        for _ in self.processes:
            failure = self._result(deadline)
            if failure:  # the other one may wait for it in vain
                self.stop()
                pytest.fail(failure, pytrace=False)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.results = context.Queue()
        self.tasks = [context.Queue() for _ in range(2)]
        store = f"file://{Path(self.folder.name) / 'store'}"
        self.processes = [
            context.Process(target=_serve, args=(rank, self.backend, store, tasks, self.results))
            for rank, tasks in enumerate(self.tasks)
        ]
        for process in self.processes:
            process.start()

    def _result(self, deadline: float) -> str | None:
        while time.monotonic() < deadline:
            try:
                return self.results.get(timeout=5)
            except queue.Empty:
                codes = [process.exitcode for process in self.processes]
                if any(code is not None for code in codes):
                    return f"a process ended within a test: exit codes {codes}"
        return f"no result within {SECONDS} seconds: does a process wait for the other?"

    def stop(self, seconds: float = 0) -> None:
        """Ends the processes, which have so many seconds to do it themselves."""
        for tasks in self.tasks if seconds else ():
            tasks.put(None)
        for process in self.processes:
            process.join(seconds)
            process.kill()
            process.join()
        if self.processes:
            self.folder.cleanup()
        self.processes, self.tasks = [], []


def on_both(body):
    """Decorator: a test whose body runs in both processes, with their one-dimensional DeviceMesh.

    Fixtures and parameters that it names besides are handed on.
    """

    @functools.wraps(body)
    def test(pair, **arguments):
        pair.run(body, **arguments)

    mesh, *others = inspect.signature(body).parameters.values()
    test.__signature__ = inspect.Signature([mesh.replace(name="pair"), *others])
    return test


def _serve(rank, backend, store, tasks, results) -> None:
    torch.set_num_threads(1)
    device = DEVICE[backend]
    if device == "cuda":
        torch.cuda.set_device(rank)
    timeout = timedelta(seconds=SECONDS / 2)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=2, timeout=timeout)
    importlib.import_module("my_ops.distributed")
    mesh = dist.device_mesh.init_device_mesh(device, (2,))
    while task := tasks.get():
        module, name, arguments = task
        body = inspect.unwrap(getattr(importlib.import_module(module), name))
        torch.manual_seed(0)  # the same tensors in both processes
        try:
            body(mesh, **arguments)
            results.put(None)
        except BaseException:
            results.put(f"process {rank}:\n{traceback.format_exc()}")
    dist.destroy_process_group()
