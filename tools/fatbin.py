"""Lists the GPU code in a compiled module, without a CUDA toolkit.

    python tools/fatbin.py my_ops/_C*.so

nvcc puts a container for each .cu file into the section .nv_fatbin: a header, then for each target
an entry with machine code (a cubin) or PTX. The layout is not documented; what is read here is the
same in CUDA 12.8 to 13.0, and a container that does not begin as known is refused.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import NamedTuple

_MAGIC = 0xBA55ED50
_PTX, _CUBIN = 1, 2
_COMPRESSED, _ONE_ARCHITECTURE, _FAMILY = 0x8000, 0x100000, 0x200000


class Code(NamedTuple):
    """The code of one .cu file for one target."""

    source: str  # "" where nvcc kept no name
    target: str  # "sm_90a" of a cubin, "compute_100" of PTX
    stored_bytes: int
    compressed: bool


def read(module: Path) -> list[Code]:
    """What the shared object `module` holds, in its order; nothing in a build without CUDA."""
    section = _section(module.read_bytes(), b".nv_fatbin")
    found, at = [], 0
    while at < len(section):
        magic, _, header_bytes, size = struct.unpack_from("<IHHQ", section, at)
        if magic != _MAGIC:
            if magic != 0:
                sys.exit(f"fatbin.py: {module}: expected a container at {at}, got {magic:#x}")
            at += 8  # what aligns the containers
            continue
        end = at + header_bytes + size
        at += header_bytes
        while at < end:
            code, length = _entry(section, at)
            found += code
            at += length
    return found


def _entry(section: bytes, at: int) -> tuple[list[Code], int]:
    kind, _, header_bytes, payload_bytes = struct.unpack_from("<HHIQ", section, at)
    (architecture,) = struct.unpack_from("<I", section, at + 28)
    name_at, name_bytes = struct.unpack_from("<II", section, at + 32)
    (flags,) = struct.unpack_from("<Q", section, at + 40)
    length = header_bytes + payload_bytes
    if kind not in (_PTX, _CUBIN):
        return [], length
    suffix = "a" if flags & _ONE_ARCHITECTURE else "f" if flags & _FAMILY else ""
    name = section[at + name_at : at + name_at + name_bytes] if name_bytes else b""
    code = Code(
        source=name[max(name.find(b"csrc/"), 0) :].rstrip(b"\0").decode(),
        target=f"{'sm' if kind == _CUBIN else 'compute'}_{architecture}{suffix}",
        stored_bytes=payload_bytes,
        compressed=bool(flags & _COMPRESSED),
    )
    return [code], length


def _section(elf: bytes, wanted: bytes) -> bytes:
    """The bytes of a section of a 64-bit little-endian ELF file; none where it has no such one."""
    if elf[:6] != b"\x7fELF\x02\x01":
        sys.exit("fatbin.py: expected a 64-bit little-endian ELF file")
    (table,) = struct.unpack_from("<Q", elf, 40)
    entry_bytes, count, names_index = struct.unpack_from("<HHH", elf, 58)
    headers = (struct.unpack_from("<IIQQQQ", elf, table + i * entry_bytes) for i in range(count))
    sections = [(name, offset, size) for name, _, _, _, offset, size in headers]
    names = sections[names_index][1]
    for name, offset, size in sections:
        if elf[names + name : elf.index(b"\0", names + name)] == wanted:
            return elf[offset : offset + size]
    return b""


def table(codes: list[Code]) -> str:
    """A line for each source, with its targets; below, the bytes of each target."""
    targets = dict.fromkeys(code.target for code in codes)
    sources = dict.fromkeys(code.source for code in codes)
    lines = [
        f"{source:44} {' '.join(code.target for code in codes if code.source == source)}"
        for source in sources
    ]
    for target in targets:
        own = [code for code in codes if code.target == target]
        packed = "compressed" if all(code.compressed for code in own) else "not compressed"
        size = sum(code.stored_bytes for code in own)
        lines.append(f"{target:12} {len(own):3} of {size / 1e6:6.1f} MB, {packed}")
    return "\n".join(lines)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(table(read(Path(argument))) or f"{argument} has no GPU code")
