"""Runs every CUDA kernel under compute-sanitizer: `make sanitize`.

    python tools/sanitize.py                          all four tools, all rooms
    python tools/sanitize.py --tool memcheck --room square matmul
    python tools/sanitize.py --list                   the kernels, by room
    python tools/sanitize.py --coverage               are all of them reached? (no sanitizer)

A tool checks all rooms in one process, since starting one takes longer than the cases of a room.
Where it finds something each room is run again alone, so that the first error, which often ends the
CUDA context, does not hide those of the next rooms. Logs go to out/sanitize.

What is known of the tools, of which CUDA 13.0 brings version 2025.3:

racecheck   follows an mbarrier through its first phase only. A ring of two slots, one warp that
            writes and arrives, another that waits, reads and arrives, is clean for two steps and
            reported for more, whether stores, cp.async or bulk copies write. NVIDIA's release notes
            list such fixes for 2025.4, 2026.1 and 2026.3; --racecheck-memcpy-async=no is about
            cp.async and changes nothing. Hazards of which one side writes into such slots are
            counted and shown, and do not fail the run; the results are held by the tests, bit for
            bit.
            It also takes an access as a whole: a lane of rmsnorm's shifted rows loads two granules
            of 16 bytes and keeps its own bytes of them, the rest of which a neighbour may write.
synccheck,  by default too few mbarriers are tracked, and the overflow ends the CUDA context, hence
racecheck   --num-cuda-barriers. Before 2025.4 an arrive of cp.async without .noinc is a false alarm
            of synccheck; there is none in csrc.
initcheck   needs to see who writes what, so it instruments PyTorch's kernels too.

The allocator's cache is off, so that every tensor has an allocation of its own.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

# The rooms, without loading torch: this process only watches others.
ROOMS = "square", "rmsnorm", "matmul", "fp4", "fp4_matmul"
TOOLS = {
    "memcheck": [],
    "racecheck": ["--num-cuda-barriers", "65536"],
    "initcheck": [],
    "synccheck": ["--num-cuda-barriers", "65536"],
}
# What hold nothing but cp.async.bulk, and nothing but what threads write into slots like those.
SLOT_FILES = {"sm90_bulk_copy.cuh", "slot_writes.cuh"}
OWN_BYTES = {"load_run", "StagedSlice::set"}  # of rmsnorm/forward_staged_kernel.cuh, see above
LOGS = Path(__file__).resolve().parent.parent / "out" / "sanitize"
TIMEOUT_S = 900
MAX_HAZARDS = 10**9  # known false alarms of one room alone are more than the 10**7 of the default


class Result(NamedTuple):
    failure: str  # empty: passed
    false_alarms: int
    seconds: float

    def __str__(self):
        false = f", {self.false_alarms} known false alarms" if self.false_alarms else ""
        return f"{'FAILED: ' + self.failure if self.failure else 'passed'}{false}"


def command(tool: str, rooms) -> list[str]:
    options = ["--tool", tool, "--print-limit", "1000", "--show-backtrace", "device"]
    # On a busy machine the import of torch takes longer than it waits for by default.
    options += ["--target-processes", "application-only", "--launch-timeout", "120"]
    sanitizer = ["compute-sanitizer", *options, *TOOLS[tool]]
    return [*sanitizer, sys.executable, __file__, "--run", "--room", *rooms]


def check(tool: str, rooms) -> Result:
    """One run. Its output goes to a log, what the cases say of their progress to the terminal."""
    LOGS.mkdir(parents=True, exist_ok=True)
    name = "all" if len(rooms) == len(ROOMS) else "_".join(rooms)
    log, started = LOGS / f"{tool}_{name}.log", time.monotonic()
    environment = os.environ | {
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "NV_COMPUTE_SANITIZER_MAX_RACECHECK_HAZARDS": str(MAX_HAZARDS),
    }
    with log.open("w") as file:
        try:
            status = subprocess.run(
                command(tool, rooms),
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"no end after {TIMEOUT_S} s"
    failure, false_alarms = judge(tool, log.read_text(errors="replace"), status)
    result = Result(failure, false_alarms, time.monotonic() - started)
    print(f"{tool} {name}: {result} ({result.seconds:.0f} s, {log})", flush=True)
    return result


def reports(log: str) -> list[str]:
    """The reports of a log: each begins at the margin, its details are indented."""
    found, prefix = [], "========= "
    for line in log.splitlines():
        text = line.removeprefix(prefix)
        if text == line or not text:
            continue
        if text.startswith(" ") or text.startswith("and "):
            if found:
                found[-1] += "\n" + text
        elif not re.match(r"COMPUTE-SANITIZER|\w+ SUMMARY", text):
            found.append(text)
    return found


def places(report: str) -> set[str]:
    """The kernels that it names or, as racecheck names none, the functions inlined into one."""
    names = set()
    for signature in re.findall(r"(?: at |Device Frame: )(.+)\+0x", report):
        arguments = r"\([^()<>]*\)|<[^()<>]*>"
        while re.search(arguments, signature):
            signature = re.sub(arguments, "", signature)
        names |= set(re.findall(r"(?:my_ops::)?:*([\w:]+)(?: const)?$", signature))
    kernels = {name for name in names if name.endswith("_kernel")}
    return kernels or names


def is_false_alarm(tool: str, report: str) -> bool:
    """Of racecheck: hazards between the access of the first line and that of each other line."""
    if tool == "racecheck" and places(report) == OWN_BYTES:
        return True
    files = re.findall(r"(?:Read|Write) access at .* in (\S+):\d+", report)
    into_slot = [file in SLOT_FILES for file in files]
    return tool == "racecheck" and (any(into_slot[:1]) or (len(files) > 1 and all(into_slot[1:])))


def judge(tool: str, log: str, status) -> tuple[str, int]:
    """What is wrong, and how many false alarms were found, by the output and the exit status."""
    kinds, false_alarms = Counter(), 0
    for report in reports(log):
        if is_false_alarm(tool, report):
            false_alarms += 1
        else:
            names = places(report)
            where = f" in {', '.join(sorted(names))}" if names else ""
            kinds[report.split("\n")[0].split(" at ")[0] + where] += 1
    counted = sum(map(int, re.findall(r"SUMMARY: (\d+) (?:error|hazard)", log)))
    if kinds:
        return "; ".join(f"{count} x {kind}" for kind, count in kinds.most_common(5)), false_alarms
    if status != 0:
        return status if isinstance(status, str) else f"exit status {status}", false_alarms
    if " SUMMARY: " not in log:
        return "the tool gave no summary", false_alarms
    return (f"{counted} errors" if counted > false_alarms else ""), false_alarms


def check_tool(tool: str, rooms) -> dict[str, Result]:
    together = check(tool, rooms)
    if not together.failure or len(rooms) == 1:
        return dict.fromkeys(rooms, together)
    alone = {room: check(tool, [room]) for room in rooms}
    if not any(result.failure for result in alone.values()):
        alone["all together"] = together
    return alone


def run_cases(rooms) -> None:
    import torch
    from sanitize_cases import ROOMS as cases

    for room in rooms:
        started = time.monotonic()
        cases[room]()
        torch.cuda.synchronize()
        print(f"{room}: done in {time.monotonic() - started:.0f} s", flush=True)


def list_kernels(rooms, coverage: bool) -> bool:
    """Prints the kernels of the rooms; `coverage`: which their cases miss. False if they do."""
    import sanitize_cases

    wanted = {name: room for name, room in sanitize_cases.kernels().items() if room in rooms}
    found = sanitize_cases.reached(rooms) if coverage else set(wanted)
    for name, room in wanted.items():
        print(f"{room:12} {name}{'' if name in found else '   MISSED'}")
    return found >= set(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description="Every CUDA kernel under compute-sanitizer.")
    parser.add_argument("--tool", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--room", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--list", action="store_true", help="print the kernels and stop")
    parser.add_argument("--coverage", action="store_true", help="print which kernels are missed")
    parser.add_argument("--run", action="store_true", help="run the cases, without a sanitizer")
    args = parser.parse_args()
    if args.run:
        return run_cases(args.room)
    if args.list or args.coverage:
        raise SystemExit(0 if list_kernels(args.room, args.coverage) else 1)
    if shutil.which("compute-sanitizer") is None:
        raise SystemExit(
            "make sanitize needs compute-sanitizer, which comes with NVIDIA's CUDA toolkit: put "
            "its bin folder (/usr/local/cuda/bin) into PATH."
        )
    results = {tool: check_tool(tool, args.room) for tool in args.tool}
    print("\nSummary")
    for tool, rooms in results.items():
        for room, result in rooms.items():
            print(f"  {tool:10} {room:13} {result}")
    raise SystemExit(any(r.failure for rooms in results.values() for r in rooms.values()))


if __name__ == "__main__":
    main()
