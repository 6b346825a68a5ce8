"""A backend whose work another process does; what that one has put on disk is read directly.

When the transfer process dies, calls find its successor; see `Connect`. Reads are simply asked
again. A conditional write that got no answer is "store.unclear": whoever made it reads back.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from workspacefs.backend.contract import STORE_UNCLEAR, KeyInfo, Version
from workspacefs.backend.disk import write_all
from workspacefs.cache.directory import CacheDirectory
from workspacefs.errors import BusyError, UnavailableError, WorkspaceError
from workspacefs.transfer.connections import Connect, Connections, unreached
from workspacefs.transfer.wire import SEALS, Message

log = logging.getLogger(__name__)

WAIT_S: Final = 60.0
_GRACE_S: Final = 15.0
"""How much longer than its own limit a transfer process may take to answer."""
_WRITE_SILENCE_S: Final = 900.0
_TRIES: Final = 3
_PAGE_KEYS: Final = 1000


@dataclass(slots=True)
class ClientCounts:
    """What one session asked for."""

    near: int = 0
    """Ranges that were on disk."""
    far: int = 0
    """Ranges that the transfer process was asked for."""
    far_bytes: int = 0


class TransferBackend:
    """A store behind a transfer process. As safe as a Backend.

    Args:
        url: Of the store, canonical.
        connect: See `Connect`.
        directory: The cache that the transfer process fills.
        prefix: Keys below it are cached.
        wait_s: Longest wait for bytes that the store must send.
        reads_ahead: Whether more than was asked for may be fetched.
    """

    is_local = False

    def __init__(
        self,
        url: str,
        connect: Connect,
        directory: CacheDirectory,
        *,
        prefix: str = "packs/",
        wait_s: float = WAIT_S,
        reads_ahead: bool = True,
    ) -> None:
        self.url = url
        self.wait_s = wait_s
        self._reads_ahead = reads_ahead
        self.counts = ClientCounts()
        self.on_far: Callable[[str, int, int], None] = _nothing
        """Hears of each range that was not on disk, before it is asked for."""
        self._connections = Connections(connect)
        self._directory = directory
        self._prefix = prefix
        self._lock = threading.Lock()
        self._early: dict[str, Future[Message]] = {}

    # -- opening in one round trip -------------------------------------------------------------

    def read_early(
        self, keys: Sequence[str], *, on_value: Callable[[str, bytes], None] | None = None
    ) -> None:
        """Begin to read values that will be asked for in a moment, all at once.

        The first `get` or `get_versioned` of each takes what came; call `forget_early` when that
        is over.

        Args:
            keys: Whose values.
            on_value: Called with each that there is, on a thread of its own.
        """
        threads = ThreadPoolExecutor(len(keys), thread_name_prefix="early")

        def read(key: str) -> Message:
            answer = self._connections.ask(
                "get_versioned", {"key": key}, silence_s=self.wait_s + _GRACE_S
            )
            if on_value is not None:
                try:
                    on_value(key, answer.payload)
                except WorkspaceError:
                    pass  # whoever reads the value meets the same, and says so
            return answer

        for key in keys:
            self._early[key] = threads.submit(read, key)
        threads.shutdown(wait=False)

    def forget_early(self) -> None:
        """Read everything anew from now on."""
        self._early = {}

    # -- the backend ---------------------------------------------------------------------------

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return a value or exactly the range asked for. See Backend.get."""
        if length is None and offset == 0 and (early := self._early.pop(key, None)) is not None:
            return early.result().payload
        if length is not None and key.startswith(self._prefix):
            data = self.find_near(key, offset=offset, length=length)
            if data is not None:
                return data
            self.on_far(key, offset, length)
        args = {
            "key": key,
            "offset": offset,
            "length": length,
            "wait_s": self.wait_s,
            "reads_ahead": self._reads_ahead,
        }
        answer = self._connections.ask("get", args, silence_s=self.wait_s + _GRACE_S)
        with self._lock:
            self.counts.far += 1
            self.counts.far_bytes += len(answer.payload)
        return answer.payload

    def get_versioned(self, key: str) -> tuple[bytes, Version]:
        """Return a whole value and its token. See Backend.get_versioned."""
        early = self._early.pop(key, None)
        if early is not None:
            answer = early.result()
        else:
            answer = self._connections.ask(
                "get_versioned", {"key": key}, silence_s=self.wait_s + _GRACE_S
            )
        return answer.payload, Version(str(answer.header["version"]))

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        answer = self._connections.ask("size", {"key": key}, silence_s=self.wait_s + _GRACE_S)
        return int(str(answer.header["size"]))

    def put(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        """Store under a key never used. See Backend.put."""
        size_bytes = sum(map(len, parts))
        fd = _memfd_of(parts)
        try:
            self._put(key, size_bytes, fd)
        finally:
            os.close(fd)

    def _put(self, key: str, size_bytes: int, fd: int) -> None:
        for attempt in range(_TRIES):
            try:
                self._connections.ask_once("put", {"key": key}, fd=fd, silence_s=_WRITE_SILENCE_S)
            except ConnectionError as exc:
                problem = exc
                log.warning("transfer.connection_lost", extra={"op": "put"})
                continue
            except BusyError:
                # Ours: an attempt before this one, whose answer was lost, got there.
                if attempt == 0 or self.size_bytes(key) != size_bytes:
                    raise
            return
        raise unreached() from problem

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there. See Backend.put_if_absent."""
        return self._swap("put_if_absent", {"key": key}, data)

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that token. See Backend.put_if_version."""
        return self._swap("put_if_version", {"key": key, "version": version}, data)

    def _swap(self, op: str, args: Mapping[str, object], data: bytes) -> Version | None:
        try:
            answer = self._connections.ask_once(op, args, payload=data, silence_s=_WRITE_SILENCE_S)
        except ConnectionError as exc:
            raise _unclear(str(args["key"])) from exc
        version = answer.header.get("version")
        return None if version is None else Version(str(version))

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order, page by page. See Backend.iter_keys."""
        while True:
            args = {"prefix": prefix, "start_after": start_after, "limit": _PAGE_KEYS}
            answer = self._connections.ask("list", args, silence_s=_WRITE_SILENCE_S)
            keys = answer.header["keys"]
            assert isinstance(keys, list)
            for key, size_bytes in keys:
                yield KeyInfo(key, size_bytes)
            if len(keys) < _PAGE_KEYS:
                return
            start_after = keys[-1][0]

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        self._connections.ask("delete", {"key": key}, silence_s=_WRITE_SILENCE_S)

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that token. See Backend.delete_if_version."""
        try:
            args = {"key": key, "version": version}
            answer = self._connections.ask_once(
                "delete_if_version", args, silence_s=_WRITE_SILENCE_S
            )
        except ConnectionError as exc:
            raise _unclear(key) from exc
        return bool(answer.header["done"])

    def free_bytes(self) -> tuple[int, int] | None:
        """Return None: a far store has no disk that we know of."""
        return None

    def forget_local(self, key: str, *, offset: int, length: int) -> None:
        """Fetch a range anew when it is asked for next. See Backend.forget_local."""
        if self.is_near(key, offset=offset, length=length):
            log.warning("cache.wrong_bytes", extra={"key": key, "offset": offset})
        self._connections.ask(
            "forget", {"key": key, "offset": offset, "length": length}, silence_s=_GRACE_S
        )
        # What we have open may have been deleted: then nobody but us has those bytes.
        self._directory.drop(key)

    def find_near(self, key: str, *, offset: int, length: int) -> bytes | None:
        """Return a range that is in the cache. See Backend.find_near."""
        file = self._directory.find(key)
        try:
            found = None if file is None else file.read(offset, length)
        except OSError:
            return None
        if found is None:
            if file is not None and not file.is_linked():
                self._directory.drop(key)  # evicted; what replaced it may have the range by now
            return None
        self.counts.near += 1
        if found.marked_block is not None:
            self.on_far(key, offset, length)
            self.hint("mark", {"key": key, "block": found.marked_block})
        return found.data

    def is_near(self, key: str, *, offset: int, length: int) -> bool:
        """Tell whether a range is in the cache. See Backend.is_near."""
        file = self._directory.find(key)
        try:
            return file is not None and file.holds(offset, length)
        except OSError:
            return False

    # -- what only a transfer process can do ---------------------------------------------------

    def hint(self, op: str, args: Mapping[str, object]) -> None:
        """Tell the transfer process something that needs no answer; never blocks."""
        self._connections.hint(op, args)

    def prefetch(self, ranges: Sequence[tuple[str, int, int]], *, is_ahead: bool = False) -> None:
        """Have ranges (key, offset, length) fetched when nothing else is to be done.

        Args:
            ranges: Which, the most wanted first.
            is_ahead: They lie just behind what a program reads now.
        """
        for start in range(0, len(ranges), _PAGE_KEYS):
            page = [list(one) for one in ranges[start : start + _PAGE_KEYS]]
            self.hint("prefetch", {"ranges": page, "is_ahead": is_ahead})

    def document(self, op: str, args: Mapping[str, object] | None = None) -> dict[str, object]:
        """Return what the transfer process tells of itself, such as "figures"."""
        return dict(self._connections.ask(op, args or {}, silence_s=_GRACE_S).header)

    @property
    def lost_connections(self) -> int:
        """Connections to the transfer process that ended while they were used."""
        return self._connections.lost

    def reconnect(self) -> None:
        """Use new connections from now on; what is under way ends on the old ones."""
        self._connections.reconnect()

    def close(self) -> None:
        """Hang up everywhere."""
        self._connections.close()


def _memfd_of(parts: Sequence[bytes | memoryview]) -> int:
    fd = os.memfd_create("workspacefs-value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        write_all(fd, parts)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _unclear(key: str) -> UnavailableError:
    return UnavailableError(
        f"the transfer process went away while {key} was changed; whether it was is not known",
        kind=STORE_UNCLEAR,
        key=key,
    )


def _nothing(key: str, offset: int, length: int) -> None:
    return None
