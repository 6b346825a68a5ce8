"""What operations need besides names and bytes: time, new file ids, and leave to write."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterable
from typing import Final

from workspacefs.clock import Clock
from workspacefs.ids import EPOCH_COUNTER_BITS, FileId
from workspacefs.layers.layer import Layer
from workspacefs.workspace.local_record import IdMark, IdRange
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import NotResident
from workspacefs_daemon.vfs.writers import Writers

_RESERVED_KEY: Final = b"Mfile-ids"
_RESERVED = struct.Struct(">QQQQ")
"""Epoch, mark, end of what is ours of the epoch, and whose: a session id. A fork stands on layers
with its parent's marks."""
_NOBODYS = struct.Struct(">QQQ")
"""As layers of earlier releases have it."""
_WHOLE_EPOCH = struct.Struct(">QQ")
"""As layers of earlier releases have it: the end is that of the epoch."""
_EPOCH_END: Final = 1 << EPOCH_COUNTER_BITS
_RESERVE_STEP: Final = 4096
_LOW_IDS: Final = 1 << 18
_GIVEN_SHARE: Final = 16
_GIVEN_MAX: Final = 1 << 20


class FileIds:
    """Hands out file ids that no crash makes it hand out again.

    The layer holds a mark that is always past the ids in use; it is moved 4096 at a time, so at
    most that many are lost by a crash.
    """

    def __init__(
        self,
        layer: Layer,
        allocate_epoch: Callable[[], int],
        *,
        owner: int = 0,
        older: Iterable[Layer] = (),
        own: IdRange | None = None,
        given: IdMark | None = None,
    ) -> None:
        """Go on where the layer's mark is.

        Args:
            layer: The live one.
            allocate_epoch: Claims an epoch, blocking.
            owner: Id of the session.
            older: Layers beneath, the newest first. Whoever put this one on top may have died
                before the mark was in it.
            own: Ids that a fork was begun with. They count while no layer has a mark.
            given: Up to here ids are in use or belong to forks: the mark in the layer may not have
                outlived a power loss.
        """
        self._layer = layer
        self._allocate_epoch = allocate_epoch
        self._owner = owner
        mark = layer.rows.get(_RESERVED_KEY)
        is_own = mark is not None
        if mark is None:
            marks = (one.rows.get(_RESERVED_KEY) for one in older)
            mark = next((one for one in marks if one and self._is_ours(one)), None)
        if mark is not None:
            self._epoch, self._limit, self._end = _unpacked(mark)
        elif own is not None:
            self._epoch, self._limit, self._end = own
        else:
            self._epoch = self._limit = self._end = 0
        if given is not None and given.epoch == self._epoch:
            self._limit = max(self._limit, given.number)
        elif given is not None and not is_own:
            # Nobody knows which is older, what a layer beneath says or what was given.
            self._epoch = self._limit = self._end = 0
        if mark is not None and not is_own:
            self.move_to(layer)  # those beneath go with the next commit
        self._next = self._block_end = self._limit
        self._spare_epoch: int | None = None

    def next_id(self) -> FileId:
        """Return an id that was never used in this workspace."""
        if self._next == self._block_end:
            self._reserve()
        number = self._next
        self._next += 1
        return FileId(self._epoch << EPOCH_COUNTER_BITS | number)

    def write_mark(self, layer: Layer) -> None:
        """Write the mark, as it is now, into a layer that will be the live one."""
        layer.rows.commit([(_RESERVED_KEY, self._packed(self._limit))])

    def move_to(self, layer: Layer) -> None:
        """Keep the mark in a new live layer from now on."""
        self.write_mark(layer)
        self._layer = layer

    @property
    def mark(self) -> IdMark:
        """Past everything in use or given away."""
        return IdMark(self._epoch, self._limit)

    def give(self) -> IdRange | None:
        """Give some ids away for ever, to a fork; None: there are not enough. The caller makes
        `mark` durable before anyone uses them.
        """
        count = min((self._end - self._limit) // _GIVEN_SHARE, _GIVEN_MAX)
        if count < _RESERVE_STEP:
            return None
        start = self._limit
        self._layer.rows.commit([(_RESERVED_KEY, self._packed(start + count))])
        self._limit = start + count
        return IdRange(self._epoch, start, start + count)

    @property
    def needs_spare(self) -> bool:
        """Whether an epoch should be claimed before it is needed: a store may go away."""
        return self._end - self._limit < _LOW_IDS and self._spare_epoch is None

    def claim_spare(self) -> None:
        """Claim an epoch: one small write to the store for 16 million files; on a thread.

        Raises:
            UnavailableError: The store does not answer.
        """
        # Two at once are no harm: the epoch that is forgotten stays unused for ever.
        self._spare_epoch = self._allocate_epoch()

    def _reserve(self) -> None:
        epoch, start, end = self._epoch, self._limit, self._end
        if start >= end:
            if self._spare_epoch is None:
                raise NotResident(self.claim_spare)
            epoch, start, end = self._spare_epoch, 0, _EPOCH_END
            self._spare_epoch = None
        limit = min(start + _RESERVE_STEP, end)
        self._layer.rows.commit([(_RESERVED_KEY, _RESERVED.pack(epoch, limit, end, self._owner))])
        self._epoch, self._limit, self._end = epoch, limit, end
        self._next, self._block_end = start, limit

    def _packed(self, limit: int) -> bytes:
        return _RESERVED.pack(self._epoch, limit, self._end, self._owner)

    def _is_ours(self, mark: bytes) -> bool:
        return len(mark) == _RESERVED.size and _RESERVED.unpack(mark)[3] == self._owner


def _unpacked(stored: bytes) -> tuple[int, int, int]:
    if len(stored) == _WHOLE_EPOCH.size:
        epoch, limit = _WHOLE_EPOCH.unpack(stored)
        return epoch, limit, _EPOCH_END if epoch else 0
    if len(stored) == _NOBODYS.size:
        epoch, limit, end = _NOBODYS.unpack(stored)
        return epoch, limit, end
    epoch, limit, end, _ = _RESERVED.unpack(stored)
    return epoch, limit, end


class Services:
    """Bundles them, and finds the live layer that changes go to."""

    def __init__(
        self,
        *,
        clock: Clock,
        file_ids: FileIds | None,
        live: Layer | None,
        writers: Writers | None = None,
    ) -> None:
        self.now_ns = clock.now_ns
        self.live = live
        self.writers = writers
        """Notes which processes change what; None: nobody does."""
        self._file_ids = file_ids
        self._held: Callable[[], object] | None = None
        self.announcers: set[int] = set()
        """Threads of ours that set attributes in the mount to what they are; see watchers.py."""

    def hold(self, wait: Callable[[], object]) -> None:
        """Have whatever would change something wait, until go_on().

        Args:
            wait: Blocks until then; called on threads.
        """
        if self.live is not None:
            self._held, self.live = wait, None

    def go_on(self, live: Layer | None) -> None:
        """Change things again, in `live`."""
        self._held, self.live = None, live

    def writable(self) -> Layer:
        """Return the live layer.

        Raises:
            Refusal: EROFS: the view is read-only.
            NotResident: Nothing may be changed at this moment.
        """
        if self.live is None:
            if self._held is not None:
                raise NotResident(self._held)
            raise Refusal(errno.EROFS)
        return self.live

    def next_file_id(self) -> FileId:
        """Return a fresh file id."""
        assert self._file_ids is not None  # writable() has been asked
        return self._file_ids.next_id()
