"""Registry and mount table: which sessions live, and where a path lies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from workspacefs.client.mountinfo import find_mount, find_mount_above, is_inside, parse_mounts
from workspacefs.client.registry import (
    LiveSession,
    boot_id,
    find_start_ticks,
    forget_session,
    living_sessions,
    load_sessions,
    save_session,
)
from workspacefs.statedir import StateDir, ensure_state_dir

_MOUNTINFO = rb"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
43 27 0:40 / /tmp/a\040b\134c rw,nosuid shared:1 - fuse.workspacefs workspacefs:s rw,user_id=0
44 27 0:41 / /tmp/a\040b\134c rw,nosuid - fuse.other other rw,user_id=0
45 27 0:42 / /tmp/\303\251 rw - tmpfs tmpfs rw
""".strip().splitlines()


def _session(state: StateDir, **changes: object) -> LiveSession:
    made = LiveSession(
        session="s",
        session_id="abc",
        socket=state.session_socket("abc"),
        mountpoint="/mnt",
        store_url="file:///s",
        branch="main",
        is_read_only=False,
        pid=os.getpid(),
        start_ticks=find_start_ticks(os.getpid()) or 0,
        boot_id=boot_id(),
        mounted_ns=time.time_ns(),
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def test_living_session_is_found_and_forgotten(tmp_path: Path) -> None:
    """A saved session is listed until it is forgotten; forgetting twice is no error."""
    state = StateDir(str(tmp_path))
    ensure_state_dir(state)
    session = _session(state)

    save_session(state, session)

    assert living_sessions(state) == [session]
    forget_session(state, "abc")
    forget_session(state, "abc")
    assert load_sessions(state) == []


def test_dead_process_is_not_taken_for_a_session(tmp_path: Path) -> None:
    """Neither a process that ended, nor a later one of the same number, nor one before a boot."""
    state = StateDir(str(tmp_path))
    ensure_state_dir(state)
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, check=True)  # fmt: skip

    for changes in ({"pid": int(ended.stdout)}, {"start_ticks": 1}, {"boot_id": "another"}):
        save_session(state, _session(state, **changes))

        assert len(load_sessions(state)) == 1
        assert living_sessions(state) == []


@given(content=st.binary(max_size=300))
def test_damaged_registry_file_is_no_session(content: bytes) -> None:
    """Whatever a crash of the machine left there, it names nobody."""
    state = StateDir(f"/dev/shm/workspacefs-test-{os.getpid()}")
    ensure_state_dir(state)
    path = Path(state.registry_file("abc"))
    path.write_bytes(content)

    try:
        assert load_sessions(state) == []
    finally:
        path.unlink()


def test_absent_state_directory_has_no_sessions(tmp_path: Path) -> None:
    """Nothing was ever mounted here."""
    assert load_sessions(StateDir(str(tmp_path / "absent"))) == []


def test_mount_table_is_read_with_its_escapes() -> None:
    """Blanks and backslashes in names are decoded, the topmost mount wins."""
    mounts = parse_mounts(_MOUNTINFO)

    found = find_mount("/tmp/a b\\c", mounts)
    assert found is not None
    assert (found.kind, found.source, found.is_fuse) == ("fuse.other", "other", True)
    assert find_mount("/nowhere", mounts) is None
    above = find_mount_above("/tmp/a b\\cd/x", mounts)
    assert above is not None
    assert above.mountpoint == "/"


def test_inside_is_by_whole_names() -> None:
    """/ab does not lie in /a, but everything lies in /."""
    assert is_inside("/a/b", "/a")
    assert is_inside("/a", "/a")
    assert is_inside("/a", "/")
    assert not is_inside("/ab", "/a")
