"""What a machine must have for mounts to work, each looked at by itself.

A check never raises: it says ok, warn or fail, what it found, and what to do about it.
"""

from __future__ import annotations

import enum
import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from workspacefs.client.connection import Connection
from workspacefs.client.registry import living_sessions
from workspacefs.errors import WorkspaceError
from workspacefs.statedir import StateDir

DEVICE: Final = "/dev/fuse"
MODULES: Final = (
    "trio",
    "pyfuse3",
    "lmdb",
    "zstandard",
    "blake3",
    "xxhash",
    "msgpack",
    "pathspec",
    "boto3",
)
_FREE_WARN_BYTES: Final = 1 << 30
_FREE_FAIL_BYTES: Final = 64 << 20
_STORE_TIMEOUT_S: Final = 10.0
_KERNEL_MIN: Final = (5, 4)
_CAP_SYS_ADMIN: Final = 21
_CONTAINER_HINT: Final = (
    "in a container: docker run --device /dev/fuse --cap-add SYS_ADMIN "
    "--security-opt apparmor=unconfined ..."
)


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    name: str
    level: Level
    found: str
    advice: str = ""
    """What to do; empty when nothing is."""


def iter_findings(state: StateDir) -> Iterator[Finding]:
    """Yield the finding of every check that looks without touching anything."""
    yield check_python()
    yield check_modules()
    yield check_kernel()
    yield check_device()
    yield check_fusermount()
    yield check_privilege()
    yield check_state_dir(state)
    yield check_space(state)
    yield from check_stores(state)


def check_python() -> Finding:
    """Look at the interpreter."""
    # Too old a one cannot even load this module; pip refuses it as well.
    return Finding("python", Level.OK, f"{platform.python_version()} at {sys.executable}")


def check_stores(state: StateDir) -> Iterator[Finding]:
    """Ask each mount of a far store whether that answers."""
    try:
        sessions = living_sessions(state)
    except OSError:
        return  # check_state_dir says what is wrong with it
    for session in sessions:
        if session.store_url.startswith("file:"):
            continue
        try:
            with Connection.open(session.socket, what=f"session {session.session}") as asked:
                store = asked.call("store", timeout_s=_STORE_TIMEOUT_S)["store"]
        except WorkspaceError as exc:
            yield Finding("store", Level.WARN, str(exc))
            continue
        where = f"{session.store_url}, mounted at {session.mountpoint}"
        if not isinstance(store, dict) or store.get("state") != "ok":
            reason = store.get("reason") if isinstance(store, dict) else None
            yield Finding(
                "store",
                Level.WARN,
                f"{where} does not answer: {reason or 'no reason is known'}",
                "look at the network, the endpoint and the credentials; the mount goes on by "
                "itself when the store is back",
            )
        else:
            yield Finding("store", Level.OK, f"{where} answers")


def check_modules(load: Callable[[str], object] = importlib.import_module) -> Finding:
    """Import what the daemons need."""
    broken = []
    for name in MODULES:
        try:
            load(name)
        except ImportError as exc:
            broken.append(f"{name} ({exc})")
    if broken:
        return Finding(
            "libraries",
            Level.FAIL,
            "cannot be imported: " + ", ".join(broken),
            "apt-get install fuse3 libfuse3-dev pkg-config gcc python3-dev, "
            "then: pip install --force-reinstall workspacefs",
        )
    version = importlib.metadata.version("pyfuse3")
    return Finding("libraries", Level.OK, f"all {len(MODULES)} load; pyfuse3 {version}")


def check_kernel(release: str | None = None) -> Finding:
    """Look at the kernel's age."""
    release = release or platform.release()
    match = re.match(r"(\d+)\.(\d+)", release)
    if sys.platform != "linux" or match is None:
        return Finding("kernel", Level.FAIL, f"{sys.platform} {release}", "mounts need Linux")
    if (int(match[1]), int(match[2])) < _KERNEL_MIN:
        return Finding(
            "kernel", Level.WARN, release, "older than 5.4, on which this was never tried"
        )
    return Finding("kernel", Level.OK, release)


def check_device(path: str = DEVICE) -> Finding:
    """Look at the device that FUSE servers open."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return Finding(
            "device",
            Level.FAIL,
            f"{path} does not exist",
            f"modprobe fuse (as root); {_CONTAINER_HINT}",
        )
    if not stat.S_ISCHR(found.st_mode):
        return Finding("device", Level.FAIL, f"{path} is no device", "modprobe fuse (as root)")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError as exc:
        advice = f"chmod 666 {path} (as root); {_CONTAINER_HINT}"
        return Finding("device", Level.FAIL, f"{path}: {exc.strerror}", advice)
    return Finding("device", Level.OK, f"{path} can be opened")


def check_fusermount() -> Finding:
    """Look for the program that mounts for accounts other than root."""
    path = shutil.which("fusermount3")
    is_root = os.geteuid() == 0
    if path is None:
        level = Level.WARN if is_root else Level.FAIL
        return Finding("fusermount3", level, "not installed", "apt-get install fuse3")
    if not is_root and not os.stat(path).st_mode & stat.S_ISUID:
        advice = f"chmod u+s {path} (as root)"
        return Finding("fusermount3", Level.FAIL, f"{path} is not set-user-id", advice)
    return Finding("fusermount3", Level.OK, path)


def check_privilege() -> Finding:
    """Look whether this process may mount at all, itself or by fusermount3."""
    with open("/proc/self/status") as file:
        fields = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    bounding = int(fields["CapBnd"], 16)
    if not bounding >> _CAP_SYS_ADMIN & 1:
        return Finding("privilege", Level.FAIL, "CAP_SYS_ADMIN is taken away", _CONTAINER_HINT)
    if fields.get("NoNewPrivs", "0").strip() == "1" and os.geteuid() != 0:
        return Finding(
            "privilege",
            Level.FAIL,
            "no_new_privs is set, so that fusermount3 gets no rights",
            "start the container or service without no-new-privileges, or as root",
        )
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}, by fusermount3"
    return Finding("privilege", Level.OK, f"may mount as {who}")


def check_state_dir(state: StateDir) -> Finding:
    """Look whose the state directory is, and who may enter it."""
    try:
        found = os.stat(state.root)
    except FileNotFoundError:
        return Finding("state dir", Level.OK, f"{state.root} will be made by the first mount")
    except OSError as exc:
        return Finding(
            "state dir", Level.FAIL, f"{state.root}: {exc.strerror}", "choose another --state-dir"
        )
    if found.st_uid != os.geteuid():
        return Finding(
            "state dir",
            Level.FAIL,
            f"{state.root} belongs to user {found.st_uid}",
            "choose another one with --state-dir or WORKSPACEFS_STATE_DIR",
        )
    if stat.S_IMODE(found.st_mode) & 0o077:
        advice = f"chmod 700 {state.root}; the next mount does so"
        return Finding("state dir", Level.WARN, f"{state.root} is open to others", advice)
    return Finding("state dir", Level.OK, f"{state.root}, private")


def check_space(state: StateDir) -> Finding:
    """Look at the disk that uncommitted work goes to."""
    place = state.root
    while not os.path.isdir(place):
        place = os.path.dirname(place)
    free = shutil.disk_usage(place).free
    found = f"{free / (1 << 30):.1f} GB free at {place}"
    advice = "free some, or put the state elsewhere with --state-dir"
    if free < _FREE_FAIL_BYTES:
        return Finding("disk", Level.FAIL, found, advice)
    if free < _FREE_WARN_BYTES:
        return Finding("disk", Level.WARN, found, advice)
    return Finding("disk", Level.OK, found)
