"""Having the supervisor mount a session, and telling why it could not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from workspacefs import __version__
from workspacefs.client.mountinfo import find_mount
from workspacefs.client.supervisor import ensure_supervisor
from workspacefs.config import daemon_environment, store_environment
from workspacefs.errors import UnavailableError, UsageError, WorkspaceError
from workspacefs.statedir import StateDir

MOUNT_TIMEOUT_S: Final = 300.0
"""A session that replays much uncommitted work after a crash may take this long."""
_TRIES_MAX: Final = 3
_REASON_MAX_BYTES: Final = 4096


def mount_session(
    spec: Mapping[str, object],
    state: StateDir,
    environ: Mapping[str, str],
    *,
    makes_directory: bool,
) -> dict[str, object]:
    """Return what the session says of its mount, when that answers.

    Args:
        spec: As workspacefs_daemon.spec has it, without keys.
        state: Whose supervisor mounts it; one is started if none runs.
        environ: The caller's: keys of the store, and what a new supervisor gets.
        makes_directory: Whether the mountpoint is made if it is absent, and removed again when
            there is no mount.

    Raises:
        UnavailableError: It could not be mounted, or does not show.
        WorkspaceError: As the session says.
    """
    mountpoint = str(spec["mountpoint"])
    said_before = _size_of(state.crash_file)
    with made_mountpoint(mountpoint, is_wanted=makes_directory):
        try:
            result = ask_supervisor(spec, state, environ)
        except WorkspaceError as exc:
            if exc.kind == "mount.refused":
                raise with_reason(exc, state.crash_file, said_before) from exc
            raise
    _check_visible(mountpoint)
    return result


@contextmanager
def made_mountpoint(path: str, *, is_wanted: bool) -> Iterator[None]:
    """Make a directory if it is wanted and absent; when the block fails, remove it again."""
    made = is_wanted and _make_directory(path)
    try:
        yield
    except WorkspaceError:
        if made:
            with suppress(OSError):
                os.rmdir(path)
        raise


def ask_supervisor(
    spec: Mapping[str, object],
    state: StateDir,
    environ: Mapping[str, str],
    *,
    timeout_s: float = MOUNT_TIMEOUT_S,
) -> dict[str, object]:
    """Have the supervisor start a session process; return what that says. See mount_session."""
    # Over a socket that only we may read, not as an argument: it holds keys.
    args = {
        "spec": {**spec, "store_environ": store_environment(environ)},
        "version": __version__,
        "mount_namespace": os.stat("/proc/self/ns/mnt").st_ino,
    }
    is_far = str(spec["store_url"])[:3].lower() == "s3:"
    for _ in range(_TRIES_MAX):
        with ensure_supervisor(state, daemon_environment(environ), is_far=is_far) as supervisor:
            try:
                return supervisor.call("mount", args, timeout_s=timeout_s)
            except UnavailableError as exc:
                # One that stepped back because the code changed, or was just ending: get the next.
                if exc.kind != "supervisor.outdated":
                    raise
                last = exc
    raise last


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def with_reason(exc: WorkspaceError, crash_file: str, since: int) -> WorkspaceError:
    """Return the error with what fusermount3 wrote: it alone knows why, and only in words."""
    try:
        with open(crash_file, "rb") as file:
            file.seek(since)
            said = file.read(_REASON_MAX_BYTES).decode(errors="replace")
    except OSError:
        return exc
    lines = [line for line in said.splitlines() if line.startswith("fuse")]
    if not lines:
        return exc
    return UnavailableError(f"{lines[-1]} ({exc})", kind=exc.kind, **exc.context)


def _make_directory(path: str) -> bool:
    try:
        os.makedirs(path)
    except FileExistsError:
        return False
    except OSError as exc:
        raise UsageError(
            f"the mountpoint {path} cannot be created: {exc.strerror}", kind="mountpoint.unusable"
        ) from exc
    return True


def _check_visible(mountpoint: str) -> None:
    if find_mount(mountpoint) is None:
        raise UnavailableError(
            f"the mount was made, but {mountpoint} does not show it here",
            kind="mount.not_visible",
            mountpoint=mountpoint,
        )
