"""What it costs that a mount sees who writes: `python -m bench.provenance [ROUNDS]`.

Four sessions of one store are mounted, two of them with --provenance off. In turns, each round
beginning with another one, all get 200 new files of 2 KiB. Printed are medians in µs per create +
write + close, and the median of the ratios of the rounds, which what else the machine does moves
least. There are two of each, since the first to be mounted is some 2 % slower than the others.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.processes import cpu_seconds
from bench.small_files import contents, make_paths, write_files
from bench.systems import WorkspaceFs

_FILES: Final = 200
_ROUNDS: Final = 200
_ON, _OFF = "on", "off"
_MOUNTS: Final = (("a", _ON), ("b", _OFF), ("c", _OFF), ("d", _ON))


def measure(system: WorkspaceFs, rounds: int) -> None:
    """Mount, measure, print; what is mounted is left to the caller."""
    pids = {name: _mount(system, name, kind) for name, kind in _MOUNTS}
    times: dict[str, list[float]] = {_ON: [], _OFF: []}
    cpu = dict.fromkeys(times, 0.0)
    data = contents(0, _FILES)
    for number in range(-2, rounds):
        spent = dict.fromkeys(times, 0.0)
        first = number % len(_MOUNTS)
        for name, kind in (*_MOUNTS[first:], *_MOUNTS[:first]):
            paths = make_paths(system.home / name / f"r{number}", _FILES)
            began, cpu_began = time.perf_counter(), cpu_seconds(pids[name])
            write_files(paths, data)
            spent[kind] += time.perf_counter() - began
            if number >= 0:  # the first rounds warm up
                cpu[kind] += cpu_seconds(pids[name]) - cpu_began
        if number >= 0:
            for kind, seconds in spent.items():
                times[kind].append(seconds / 2 / _FILES * 1e6)
    ratios = [on / off for on, off in zip(times[_ON], times[_OFF], strict=True)]
    for kind, found in times.items():
        own = cpu[kind] / 2 / rounds / _FILES * 1e6
        print(f"provenance {kind:4} {statistics.median(found):7.1f} µs, CPU of ours {own:7.1f} µs")
    print(f"ratio of the two, median of {rounds} rounds: {statistics.median(ratios):.4f}")


def _mount(system: WorkspaceFs, name: str, kind: str) -> int:
    words = (system.url, str(system.home / name), "--mkdir", "--session", name)
    return int(str(system.ask("mount", *words, "--provenance", kind)["pid"]))


def main() -> None:
    """Measure on the disk of the temporary directory, and leave nothing behind."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else _ROUNDS
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as home:
        system = WorkspaceFs(Path(home))
        system.create()
        try:
            measure(system, rounds)
        finally:
            for name, _ in _MOUNTS:
                system.command("umount", str(system.home / name))
            system.stop_supervisor()


if __name__ == "__main__":
    main()
