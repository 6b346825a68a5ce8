"""Commits: a tree, its parents, and who made it when, in which run, with what.

Immutable; the id covers everything but the locators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workspacefs.ids import ID_BYTES
from workspacefs.objects.encoding import decode, encode, malformed
from workspacefs.objects.entry import Entry
from workspacefs.objects.nodes import decode_root_entry, encode_root_entry
from workspacefs.objects.refs import Locator, Ref

_FIELDS = 7
_PROVENANCE_FIELDS = 7


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


def encode_commit(commit: Commit) -> tuple[bytes, list[Ref]]:
    """Return the body of a commit, and its references in body order: parents, then the root's."""
    who, changes = commit.provenance, commit.changes
    row, root_refs = encode_root_entry(commit.root)
    body = encode(
        [
            row,
            [parent.id for parent in commit.parents],
            commit.message,
            commit.time_ns,
            [who.author, who.agent, who.session, who.run, who.tool_call, who.model, who.host],
            [changes.added, changes.modified, changes.removed],
            [part for pair in commit.meta for part in pair],
        ]
    )
    return body, [*commit.parents, *root_refs]


def decode_commit(body: bytes, locators: Sequence[Locator | None], *, what: str) -> Commit:
    """Return the commit that `body` encodes.

    Raises:
        IntegrityError: The body is malformed.
    """
    fields = decode(body, what=what)
    if len(fields) != _FIELDS:
        raise malformed(what, "is not a commit")
    row, parents, message, time_ns, who, counts, meta = fields
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
    return Commit(
        root=decode_root_entry(row, locators[len(parents) :], what=what),
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
    )


def _texts(value: object, *, what: str) -> list[str]:
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return value
    raise malformed(what, "has something else where text belongs")
