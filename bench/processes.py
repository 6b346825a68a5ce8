"""Running tools and looking at processes that the harness started; nothing about workloads."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.failures import TimeUpError, ToolError

TOOL_TIMEOUT_S: Final = 3600.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_UTIME_FIELD: Final = 11  # counted after the command name, which may hold anything
_STDERR_SHOWN: Final = 600


def run_tool(
    command: Sequence[str | os.PathLike[str]],
    *,
    cwd: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
    timeout_s: float = TOOL_TIMEOUT_S,
    ok: Sequence[int] = (0,),
) -> bytes:
    """Run a program to its end and return its standard output.

    Raises:
        TimeUpError: It did not end in time.
        ToolError: It ended with a code that is not in `ok`.
    """
    shown = " ".join(str(word) for word in command)[:200]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=None if environ is None else {**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise TimeUpError(shown, timeout_s) from exc
    if done.returncode not in ok:
        told = done.stderr.decode(errors="replace").strip()[-_STDERR_SHOWN:]
        raise ToolError(f"{shown}: exit code {done.returncode}: {told}")
    return done.stdout


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process so far, all threads; 0 when it is gone.

    Source: proc_pid_stat(5).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[_UTIME_FIELD]) + int(fields[_UTIME_FIELD + 1])) / _TICKS_PER_S


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in (b"Z", b"X")


def peak_rss_bytes(pid: int) -> int:
    """Return the high-water mark of resident memory (VmHWM); 0 when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def pss_bytes(pid: int) -> int:
    """Return memory of a process, shared pages divided by those who share them; 0 when it is gone.

    Source: kernel documentation, filesystems/proc, smaps_rollup.
    """
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


class PeakPss:
    """Looks at some processes every half second; a context manager."""

    _EVERY_S: Final = 0.5

    def __init__(self, find_pids: Callable[[], Iterable[int]]) -> None:
        self.size_bytes = 0
        """The largest sum that was seen."""
        self._find_pids = find_pids
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakPss:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            self.size_bytes = max(self.size_bytes, sum(map(pss_bytes, self._find_pids())))
            if self._end.is_set():
                return  # what there was at the end has been seen
            self._end.wait(self._EVERY_S)


def reset_peak_rss(pid: int) -> None:
    """Begin a new high-water mark. Source: proc_pid_clear_refs(5), value 5."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        # Then the mark is that of the process's whole life: an upper bound.
        return


def find_by_arguments(*arguments: str) -> list[int]:
    """Return the processes that have all these among the words of their command line.

    Words may be separated by spaces: juicefs 1.4 writes its command line anew that way.
    """
    wanted = [b" " + os.fsencode(argument) + b" " for argument in arguments]
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            line = b" " + Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ") + b" "
        except OSError:
            continue
        if all(word in line for word in wanted) and is_alive(int(entry)):
            found.append(int(entry))
    return found


def disk_usage_bytes(*roots: Path) -> int:
    """Return the blocks that everything below these directories takes on the disk, in bytes."""
    total = 0
    seen: set[tuple[int, int]] = set()
    stack = [str(root) for root in roots if root.exists()]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                elif found.st_nlink > 1:
                    if (found.st_dev, found.st_ino) in seen:
                        continue
                    seen.add((found.st_dev, found.st_ino))
                total += found.st_blocks * 512
    return total


def attempt(step: Callable[[], object]) -> Exception | None:
    """Run one step of a clean-up; return what went wrong, so that the next steps still run."""
    try:
        step()
    except Exception as exc:  # noqa: BLE001  # a clean-up goes on to its end
        return exc
    return None
