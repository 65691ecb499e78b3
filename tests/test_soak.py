"""A short run of tools/soak.py: memory stays flat. `make soak` is the long one."""

import importlib.util
from pathlib import Path

path = Path(__file__).resolve().parent.parent / "tools" / "soak.py"
spec = importlib.util.spec_from_file_location("soak", path)
soak = importlib.util.module_from_spec(spec)
spec.loader.exec_module(soak)


def test_memory_is_flat(device):
    lines = []
    grown = soak.run(device, calls=1500, backend="eager", report=lines.append)
    assert len(lines) == 10
    # On a GPU so short a run still loads kernels, and the allocator's cache still grows.
    exact = {"cpu": "process", "cuda": "allocated"}[device]
    assert grown[exact] < 4 * 2**20, lines
    assert max(grown.values()) < 64 * 2**20, lines


def test_a_leak_is_seen(device, monkeypatch):
    kept = []

    def leaking(self):
        kept.append(self.tensor(1000, 1000))
        return self.square()

    monkeypatch.setattr(soak.Soak, "call", leaking)
    # 4 MB each, some of them in memory that other tests of the process have freed.
    assert max(soak.run(device, calls=40, report=kept.append).values()) > 60e6
