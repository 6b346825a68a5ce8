"""Who we are: for provenance, and for the name of a session that was not given one."""

from __future__ import annotations

import os
import pwd
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

from workspacefs.refs import Lease


def owner_name() -> str:
    """Return "user@host" of this process."""
    return f"{user_name(os.geteuid())}@{socket.gethostname()}"


def own_lease(saver: str, *, now_ns: int) -> Lease:
    """Return a lease for this machine."""
    return Lease(saver=saver, host=socket.gethostname(), since_ns=now_ns)


def user_name(uid: int) -> str:
    """Return the login name of an account, or its number when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def default_session_names(state_dir: str) -> Iterator[str]:
    """Yield names for a session that nobody named: the same ones, in the same order, every time.

    So that mounting again on this machine finds the work that was left uncommitted. The tag tells
    machines apart that have the same host name, as sandboxes made from one image do.
    """
    base = f"{_safe(user_name(os.geteuid()))}@{_safe(socket.gethostname())}.{_tag(state_dir)}"
    yield base
    number = 2
    while True:
        yield f"{base}-{number}"
        number += 1


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", text).strip("-")[:60] or "x"


def _tag(state_dir: str) -> str:
    path = Path(state_dir) / "machine-tag"
    try:
        with path.open("x") as file:
            file.write(secrets.token_hex(2))
    except FileExistsError:
        pass
    return re.sub(r"[^0-9a-f]", "", path.read_text()) or "0"
