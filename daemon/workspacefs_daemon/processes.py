"""Who asks: what /proc says of the process behind a request.

A request is answered while its caller waits in the kernel, so that process exists, and is the
program that it is, when it is looked at. One look counts for a short while: a number that became
free is not given to another process before all others were, and a program is replaced by execve(2)
only by itself, which is looked for again and again, more seldom the older it is.

Source: proc(5); linux/fuse.h for what `pid` of a request is; pid_max in proc_sys_kernel(5).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from workspacefs.layers.writers import Process, ProcessId, process_id_of
from workspacefs.workspace.masking import mask_arguments
from workspacefs_daemon.vfs.marks import KnownProcess

_LOOK_MIN_NS: Final = 500_000
_LOOK_MAX_NS: Final = 50_000_000
"""Numbers are given in turn (32,768 and more of them), so none comes back within this time."""
_LOOK_SHARE: Final = 8
_KNOWN_MAX: Final = 8192
_ARGUMENTS_READ_BYTES: Final = 16 * 1024
_ENVIRON_READ_BYTES: Final = 256 * 1024
_TEXT_MAX_CHARS: Final = 256
_ANCESTORS_MAX: Final = 16
_VARIABLES: Final = (b"WORKSPACEFS_TOOL_CALL=", b"WORKSPACEFS_RUN=", b"WORKSPACEFS_AGENT=")
_SHELL: Final = b"sh"
_OTHER_SHELLS: Final = (b"busybox", b"toybox", b"")
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

ReadProc = Callable[[int, str, int], bytes]
"""Returns up to so many bytes of /proc/<pid>/<name>; OSError: there is no such process (any
more), or it must not be looked at."""


class _Mark(NamedTuple):
    """Tells a program in a process from all others that had, or will have, the same number."""

    start_ticks: int
    """Of the thread, in clock ticks since the machine was started."""
    image: tuple[bytes, ...]
    """Where the program lies in memory (zeros: we may not know), and the thread's name."""


class _Seen:
    __slots__ = ("first_ns", "known", "mark", "next_look_ns")

    def __init__(self, known: KnownProcess, mark: _Mark | None, now_ns: int) -> None:
        self.known = known
        self.mark = mark
        self.first_ns = now_ns
        self.next_look_ns = now_ns + _LOOK_MIN_NS


class _Stat(NamedTuple):
    mark: _Mark
    parent: int
    threads: int


class ProcessTable:
    """What is known of processes, by the number that requests come with. For one thread."""

    def __init__(
        self,
        *,
        read: ReadProc | None = None,
        executable: Callable[[int], bytes] | None = None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Begin with nothing; other ways to look than at /proc are for tests."""
        self._read = read or _read_proc
        self._executable = executable or _executable_of
        self._monotonic_ns = monotonic_ns
        self._seen: dict[int, _Seen] = {}
        self._by_id: dict[ProcessId, Process] = {}
        self._boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.looks = 0
        """How often /proc was asked about a process."""

    def find(self, number: int) -> KnownProcess:
        """Return the process that a request comes from; never fails.

        Args:
            number: Of a process or thread; 0: it is outside of our numbering.
        """
        seen = self._seen.get(number)
        now_ns = self._monotonic_ns()
        if seen is not None and now_ns < seen.next_look_ns:
            return seen.known
        return self._look(number, seen, now_ns, _ANCESTORS_MAX)

    def find_later(self, number: int, before: KnownProcess) -> KnownProcess:
        """Return what has become of a process that is known since an earlier request: it may have
        begun another program. If it is gone, it is as it was.
        """
        now = self.find(number)
        if now is before:
            return now
        pid, start_ns = before.process[:2]
        is_same = start_ns != 0 and (pid, start_ns) == now.process[:2]
        return now if is_same else before

    def find_by_id(self, process_id: ProcessId) -> Process | None:
        """Return a process that was found before, or is the parent of such a one."""
        return self._by_id.get(process_id)

    def _look(self, number: int, seen: _Seen | None, now_ns: int, ancestors: int) -> KnownProcess:
        stat = self._stat(number) if number > 0 else None
        mark = None if stat is None else stat.mark
        if seen is not None and seen.mark == mark:
            age_ns = now_ns - seen.first_ns
            wait_ns = min(max(age_ns // _LOOK_SHARE, _LOOK_MIN_NS), _LOOK_MAX_NS)
            seen.next_look_ns = now_ns + wait_ns
            return seen.known
        process = Process(max(number, 0), 0, b"", ())
        if stat is not None:
            process = self._facts(number, stat, now_ns, ancestors)
        above = None if process.parent is None else self._by_id.get(process.parent)
        known = KnownProcess(
            process_id_of(process), process, is_settled=_is_settled(process, above)
        )
        if len(self._seen) >= _KNOWN_MAX:
            self._seen.clear()
            self._by_id.clear()
        self._by_id[known.id] = process
        self._seen[number] = _Seen(known, mark, now_ns)
        return known

    def _facts(self, number: int, stat: _Stat, now_ns: int, ancestors: int) -> Process:
        pid = number
        if stat.threads > 1:
            pid = self._process_of(number)
            if pid != number:
                stat = self._stat(pid) or stat
        tool_call, run, agent = self._variables(pid)
        parent = None
        if stat.parent > 1 and ancestors:
            above = self._seen.get(stat.parent)
            if above is None or now_ns >= above.next_look_ns:
                parent = self._look(stat.parent, above, now_ns, ancestors - 1).id
            else:
                parent = above.known.id
        start_ns = self._boot_ns + stat.mark.start_ticks * _TICK_NS
        return Process(
            pid, start_ns - start_ns % 1_000_000, self._path_of(pid), self._arguments(pid),
            tool_call, run, agent, parent,
        )  # fmt: skip

    def _stat(self, number: int) -> _Stat | None:
        self.looks += 1
        text = self._try_read(number, "stat", 4096)
        name, _, rest = text.rpartition(b")")
        fields = rest.split()
        if len(fields) < 50:
            return None
        # Fields 28 and 48: where stack and arguments begin; another program has them elsewhere.
        mark = _Mark(int(fields[19]), (fields[25], fields[45], name.partition(b"(")[2]))
        return _Stat(mark, int(fields[1]), int(fields[17]))

    def _process_of(self, number: int) -> int:
        for line in self._try_read(number, "status", 4096).split(b"\n"):
            if line.startswith(b"Tgid:"):
                return int(line[5:])
        return number

    def _arguments(self, pid: int) -> tuple[bytes, ...]:
        text = self._try_read(pid, "cmdline", _ARGUMENTS_READ_BYTES)
        arguments = text.removesuffix(b"\0").split(b"\0") if text else []
        if len(text) == _ARGUMENTS_READ_BYTES:
            arguments.pop()  # half of one may be half of a secret
        return mask_arguments(arguments)

    def _variables(self, pid: int) -> list[str]:
        text = b"\0" + self._try_read(pid, "environ", _ENVIRON_READ_BYTES)
        found = []
        for variable in _VARIABLES:
            _, _, rest = text.partition(b"\0" + variable)
            value = rest.partition(b"\0")[0].decode(errors="replace")
            found.append(value[:_TEXT_MAX_CHARS])
        return found

    def _path_of(self, pid: int) -> bytes:
        try:
            return self._executable(pid)
        except OSError:
            return b""

    def _try_read(self, pid: int, name: str, size: int) -> bytes:
        try:
            return self._read(pid, name, size)
        except OSError:
            return b""


def _is_settled(process: Process, parent: Process | None) -> bool:
    """Tell whether a process is none that opens files for a program that it is to become: a shell,
    or one that was forked and is its parent's program still.
    """
    program = process.executable.rpartition(b"/")[2]
    if program.endswith(_SHELL) or program in _OTHER_SHELLS:
        return False
    return parent is None or process[2:4] != parent[2:4]


def _read_proc(pid: int, name: str, size: int) -> bytes:
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        text = os.read(fd, size)
        while len(text) < size and (more := os.read(fd, size - len(text))):
            text += more
        return text
    finally:
        os.close(fd)


def _executable_of(pid: int) -> bytes:
    return os.readlink(b"/proc/%d/exe" % pid)
