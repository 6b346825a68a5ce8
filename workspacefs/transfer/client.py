"""A backend whose work another process does; what that one has put on disk is read directly.

When the transfer process dies, calls find its successor; see `Connect`. Reads are simply asked
again. A conditional write that got no answer is "store.unclear": whoever made it reads back.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

from workspacefs.backend.contract import STORE_UNCLEAR, KeyInfo, Version
from workspacefs.backend.disk import write_all
from workspacefs.cache.directory import CacheDirectory
from workspacefs.errors import (
    BusyError,
    IntegrityError,
    KeyAbsentError,
    UnavailableError,
    WorkspaceError,
)
from workspacefs.protocol.failures import error_from_document
from workspacefs.transfer.wire import Message, Wire

log = logging.getLogger(__name__)

Connect: TypeAlias = Callable[[], socket.socket]
"""Returns a connection to a living transfer process, starting one if need be; may block for a
few seconds. Raises UnavailableError."""

WAIT_S: Final = 60.0
_GRACE_S: Final = 15.0
"""How much longer than its own limit a transfer process may take to answer."""
_WRITE_SILENCE_S: Final = 900.0
_HINT_TIMEOUT_S: Final = 1.0
_IDLE_MAX: Final = 8
_HINTS_MAX: Final = 1024
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
    lost_connections: int = 0


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
        self._connect = connect
        self._directory = directory
        self._prefix = prefix
        self._idle: list[Wire] = []
        self._lock = threading.Lock()
        self._hints: deque[Mapping[str, object]] = deque()
        self._has_hints = threading.Event()
        self._hint_thread: threading.Thread | None = None
        self._is_closed = False
        self._generation = 0
        """Of connections; those of an earlier one are not used again."""
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
            answer = self._ask("get_versioned", {"key": key}, silence_s=self.wait_s + _GRACE_S)
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
        answer = self._ask("get", args, silence_s=self.wait_s + _GRACE_S)
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
            answer = self._ask("get_versioned", {"key": key}, silence_s=self.wait_s + _GRACE_S)
        return answer.payload, Version(str(answer.header["version"]))

    def size_bytes(self, key: str) -> int:
        """Return the length of a value. See Backend.size_bytes."""
        answer = self._ask("size", {"key": key}, silence_s=self.wait_s + _GRACE_S)
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
                self._ask_once("put", {"key": key}, fd=fd, silence_s=_WRITE_SILENCE_S)
            except ConnectionError as exc:
                problem = exc
                log.warning("transfer.connection_lost", extra={"op": "put"})
                continue
            except BusyError:
                # Ours: an attempt before this one, whose answer was lost, got there.
                if attempt == 0 or self.size_bytes(key) != size_bytes:
                    raise
            return
        raise _unreached() from problem

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        """Store unless a value is there. See Backend.put_if_absent."""
        return self._swap("put_if_absent", {"key": key}, data)

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        """Replace just the value of that token. See Backend.put_if_version."""
        return self._swap("put_if_version", {"key": key, "version": version}, data)

    def _swap(self, op: str, args: Mapping[str, object], data: bytes) -> Version | None:
        try:
            answer = self._ask_once(op, args, payload=data, silence_s=_WRITE_SILENCE_S)
        except ConnectionError as exc:
            raise _unclear(str(args["key"])) from exc
        version = answer.header.get("version")
        return None if version is None else Version(str(version))

    def iter_keys(self, prefix: str, *, start_after: str = "") -> Iterator[KeyInfo]:
        """Yield keys in ascending order, page by page. See Backend.iter_keys."""
        while True:
            args = {"prefix": prefix, "start_after": start_after, "limit": _PAGE_KEYS}
            answer = self._ask("list", args, silence_s=_WRITE_SILENCE_S)
            keys = answer.header["keys"]
            assert isinstance(keys, list)
            for key, size_bytes in keys:
                yield KeyInfo(key, size_bytes)
            if len(keys) < _PAGE_KEYS:
                return
            start_after = keys[-1][0]

    def delete(self, key: str) -> None:
        """Remove a value if it is there. See Backend.delete."""
        self._ask("delete", {"key": key}, silence_s=_WRITE_SILENCE_S)

    def delete_if_version(self, key: str, version: Version) -> bool:
        """Remove just the value of that token. See Backend.delete_if_version."""
        try:
            args = {"key": key, "version": version}
            answer = self._ask_once("delete_if_version", args, silence_s=_WRITE_SILENCE_S)
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
        self._ask("forget", {"key": key, "offset": offset, "length": length}, silence_s=_GRACE_S)
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
        """Tell the transfer process something that needs no answer; lost when it is away.

        Never blocks: event loops call it.
        """
        with self._lock:
            if len(self._hints) >= _HINTS_MAX:
                return
            self._hints.append({"op": op, "quiet": True, **args})
            if self._hint_thread is None:
                self._hint_thread = threading.Thread(
                    target=self._send_hints, name="hints", daemon=True
                )
                self._hint_thread.start()
        self._has_hints.set()

    def _send_hints(self) -> None:
        wire: Wire | None = None
        generation = self._generation
        while not self._is_closed:
            self._has_hints.wait()
            self._has_hints.clear()
            while self._hints:
                hint = self._hints.popleft()
                try:
                    if wire is not None and generation != self._generation:
                        wire.close()
                        wire = None
                    if wire is None or wire.is_ended():
                        generation = self._generation
                        wire = Wire(self._connect())
                    wire.connection.settimeout(_GRACE_S)
                    wire.send(hint)
                except (OSError, WorkspaceError) as exc:
                    log.debug("transfer.hint_lost", extra={"reason": str(exc)})
                    if wire is not None:
                        wire.close()
                    wire = None
                    self._hints.clear()
        if wire is not None:
            wire.close()

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
        """Return what the transfer process tells of itself: "stats" or "health"."""
        return dict(self._ask(op, args or {}, silence_s=_GRACE_S).header)

    def reconnect(self) -> None:
        """Use new connections from now on; what is under way ends on the old ones."""
        with self._lock:
            self._generation += 1
        self._drop_idle()

    def close(self) -> None:
        """Hang up everywhere."""
        self._is_closed = True
        self._has_hints.set()
        self._drop_idle()

    # -- asking --------------------------------------------------------------------------------

    def _ask(self, op: str, args: Mapping[str, object], *, silence_s: float) -> Message:
        """Ask what may be asked twice."""
        deadline = time.monotonic() + silence_s
        while True:
            try:
                return self._ask_once(op, args, silence_s=silence_s)
            except ConnectionError as exc:
                if time.monotonic() >= deadline:
                    raise _unreached() from exc
                time.sleep(0.05)

    def _ask_once(
        self,
        op: str,
        args: Mapping[str, object],
        *,
        payload: bytes = b"",
        fd: int | None = None,
        silence_s: float,
    ) -> Message:
        """Ask, and return the answer.

        Raises:
            ConnectionError: There was none: the transfer process is gone.
        """
        generation = self._generation
        wire = self._take()
        try:
            wire.connection.settimeout(silence_s)
            wire.send({"op": op, **args}, payload, fd=fd)
            answer = wire.receive()
        except BaseException as exc:
            self._lost(wire)
            if isinstance(exc, TimeoutError):
                raise UnavailableError(
                    "the transfer process does not answer", kind="transfer.silent"
                ) from exc
            if isinstance(exc, OSError):
                raise ConnectionResetError(str(exc)) from exc
            raise
        if answer is None:
            self._lost(wire)
            raise ConnectionResetError("the transfer process went away")
        self._give_back(wire, generation)
        return _checked(answer)

    def _take(self) -> Wire:
        while True:
            with self._lock:
                wire = self._idle.pop() if self._idle else None
            if wire is None:
                return Wire(self._connect())
            # Looked at first: a conditional write must not get lost with a process long gone.
            if not wire.is_ended():
                return wire
            self._lost(wire)

    def _lost(self, wire: Wire) -> None:
        wire.close()
        with self._lock:
            self.counts.lost_connections += 1
        self._drop_idle()  # they lead to the same process

    def _drop_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for wire in idle:
            wire.close()

    def _give_back(self, wire: Wire, generation: int) -> None:
        with self._lock:
            if generation == self._generation and len(self._idle) < _IDLE_MAX:
                self._idle.append(wire)
                return
        wire.close()


def _checked(answer: Message) -> Message:
    absent, error = answer.header.get("absent"), answer.header.get("error")
    if isinstance(absent, str):
        raise KeyAbsentError(absent)
    if isinstance(error, dict):
        raise error_from_document(error)
    if "ok" not in answer.header:
        raise IntegrityError("the transfer process does not make sense", kind="protocol.malformed")
    return answer


def _memfd_of(parts: Sequence[bytes | memoryview]) -> int:
    fd = os.memfd_create("workspacefs-value", os.MFD_CLOEXEC)
    try:
        write_all(fd, parts)
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


def _unreached() -> UnavailableError:
    return UnavailableError(
        "the transfer process ends again and again; see the log of the daemons",
        kind="transfer.gone",
    )


def _nothing(key: str, offset: int, length: int) -> None:
    return None
