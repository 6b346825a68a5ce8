"""The machine that a run is on: facts for the report, page cache, mounts, directories."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bench.failures import AbsentError, BenchError
from workspacefs.backend.open import open_backend

_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_FSYNCS: Final = 15


def drop_page_cache() -> bool:
    """Write everything back and empty the kernel's caches; False when we may not.

    Source: kernel documentation, admin-guide/sysctl/vm, drop_caches.
    """
    os.sync()
    try:
        _DROP_CACHES.write_text("3")
    except OSError:
        return False
    return True


def find_program(name: str) -> str:
    """Return the path of a program: the one beside this interpreter, or that on the PATH.

    Raises:
        AbsentError: There is none.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise AbsentError(f"{name} is not installed")
    return found


def is_mounted(mountpoint: Path) -> bool:
    """Tell whether something is mounted exactly here."""
    return str(mountpoint) in _mountpoints()


def remove_tree(path: Path) -> None:
    """Remove a directory of ours; refuses while anything is mounted at or below it."""
    inside = f"{path}/"
    for mountpoint in _mountpoints():
        if mountpoint == str(path) or mountpoint.startswith(inside):
            raise BenchError(f"{mountpoint} is still mounted; {path} is left as it is")
    if path.exists():
        shutil.rmtree(path)


def kind_of_disk(path: Path) -> str:
    """Return the type of the file system that holds `path`."""
    best, kind = "", "unknown"
    with open("/proc/self/mounts") as file:
        for line in file:
            _, mountpoint, found, *_ = line.split(" ")
            if len(mountpoint) >= len(best) and f"{path}/".startswith(mountpoint.rstrip("/") + "/"):
                best, kind = mountpoint, found
    return kind


def describe(home: Path) -> dict[str, object]:
    """Return what a reader must know of the machine to judge the numbers."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "disk": kind_of_disk(home),
        "fsync_ms": round(_fsync_ms(home), 3),
        "store_write_ms": round(_store_write_ms(home), 3),
        "can_drop_page_cache": os.access(_DROP_CACHES, os.W_OK),
        "load_before": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "git": _first_line("git", "--version"),
        "rg": _first_line("rg", "--version"),
        "tar": _first_line("tar", "--version"),
    }


def _mountpoints() -> set[str]:
    with open("/proc/self/mounts", "rb") as file:
        lines = file.read().splitlines()
    return {
        os.fsdecode(line.split(b" ")[1].replace(b"\\040", b" ").replace(b"\\134", b"\\"))
        for line in lines
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _fsync_ms(home: Path) -> float:
    """Return the median of writing 4 KiB and waiting until the disk has it."""
    probe = home / "fsync-probe"
    times = []
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for index in range(_FSYNCS):
            os.pwrite(descriptor, os.urandom(4096), index * 4096)
            begin = time.perf_counter()
            os.fsync(descriptor)
            times.append((time.perf_counter() - begin) * 1000)
    finally:
        os.close(descriptor)
        probe.unlink()
    return statistics.median(times)


def _store_write_ms(home: Path) -> float:
    """Return the median of one small, durable write to a store on this disk."""
    store = home / "store-probe"
    backend = open_backend(str(store))
    times = []
    for index in range(_FSYNCS):
        begin = time.perf_counter()
        backend.put(f"probe/{index}", [bytes(4096)])
        times.append((time.perf_counter() - begin) * 1000)
    shutil.rmtree(store)
    return statistics.median(times)


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except OSError:
        return "absent"
    return done.stdout.partition("\n")[0]
