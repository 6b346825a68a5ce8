"""Reading and moving refs; what to do when the answer to a write was lost.

Source: the write id read-back of DESIGN section 3: our id there is success, another's is a lost
race, no answer is "unknown" and never guessed.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from workspacefs.backend.contract import UNCHANGED_KINDS, Backend, KeyInfo, Version
from workspacefs.backend.retry import Retries, RetryPolicy
from workspacefs.clock import Clock
from workspacefs.errors import (
    IntegrityError,
    KeyAbsentError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from workspacefs.names import check_ref_name
from workspacefs.refs.record import (
    EMPTY_MAX_BYTES,
    RefKind,
    RefRecord,
    decode_ref,
    encode_ref,
)

_PREFIXES: Final = {
    RefKind.BRANCH: "refs/branches/",
    RefKind.TAG: "refs/tags/",
    RefKind.SESSION: "refs/sessions/",
    RefKind.PROPOSAL: "refs/proposals/",
}
_PLURALS: Final = {
    RefKind.BRANCH: "branches",
    RefKind.TAG: "tags",
    RefKind.SESSION: "sessions",
    RefKind.PROPOSAL: "proposals",
}
_SLASH: Final = ","
"""Stands for / in keys: no ref name has a comma, so that a and a/b can both be keys."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The ref holds `record` now, under `version`; survives power loss."""

    record: RefRecord
    version: Version


@dataclass(frozen=True, slots=True)
class Stale:
    """Someone else moved the ref first; nothing of ours is in it. None: there is no such ref.

    After a lost answer `current` may stand on top of our write: its history then has our commit.
    """

    current: RefRecord | None
    version: Version | None


class Refs:
    """The refs of one workspace. Thread-safe; caches nothing.

    Args:
        backend: Where they are stored.
        clock: For the times in them.
        retry: How long the store is asked what became of a write whose answer was lost.
    """

    def __init__(self, backend: Backend, clock: Clock, *, retry: RetryPolicy | None = None) -> None:
        self._backend = backend
        self._clock = clock
        self._retry = retry or RetryPolicy()

    def find(self, kind: RefKind, name: str) -> tuple[RefRecord, Version] | None:
        """Return what a ref holds and the token to replace it by, or None.

        A branch or tag without a commit was deleted; `find_live` passes over it.

        Raises:
            IntegrityError: The stored value is damaged; the message names its key.
            UsageError: No ref may have such a name.
        """
        key = ref_key(kind, name)
        try:
            value, version = self._backend.get_versioned(key)
        except KeyAbsentError:
            return None
        return decode_ref(value, key=key), version

    def find_live(self, kind: RefKind, name: str) -> tuple[RefRecord, Version] | None:
        """Return what `find` does, but None for a branch or tag that was deleted."""
        found = self.find(kind, name)
        return found if found is not None and _is_live(kind, found[0]) else None

    def get(self, kind: RefKind, name: str) -> tuple[RefRecord, Version]:
        """Return what a ref holds and the token to replace it by.

        Raises:
            NotFoundError: There is none; the message lists near names.
            IntegrityError: The stored value is damaged; the message names its key.
        """
        found = self.find(kind, name)
        if found is None:
            raise self._absent(kind, name)
        return found

    def iter_names(self, kind: RefKind) -> Iterator[str]:
        """Yield the names of all refs of a kind, in the order of their keys; of branches and tags
        not those that were deleted. Reads only values that are short enough to say so.

        Raises:
            IntegrityError: A key stands for no name that a ref may have.
        """
        for name, info in self._iter_infos(kind):
            if info.size_bytes > EMPTY_MAX_BYTES or not self._is_deleted(kind, name):
                yield name

    def iter_states(self, kind: RefKind) -> Iterator[tuple[str, str | None]]:
        """Yield the name of each ref of a kind, deleted ones too, and what differs from an earlier
        listing if its value does (None: the store does not say); in the order of their keys.

        Raises:
            IntegrityError: A key stands for no name that a ref may have.
        """
        return ((name, info.state) for name, info in self._iter_infos(kind))

    def _iter_infos(self, kind: RefKind) -> Iterator[tuple[str, KeyInfo]]:
        prefix = _PREFIXES[kind]
        for info in self._backend.iter_keys(prefix):
            name = info.key[len(prefix) :].replace(_SLASH, "/")
            try:
                key = ref_key(kind, name)
            except UsageError as exc:
                raise _foreign(info.key) from exc
            if key != info.key:
                raise _foreign(info.key)
            yield name, info

    def iter(self, kind: RefKind) -> Iterator[tuple[str, RefRecord]]:
        """Yield name and record of all refs of a kind, in the order of their keys; of branches and
        tags not those that were deleted.

        Raises:
            IntegrityError: A value is damaged; the message names its key.
        """
        for name in self.iter_names(kind):
            found = self.find_live(kind, name)
            if found is not None:  # else deleted meanwhile
                yield name, found[0]

    def compare_and_swap(
        self, kind: RefKind, name: str, *, expected: Version | None, new: RefRecord
    ) -> Moved | Stale:
        """Make a ref hold `new` if it holds just the value of `expected` (None: if it is absent).

        Time and, unless given, write id are filled in. A lost answer is found out by reading
        back; a write that did not arrive is sent again under the same condition, with pauses,
        until the deadline.

        Raises:
            UnavailableError: The store does not say whether the ref moved (kind "ref.unknown"):
                read it later and compare write ids. Of another kind: it did not move.
            NoSpaceError: The store is full; the ref did not move.
        """
        key = ref_key(kind, name)
        new = replace(
            new,
            write_id=new.write_id or secrets.token_hex(16),
            moved_at_ns=self._clock.now_ns(),
        )
        data = encode_ref(new)
        tries = self._retry.begin()
        problem: UnavailableError | None = None
        while True:
            version = None
            try:
                version = self._write(key, data, expected)
            except UnavailableError as exc:
                if problem is None and exc.kind in UNCHANGED_KINDS:
                    raise  # an answer, and a clear one; but for what was sent before
                problem = exc
            if version is not None:
                return Moved(new, version)
            answer = self._read_back(kind, name, new, tries, problem)
            # Unchanged after a lost answer: the write did not arrive, or not yet. It may be sent
            # again, since at most one of the two can meet the condition.
            if isinstance(answer, Moved) or problem is None or answer.version != expected:
                return answer
            if not tries.wait():
                raise self._unknown(kind, name, new) from problem

    def delete(self, kind: RefKind, name: str) -> None:
        """Remove a ref, whatever it holds, if it is there."""
        self._backend.delete(ref_key(kind, name))

    def _is_deleted(self, kind: RefKind, name: str) -> bool:
        try:
            return kind is not RefKind.SESSION and self.find_live(kind, name) is None
        except (IntegrityError, RefusedError):
            return False  # whoever reads it is told

    def _write(self, key: str, data: bytes, expected: Version | None) -> Version | None:
        if expected is None:
            return self._backend.put_if_absent(key, data)
        return self._backend.put_if_version(key, data, expected)

    def _read_back(
        self,
        kind: RefKind,
        name: str,
        new: RefRecord,
        tries: Retries,
        problem: UnavailableError | None,
    ) -> Moved | Stale:
        while True:
            try:
                found = self.find(kind, name)
            except UnavailableError as exc:
                problem = problem or exc
            else:
                break
            if not tries.wait():
                raise self._unknown(kind, name, new) from problem
        if found is None:
            return Stale(None, None)
        record, version = found
        return Moved(new, version) if record.write_id == new.write_id else Stale(record, version)

    def _unknown(self, kind: RefKind, name: str, new: RefRecord) -> UnavailableError:
        return UnavailableError(
            f"the store did not say whether {kind.value} {name} moved; look at it when the store "
            "answers again, before you retry",
            kind="ref.unknown",
            ref=name,
            write_id=new.write_id,
        )

    def _absent(self, kind: RefKind, name: str) -> NotFoundError:
        names = list(self.iter_names(kind))
        near = difflib.get_close_matches(name, names, n=5, cutoff=0.5)
        if near:
            hint = f"did you mean {_list_names(near)}?"
        elif names:
            hint = f"there are: {_list_names(names)}"
        else:
            hint = f"there are no {_PLURALS[kind]} yet"
        return NotFoundError(
            f"no {kind.value} is called {name}; {hint}", kind="ref.absent", ref=name
        )


def _is_live(kind: RefKind, record: RefRecord) -> bool:
    return kind is RefKind.SESSION or record.commit_id is not None


def _foreign(key: str) -> IntegrityError:
    return IntegrityError(f"{key} is no key of a ref", kind="ref.damaged", key=key)


def ref_key(kind: RefKind, name: str) -> str:
    """Return the key under which a ref is stored.

    Raises:
        UsageError: No ref may have such a name.
    """
    return _PREFIXES[kind] + check_ref_name(name, what=kind.value).replace("/", _SLASH)


def _list_names(names: Sequence[str], *, limit: int = 8) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
