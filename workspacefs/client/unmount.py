"""Taking a mount away, and saying who is in the way.

Source: umount2(2), fusermount3(1). Heavy to import (subprocess, ctypes): only who unmounts does.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Final

from workspacefs.client.mountinfo import find_mount, is_inside
from workspacefs.errors import BusyError, NotFoundError, UnavailableError

_MNT_DETACH: Final = 2
_USERS_NAMED_MAX: Final = 5
_FUSERMOUNT_TIMEOUT_S: Final = 30.0


def unmount(mountpoint: str, *, is_lazy: bool = False) -> None:
    """Unmount what is at `mountpoint`; blocks, and may need its server to answer: run in a thread.

    Args:
        mountpoint: Absolute, free of symbolic links.
        is_lazy: Take it out of sight at once, though programs still use it.

    Raises:
        BusyError: Programs use it (kind "mountpoint.in_use"); they are named.
        NotFoundError: Nothing is mounted there.
        UnavailableError: The system refused otherwise.
    """
    if os.geteuid() == 0:
        number = _umount2(mountpoint, _MNT_DETACH if is_lazy else 0)
    else:
        number = _fusermount(mountpoint, is_lazy=is_lazy)
    if number == 0:
        return
    if number == errno.EBUSY:
        users = list(iter_users(mountpoint))
        raise BusyError(
            f"{mountpoint} is in use{_told(users)}; leave it and close its files, or give --lazy",
            kind="mountpoint.in_use",
            mountpoint=mountpoint,
        )
    if number in (errno.EINVAL, errno.ENOENT):
        raise NotFoundError(
            f"nothing is mounted at {mountpoint}",
            kind="mountpoint.not_mounted",
            mountpoint=mountpoint,
        )
    raise UnavailableError(
        f"{mountpoint} cannot be unmounted: {os.strerror(number)}",
        kind="mountpoint.unmount",
        mountpoint=mountpoint,
    )


def iter_users(mountpoint: str) -> Iterator[tuple[int, str, str]]:
    """Yield (pid, command, what it holds) of processes that use a mount, as far as we may look."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        if (held := _held_by(pid, mountpoint)) is not None:
            try:
                with open(f"/proc/{pid}/comm") as file:
                    yield int(pid), file.read().strip(), held
            except OSError:
                continue


def _held_by(pid: str, mountpoint: str) -> str | None:
    for link, told in (("cwd", "working directory"), ("root", "root"), ("exe", "program")):
        try:
            if is_inside(os.readlink(f"/proc/{pid}/{link}"), mountpoint):
                return told
        except OSError:
            continue
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return None
    for descriptor in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except OSError:
            continue
        if is_inside(target, mountpoint):
            return target
    return None


def _told(users: list[tuple[int, str, str]]) -> str:
    if not users:
        return ""
    named = ", ".join(f"{comm} (pid {pid}: {held})" for pid, comm, held in users[:_USERS_NAMED_MAX])
    rest = len(users) - _USERS_NAMED_MAX
    return f" by {named}" + (f" and {rest} more" if rest > 0 else "")


def _umount2(mountpoint: str, flags: int) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(mountpoint), flags) == 0:
        return 0
    return ctypes.get_errno()


def _fusermount(mountpoint: str, *, is_lazy: bool) -> int:
    program = shutil.which("fusermount3") or shutil.which("fusermount")
    if program is None:
        raise UnavailableError(
            "fusermount3 is not installed; get it with: apt-get install fuse3",
            kind="fusermount.absent",
        )
    command = [program, "-u", *(["-z"] if is_lazy else []), "--", mountpoint]
    ended = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=_FUSERMOUNT_TIMEOUT_S,
    )
    if ended.returncode == 0:
        return 0
    if find_mount(mountpoint) is None:
        return errno.EINVAL
    # fusermount3 tells the reason in words only; what it refuses for us is nearly always this.
    return errno.EBUSY
