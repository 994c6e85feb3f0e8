"""Runs a command and measures it with all its descendants: wall time, processor time, memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

INTERVAL = 0.01
"""Seconds between two looks at the processes."""

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Measurement:
    """wall, cpu: seconds; cpu of all processes. resident: peak over time of the sum over processes, in bytes; pages
    that several processes share count once in each. output: what the command printed."""

    wall: float
    cpu: float
    resident: int
    output: str


def run(*arguments: str | Path) -> Measurement:
    """Run a Python command (`script.py argument...`) from start-up to exit. Linux only: it reads /proc."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    cpu: dict[int, float] = {}
    peak = 0
    while process.poll() is None:
        resident = 0
        for pid in _family(process.pid):
            usage = _usage(pid)
            if usage is not None:
                cpu[pid], memory = usage
                resident += memory
        peak = max(peak, resident)
        time.sleep(INTERVAL)
    wall = time.perf_counter() - began
    output = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"{' '.join(map(str, arguments))} failed with exit code {process.returncode}")
    return Measurement(wall, sum(cpu.values()), peak, output)


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


def _family(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for parent in found:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        found += map(int, children.split())
    return found


def _usage(pid: int) -> tuple[float, int] | None:
    """(processor seconds, resident bytes) so far; None for a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / _TICK, int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
