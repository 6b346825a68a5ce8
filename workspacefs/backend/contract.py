"""What every backend does: keep values under keys, and decide races about them.

One suite, tests/contract/test_backend_contract.py, states the behaviour and is run on each
implementation. This module must not know any of them.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NewType, Protocol

from workspacefs.errors import UsageError

Version = NewType("Version", str)
"""Opaque token of one value of one key; equal tokens of a key mean equal values."""

STORE_DENIED: Final = "store.denied"
"""Kind of an UnavailableError: the store answered that we may not; nothing was changed."""
STORE_CREDENTIALS: Final = "store.credentials"
"""Kind of an UnavailableError: credentials are missing or not good; nothing was changed."""
STORE_UNCLEAR: Final = "store.unclear"
"""Kind of an UnavailableError: no clear answer came; a write may have taken effect, or may yet."""
STORE_AWAY: Final = "store.away"
"""Kind of an UnavailableError: no connection came about; nothing was changed."""
STORE_CONFLICT: Final = "store.conflict"
"""Kind of an UnavailableError: the store put off a write too often; nothing was changed."""
UNCHANGED_KINDS: Final = frozenset((STORE_DENIED, STORE_CREDENTIALS, STORE_AWAY, STORE_CONFLICT))
"""With any other kind of an UnavailableError a write may have taken effect, or may yet."""
STORE_NO_CONDITIONAL_DELETE: Final = "store.no_conditional_delete"
"""Kind of an UnavailableError: the server cannot delete on a condition; nothing was deleted."""
PIECE_MAX_BYTES: Final = 256 << 10
"""Most bytes of one piece of a RangeAnswer."""
KEY_MAX_CHARS: Final = 900
KEY_PART_MAX_CHARS: Final = 240
_KEY_PART: Final = r"[A-Za-z0-9_][A-Za-z0-9._,+@=-]*"
_KEY: Final = re.compile(rf"{_KEY_PART}(?:/{_KEY_PART})*")


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """One key of a listing."""

    key: str
    size_bytes: int
    state: str | None = field(default=None, compare=False)
    """Differs from that of an earlier listing if the value does; no Version, and good for nothing
    but to be compared. None: the listing does not say."""


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """A range of a value that is on its way.

    Attributes:
        total_bytes: Length of the whole value.
        pieces: The range in order, in pieces of at most PIECE_MAX_BYTES; together just what was
            asked for, as far as the value reaches. Use it up, or close it.
    """

    total_bytes: int
    pieces: Generator[bytes, None, None]


class RangeSource(Protocol):
    """A backend that hands out a range while it still arrives."""

    def open_range(self, key: str, *, offset: int, length: int) -> RangeAnswer:
        """Begin to read up to `length` bytes from `offset` on; a broken connection is resumed.

        The errors below are raised here or while the pieces are read.

        Raises:
            KeyAbsentError: There is no value.
            UnavailableError: The store does not answer, within the retry limits.
            IntegrityError: The server keeps sending less or something else (kind "store.short"),
                or `offset` lies behind the end of the value.
        """
        ...


class Backend(Protocol):
    """Bytes by key. Safe to use from several threads; not across a fork.

    Keys are slash-separated parts of safe ASCII (see `check_key`); no key is a directory part of
    another. Values are written whole. All methods raise UnavailableError when the store does not
    answer or refuses us, and NoSpaceError when it is full.
    """

    @property
    def url(self) -> str:
        """Canonical and absolute: "file:///abs/dir", "memory:name"."""
        ...

    @property
    def is_local(self) -> bool:
        """True: a read costs no network round trip."""
        ...

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the value under `key`, or exactly `length` bytes of it from `offset` on.

        Raises:
            KeyAbsentError: There is no value.
            IntegrityError: The value is shorter than what was asked for (kind "store.short").
        """
        ...

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a whole value and the token of just this value.

        Raises:
            KeyAbsentError: There is no value.
        """
        ...

    def size_bytes(self, key: str) -> int:
        """Return the length of the value under `key`.

        Raises:
            KeyAbsentError: There is no value.
        """
        ...

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store the parts, joined, under a key that was never used; survives power loss.

        Raises:
            BusyError: A value is there already (kind "store.exists"); it is left as it is.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store `data` unless a value is there, in one step; None: one was there.

        Survives power loss on return.
        """
        ...

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace the value that has the token `version`, in one step; None: it is not there.

        Atomic between processes; survives power loss on return.
        """
        ...

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield the keys that begin with `prefix` and are greater than `start_after`, ascending.

        Keys that come or go meanwhile may or may not be seen.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove a value if it is there."""
        ...

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value that has the token `version`, in one step; False: it is not there.

        Raises:
            UnavailableError: The server cannot (kind STORE_NO_CONDITIONAL_DELETE).
        """
        ...

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        """Take note that a copy near us of this range is wrong: the next get asks the store itself.

        Does nothing where there are no copies.
        """
        ...

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        """Tell whether reading this range costs no round trip."""
        ...

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        """Return a range that is on a disk of this machine, or None; never asks the store.

        None as well where the value is shorter or missing: `get` says what is wrong.
        """
        ...

    def free_bytes(self) -> tuple[int, int] | None:
        """Return (total, free) of the disk that the store lies on; None when there is no such."""
        ...


def check_key(key: str) -> str:
    """Return `key` if it is a key: parts of A-Z a-z 0-9 . _ , + @ = - that begin with no dot.

    Raises:
        UsageError: It is not.
    """
    if (
        len(key) <= KEY_MAX_CHARS
        and _KEY.fullmatch(key)
        and (len(key) <= KEY_PART_MAX_CHARS or max(map(len, key.split("/"))) <= KEY_PART_MAX_CHARS)
    ):
        return key
    raise UsageError(f"{key!r} is no key of a store", kind="store.key")
