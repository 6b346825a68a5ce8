"""Commits: a tree, its parents, and who made it when, in which run, with what.

Immutable; the id covers everything but the locators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from workspacefs.ids import ID_BYTES
from workspacefs.objects.encoding import decode, encode, malformed
from workspacefs.objects.entry import Entry
from workspacefs.objects.nodes import decode_root_entry, encode_root_entry
from workspacefs.objects.refs import Locator, Ref

_FIELDS: Final = 7
_FIELDS_WITH_NOTES: Final = 8
_FIELDS_WITH_SIGNATURE: Final = 9
_PROVENANCE_FIELDS: Final = 7
_PUBLIC_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who made a commit. Empty strings stand for what is not known."""

    author: str = ""
    """Account and host of the process that asked, as "user@host"."""
    agent: str = ""
    session: str = ""
    run: str = ""
    tool_call: str = ""
    model: str = ""
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCounts:
    """How a commit differs from its first parent, in names."""

    added: int = 0
    modified: int = 0
    removed: int = 0


class Signature(NamedTuple):
    """An Ed25519 signature (RFC 8032)."""

    public_key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One immutable state of the whole workspace."""

    root: Entry
    """The root directory; its name is empty."""
    parents: tuple[Ref, ...]
    message: str
    time_ns: int
    provenance: Provenance = field(default_factory=Provenance)
    changes: ChangeCounts = field(default_factory=ChangeCounts)
    meta: tuple[tuple[str, str], ...] = ()
    """(key, value) pairs in ascending order of key."""
    notes: Entry | None = None
    """Root of a tree of what is known beside the files: see workspace/notes.py."""
    signature: Signature | None = None
    """Of the body of the same commit without it."""

    def references(self) -> list[Ref]:
        """Return the references in body order: parents, then the roots of the tree and of the
        notes, where they have any.
        """
        roots = [self.root.subtree.root]
        if self.notes is not None:
            roots.append(self.notes.subtree.root)
        return [*self.parents, *(root for root in roots if root is not None)]

    def unsigned(self) -> Commit:
        """Return what is, or would be, signed."""
        return replace(self, signature=None)


def encode_commit(commit: Commit) -> tuple[bytes, list[Ref]]:
    """Return the body of a commit, and its references in body order."""
    who, changes = commit.provenance, commit.changes
    row, root_refs = encode_root_entry(commit.root)
    fields: list[object] = [
        row,
        [parent.id for parent in commit.parents],
        commit.message,
        commit.time_ns,
        [who.author, who.agent, who.session, who.run, who.tool_call, who.model, who.host],
        [changes.added, changes.modified, changes.removed],
        [part for pair in commit.meta for part in pair],
    ]
    refs = [*commit.parents, *root_refs]
    if commit.notes is not None:
        notes_row, notes_refs = encode_root_entry(commit.notes)
        fields.append(notes_row)
        refs += notes_refs
    elif commit.signature is not None:
        fields.append(None)
    if commit.signature is not None:
        fields.append(list(commit.signature))
    return encode(fields), refs


def decode_commit(body: bytes, locators: Sequence[Locator | None], *, what: str) -> Commit:
    """Return the commit that `body` encodes.

    Raises:
        IntegrityError: The body is malformed.
    """
    fields = decode(body, what=what)
    if not _FIELDS <= len(fields) <= _FIELDS_WITH_SIGNATURE:
        raise malformed(what, "is not a commit")
    row, parents, message, time_ns, who, counts, meta = fields[:_FIELDS]
    if not isinstance(parents, list) or not all(
        isinstance(parent, bytes) and len(parent) == ID_BYTES for parent in parents
    ):
        raise malformed(what, "has malformed parents")
    if not isinstance(message, str) or type(time_ns) is not int:
        raise malformed(what, "has a malformed message or time")
    names = _texts(who, what=what)
    pairs = _texts(meta, what=what)
    if len(names) != _PROVENANCE_FIELDS or len(pairs) % 2:
        raise malformed(what, "has malformed provenance")
    keys = pairs[::2]
    if sorted(set(keys)) != keys:
        raise malformed(what, "has metadata out of order")
    if (
        not isinstance(counts, list)
        or len(counts) != 3
        or not all(type(count) is int and count >= 0 for count in counts)
    ):
        raise malformed(what, "has malformed counts")
    parent_refs = tuple(
        Ref(parent, locators[index] if index < len(locators) else None)
        for index, parent in enumerate(parents)
    )
    root = decode_root_entry(row, locators[len(parents) :], what=what)
    rest = locators[len(parents) + (root.subtree.root is not None) :]
    return Commit(
        root=root,
        parents=parent_refs,
        message=message,
        time_ns=time_ns,
        provenance=Provenance(
            author=names[0],
            agent=names[1],
            session=names[2],
            run=names[3],
            tool_call=names[4],
            model=names[5],
            host=names[6],
        ),
        changes=ChangeCounts(added=counts[0], modified=counts[1], removed=counts[2]),
        meta=tuple(zip(keys, pairs[1::2], strict=True)),
        notes=_notes(fields, rest, what=what),
        signature=_signature(fields, what=what),
    )


def _notes(fields: list[object], locators: Sequence[Locator | None], *, what: str) -> Entry | None:
    if len(fields) < _FIELDS_WITH_NOTES:
        return None
    row = fields[_FIELDS]
    if row is None and len(fields) == _FIELDS_WITH_SIGNATURE:
        return None
    return decode_root_entry(row, locators, what=what)


def _signature(fields: list[object], *, what: str) -> Signature | None:
    if len(fields) < _FIELDS_WITH_SIGNATURE:
        return None
    parts = fields[_FIELDS_WITH_NOTES]
    if isinstance(parts, list) and len(parts) == 2:
        key, value = parts
        if (
            isinstance(key, bytes)
            and isinstance(value, bytes)
            and (len(key), len(value)) == (_PUBLIC_KEY_BYTES, _SIGNATURE_BYTES)
        ):
            return Signature(key, value)
    raise malformed(what, "has a malformed signature")


def _texts(value: object, *, what: str) -> list[str]:
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return value
    raise malformed(what, "has something else where text belongs")
