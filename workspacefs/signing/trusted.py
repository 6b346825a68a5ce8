"""Whose signatures count: a file with a public key and a name on each line.

Of a person, not of a workspace: whoever can write to a store could add a key to a list that lies in
it. A file for a team is kept where its other settings are, and given by --trusted.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from typing import Final

from workspacefs.errors import BusyError, NotFoundError, UnavailableError, UsageError
from workspacefs.signing.key_files import sync_directory_of

_KEY: Final = re.compile(r"[0-9a-f]{64}")
_NAME: Final = re.compile(r"[^\s#][^\r\n]*")

_HEAD: Final = "# Public keys (Ed25519, hex) whose signatures count, and who they belong to.\n"


def parse_public_key(text: str) -> bytes:
    """Return the 32 bytes of a public key.

    Raises:
        UsageError: It is not spelled as one.
    """
    if not _KEY.fullmatch(text.lower()):
        raise UsageError(
            f"{text[:80]!r} is no public key: 64 hex digits, as workspacefs key show prints them",
            kind="key.malformed",
        )
    return bytes.fromhex(text)


def load_trusted(path: str, *, must_exist: bool = False) -> dict[bytes, str]:
    """Return names by public key; none, if there is no such file.

    Raises:
        NotFoundError: It is not there, and must be.
        UsageError: A line is neither empty, nor a comment, nor a key and a name.
        UnavailableError: It cannot be read.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except FileNotFoundError as exc:
        if must_exist:
            raise NotFoundError(f"there is no file {path}", kind="key.no_list", path=path) from exc
        return {}
    except OSError as exc:
        raise UnavailableError(
            f"the list of trusted keys {path} cannot be read: {exc.strerror}", kind="key.unreadable"
        ) from exc
    found: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, _, name = line.strip().partition(" ")
        if not _KEY.fullmatch(key.lower()) or not name.strip():
            raise UsageError(
                f"line {number} of {path} is not a key (64 hex digits), a blank and a name",
                kind="key.malformed_list",
                path=path,
            )
        found[bytes.fromhex(key)] = name.strip()
    return found


def trust_key(path: str, name: str, key: bytes) -> None:
    """Add a key to a list; a name may have several. Survives power loss on return.

    Raises:
        UsageError: Nobody can be called that.
        BusyError: It is there under another name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a key's owner", kind="key.name")
    keys = load_trusted(path)
    if keys.get(key, name) != name:
        raise BusyError(
            f"this key is trusted as {keys[key]} already; workspacefs key distrust it first",
            kind="key.trusted",
        )
    _store(path, {**keys, key: name})


def distrust(path: str, what: str) -> list[bytes]:
    """Take all keys of a name, or one key, off a list; return them. Survives power loss on return.

    Raises:
        NotFoundError: None is on it.
    """
    keys = load_trusted(path)
    gone = [key for key, name in keys.items() if what in (name, key.hex())]
    if not gone:
        raise NotFoundError(
            f"{what} is not trusted; workspacefs key list shows who is", kind="key.not_trusted"
        )
    _store(path, {key: name for key, name in keys.items() if key not in gone})
    return gone


def _store(path: str, keys: Mapping[bytes, str]) -> None:
    rows = sorted(keys.items(), key=lambda row: (row[1], row[0]))
    text = _HEAD + "".join(f"{key.hex()} {name}\n" for key, name in rows)
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(temporary, "x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory_of(path)
    except OSError as exc:
        raise UnavailableError(
            f"the list of trusted keys {path} cannot be written: {exc.strerror}",
            kind="key.unwritable",
        ) from exc
