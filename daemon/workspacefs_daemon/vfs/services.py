"""What operations need besides names and bytes: time, new file ids, and leave to write."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Final

from workspacefs.clock import Clock
from workspacefs.ids import EPOCH_COUNTER_BITS, FileId
from workspacefs.layers.layer import Layer
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import NotResident

_RESERVED_KEY: Final = b"Mfile-ids"
_RESERVED = struct.Struct(">QQ")
_RESERVE_STEP: Final = 4096
_LOW_MARK: Final = 3 << (EPOCH_COUNTER_BITS - 2)


class FileIds:
    """Hands out file ids that no crash makes it hand out again.

    The layer holds a mark that is always past the ids in use; it is moved 4096 at a time, so at
    most that many of an epoch's 2**24 are lost by a crash.
    """

    def __init__(self, layer: Layer, allocate_epoch: Callable[[], int]) -> None:
        self._layer = layer
        self._allocate_epoch = allocate_epoch
        stored = layer.rows.get(_RESERVED_KEY)
        self._epoch, self._limit = _RESERVED.unpack(stored) if stored else (0, 0)
        self._next = self._limit
        self._spare_epoch: int | None = None

    def next_id(self) -> FileId:
        """Return an id that was never used in this workspace."""
        if self._next == self._limit:
            self._reserve()
        number = self._next
        self._next += 1
        return FileId(self._epoch << EPOCH_COUNTER_BITS | number)

    def move_to(self, layer: Layer) -> None:
        """Keep the mark in a new live layer from now on."""
        layer.rows.commit([(_RESERVED_KEY, _RESERVED.pack(self._epoch, self._limit))])
        self._layer = layer

    @property
    def needs_spare(self) -> bool:
        """Whether an epoch should be claimed before it is needed: a store may go away."""
        is_low = self._epoch == 0 or self._limit >= _LOW_MARK
        return is_low and self._spare_epoch is None

    def claim_spare(self) -> None:
        """Claim an epoch: one small write to the store for 16 million files; on a thread.

        Raises:
            UnavailableError: The store does not answer.
        """
        # Two at once are no harm: the epoch that is forgotten stays unused for ever.
        self._spare_epoch = self._allocate_epoch()

    def _reserve(self) -> None:
        epoch, limit = self._epoch, self._limit
        if epoch == 0 or limit >= 1 << EPOCH_COUNTER_BITS:
            if self._spare_epoch is None:
                raise NotResident(self.claim_spare)
            epoch, limit = self._spare_epoch, 0
            self._spare_epoch = None
        mark = _RESERVED.pack(epoch, limit + _RESERVE_STEP)
        self._layer.rows.commit([(_RESERVED_KEY, mark)])
        self._epoch, self._next, self._limit = epoch, limit, limit + _RESERVE_STEP


class Services:
    """Bundles them, and finds the live layer that changes go to."""

    def __init__(self, *, clock: Clock, file_ids: FileIds | None, live: Layer | None) -> None:
        self.now_ns = clock.now_ns
        self.live = live
        self._file_ids = file_ids

    def writable(self) -> Layer:
        """Return the live layer.

        Raises:
            Refusal: EROFS: the view is read-only.
        """
        if self.live is None:
            raise Refusal(errno.EROFS)
        return self.live

    def next_file_id(self) -> FileId:
        """Return a fresh file id."""
        assert self._file_ids is not None  # writable() has been asked
        return self._file_ids.next_id()
