"""How far a watcher has told what happened in a workspace, as a value and as text.

The text has all that is needed to go on from there: for each ref the write that was told last. It
may go to a file, a database or another machine, and is good for ever.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgpack
from blake3 import blake3

from workspacefs.errors import UsageError
from workspacefs.ids import ID_BYTES, CommitId
from workspacefs.refs import RefKind

_FORMAT: Final = 1
_WRITE_BYTES: Final = 8
_MARK_BYTES: Final = 6
_TEXT_MAX_CHARS: Final = 64 << 20

RefName = tuple[RefKind, str]


class Told(NamedTuple):
    """What was told of a ref last."""

    write: bytes
    """First bytes of the write id's text."""
    commit: CommitId | None
    state: str
    """Of a session; empty: not known, or no session."""

    def is_of(self, write_id: str) -> bool:
        """Tell whether it was that write."""
        return self.write == write_mark(write_id)


def write_mark(write_id: str) -> bytes:
    """Return what stands for a write id here."""
    return blake3(write_id.encode("utf-8", "surrogatepass")).digest(_WRITE_BYTES)


@dataclass(slots=True)
class Position:
    """Where a feed goes on; changes with each event that is told."""

    workspace_id: str
    names: tuple[str, ...] = ()
    """Patterns of the refs that it is about; none: all."""
    refused: int = 0
    """Number of the last refused landing."""
    refs: dict[RefName, Told] = field(default_factory=dict)
    ended: set[bytes] = field(default_factory=set)
    """Marks of deleted sessions, which are many, and as they were told last."""

    def is_told(self, ref: RefName, write_id: str) -> bool:
        """Tell whether what led to this write of a ref was told."""
        told = self.refs.get(ref)
        if told is not None:
            return told.is_of(write_id)
        return _mark_of(ref, write_id) in self.ended

    def note_ended(self, ref: RefName, write_id: str) -> None:
        """Note of a session that it was told to be deleted."""
        self.refs.pop(ref, None)
        self.ended.add(_mark_of(ref, write_id))

    def encode(self) -> str:
        """Return the position as text: letters, digits, - and _."""
        rows = [
            [kind.value, name, told.write, told.commit, told.state]
            for (kind, name), told in sorted(self.refs.items(), key=_order_of)
        ]
        ended = b"".join(sorted(self.ended))
        fields = [_FORMAT, self.workspace_id, list(self.names), self.refused, rows, ended]
        packed = zlib.compress(msgpack.packb(fields), 6)
        return base64.urlsafe_b64encode(packed).decode("ascii").rstrip("=")


def decode_position(text: str, *, workspace_id: str, names: Iterable[str]) -> Position:
    """Return the position that a text stands for.

    Args:
        text: From Position.encode.
        workspace_id: Which workspace it must be of.
        names: Patterns that it must be about.

    Raises:
        UsageError: It is no position, or of another workspace or other refs.
    """
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        body = zlib.decompressobj().decompress(packed, _TEXT_MAX_CHARS)
        found = _position_of(msgpack.unpackb(body))
    except (ValueError, TypeError, binascii.Error, zlib.error, msgpack.UnpackException) as exc:
        raise UsageError(
            f"{text[:20]!r} is no position of a watch: give one that an event had, whole, or start",
            kind="watch.position",
        ) from exc
    if found.workspace_id != workspace_id:
        raise UsageError(
            "this position is of another workspace; watch that one, or begin without --from",
            kind="watch.position",
        )
    if found.names != tuple(sorted(set(names))):
        told = " ".join(f"--ref {name}" for name in found.names) or "no --ref"
        raise UsageError(
            f"this position is of a watch with {told}; give the same, or begin without --from",
            kind="watch.position",
        )
    return found


def _position_of(fields: Any) -> Position:
    form, workspace_id, names, refused, rows, ended = fields
    if form != _FORMAT or type(workspace_id) is not str or type(refused) is not int:
        raise ValueError("of another format")
    refs: dict[RefName, Told] = {}
    for kind, name, write, commit, state in rows:
        if (type(name), type(write), type(state)) != (str, bytes, str):
            raise ValueError("not a row")
        if commit is not None and (type(commit) is not bytes or len(commit) != ID_BYTES):
            raise ValueError("not a commit")
        commit_id = None if commit is None else CommitId(commit)
        refs[RefKind(kind), name] = Told(write, commit_id, state)
    marks = {ended[at : at + _MARK_BYTES] for at in range(0, len(ended), _MARK_BYTES)}
    return Position(workspace_id, tuple(map(str, names)), refused, refs, marks)


def _mark_of(ref: RefName, write_id: str) -> bytes:
    text = f"{ref[0].value}\n{ref[1]}\n{write_id}"
    return blake3(text.encode("utf-8", "surrogatepass")).digest(_MARK_BYTES)


def _order_of(item: tuple[RefName, Told]) -> tuple[str, str]:
    (kind, name), _ = item
    return kind.value, name
