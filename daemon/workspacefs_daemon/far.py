"""A far store as a session process sees it: opened in few round trips, read ahead of need.

Everything here blocks and runs on threads, or before the event loop starts.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from workspacefs.backend.probe import check_conditional_writes
from workspacefs.cache.block_file import BLOCK_BYTES, block_span
from workspacefs.cache.directory import CacheDirectory
from workspacefs.cache.read_ahead import request_end
from workspacefs.errors import KeyAbsentError, WorkspaceError
from workspacefs.objects.entry import Subtree
from workspacefs.objects.refs import ChunkRef, Ref
from workspacefs.packs.table import pack_key
from workspacefs.refs import RefKind
from workspacefs.refs.record import decode_ref
from workspacefs.refs.swap import ref_key
from workspacefs.statedir import StateDir
from workspacefs.transfer.client import TransferBackend
from workspacefs.workspace.first_touch import FirstTouches, decode_hints, hint_key
from workspacefs.workspace.manifest import MANIFEST_KEY
from workspacefs_daemon.link import TransferLink
from workspacefs_daemon.spec import SessionSpec

log = logging.getLogger(__name__)

_METADATA_FILES_MAX: Final = 1_200_000
"""Trees with more names than this are not fetched whole: names come as they are looked for."""
_READ_ON_BYTES: Final = 24 << 20
"""How much of a file that is read in order is on its way ahead of the reader."""
_FILES_READ_MAX: Final = 64


class FarStore:
    """The store of one mount, and what is fetched of it before anyone asks."""

    def __init__(self, spec: SessionSpec, environ: Mapping[str, str]) -> None:
        """Reach the store of `spec`; `environ` is what a new supervisor would be started with."""
        self._spec = spec
        self._state = StateDir(spec.state_dir)
        self.link = TransferLink(spec, environ)
        cache = Path(self._state.cache_dir)
        self.backend = TransferBackend(
            spec.store_url,
            self.link.connect,
            CacheDirectory(cache, spec.store_url, is_writable=False),
            wait_s=spec.store_timeout_s,
            reads_ahead=spec.prefetch == "adaptive",
        )
        self._touches = FirstTouches()
        self._read_on_until: dict[int, int] = {}
        """Chunks that were asked for ahead, by identity of the file's sequence of chunks. Only a
        hint: a stale one costs a stretch that is not read ahead, or one that is asked for twice."""
        self._hinted: Ref | None = None
        """Commit whose hints we shall store: there were none."""
        self._probe: Future[None] | None = None

    def begin(self, session_name: str | None) -> None:
        """Ask for all that opening a session reads, at once, and whether the store can be used.

        Args:
            session_name: The session that will be opened; None: a view without one.
        """
        keys = [MANIFEST_KEY]
        if session_name is not None:
            keys.append(ref_key(RefKind.SESSION, session_name))
        branch_key = ref_key(RefKind.BRANCH, self._spec.branch)
        self.backend.read_early([*keys, branch_key], on_value=self._fetch_root)
        self.backend.on_far = self._touches.note
        if not self._spec.read_only and not self._probed_file().exists():
            probing = ThreadPoolExecutor(1, thread_name_prefix="probe")
            self._probe = probing.submit(check_conditional_writes, self.backend)
            probing.shutdown(wait=False)
        if self._spec.cache_limit_bytes is not None:
            self.backend.hint("configure", {"cache_limit_bytes": self._spec.cache_limit_bytes})

    def check_probe(self) -> None:
        """Wait for what `begin` found out about the store.

        Raises:
            RefusedError: It ignores the conditions of writes: work could get lost in it.
        """
        if self._probe is not None:
            self._probe.result()
            self._probe = None
            path = self._probed_file()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            path.touch()

    def _probed_file(self) -> Path:
        directory = CacheDirectory(Path(), self.backend.url, is_writable=False).store_dir.name
        return Path(self._state.root) / "probed" / directory

    def _fetch_root(self, key: str, value: bytes) -> None:
        """Fetch the root directory of a ref that was read: `ls` comes next."""
        if not key.startswith("refs/"):
            return
        record = decode_ref(value, key=key)
        if record.commit_id is not None:
            self._prefetch_node(record.commit().root.subtree)

    def _prefetch_node(self, subtree: Subtree) -> None:
        locator = None if subtree.root is None else subtree.root.locator
        if locator is not None:
            self.backend.prefetch(
                [(pack_key(locator.pack_id), locator.frame_offset, locator.frame_bytes)]
            )

    def read_ahead(self, base: Ref | None, root: Subtree) -> None:
        """Have fetched what will be wanted of a commit that was just mounted; takes a round trip.

        Does as little as the mount's --prefetch says.
        """
        if base is None or root.root is None or self._spec.prefetch == "none":
            return
        names = root.totals.files + root.totals.dirs
        locator = root.root.locator
        if names <= _METADATA_FILES_MAX and locator is not None:
            self.backend.hint("prefetch_tree", {"id": root.root.id, "locator": list(locator)})
        if self._spec.prefetch != "adaptive":
            return
        try:
            self.backend.prefetch(decode_hints(self.backend.get(hint_key(base))))
        except KeyAbsentError:
            self._hinted = base
        except WorkspaceError as exc:
            log.info("hints.not_read", extra={"kind": exc.kind, "reason": str(exc)})

    def read_on(self, refs: Sequence[ChunkRef], index: int) -> None:
        """Have fetched what follows in a file that is read in order; on the event loop.

        The cache reads ahead within a pack; where a file goes on in another one only we know.
        """
        asked = self._read_on_until.get(id(refs), 0)
        if index >= asked:
            asked = index + 1
        # In long stretches: what is asked for chunk by chunk would be fetched in small requests.
        if sum(ref.size_bytes for ref in refs[index + 1 : asked]) > _READ_ON_BYTES // 2:
            return
        ahead_bytes = 0
        ranges: list[tuple[str, int, int]] = []
        for ref in refs[asked:]:
            if ref.locator is None or ahead_bytes >= _READ_ON_BYTES:
                break
            pack_id, offset, length = ref.locator[:3]
            ahead_bytes += length
            asked += 1
            key = pack_key(pack_id)
            if ranges and ranges[-1][0] == key and ranges[-1][1] + ranges[-1][2] == offset:
                ranges[-1] = (key, ranges[-1][1], ranges[-1][2] + length)
            else:
                ranges.append((key, offset, length))
        if len(self._read_on_until) >= _FILES_READ_MAX:
            self._read_on_until.clear()
        self._read_on_until[id(refs)] = asked
        self.backend.prefetch([_to_request_end(one) for one in ranges], is_ahead=True)

    def renew(self, store_environ: Mapping[str, str]) -> None:
        """Reach the store with other keys from now on; blocks until it has answered to them.

        Raises:
            UnavailableError: It does not; the old keys are no more used all the same.
        """
        self.link.use(store_environ)
        self.backend.reconnect()
        self.backend.get(MANIFEST_KEY)

    def document(self) -> dict[str, object]:
        """Return what this mount asked for: see ClientCounts."""
        lost = self.backend.lost_connections
        return {**dataclasses.asdict(self.backend.counts), "lost_connections": lost}

    def store_hints(self) -> None:
        """Store in what order the commit was read, unless somebody has; once."""
        commit, self._hinted = self._hinted, None
        value = self._touches.encode()
        if commit is None or value is None:
            return
        try:
            self.backend.put_if_absent(hint_key(commit), value)
        except WorkspaceError as exc:
            # Nobody is harmed, and who may not write here shall work all the same.
            log.info("hints.not_stored", extra={"kind": exc.kind, "reason": str(exc)})


def _to_request_end(one: tuple[str, int, int]) -> tuple[str, int, int]:
    """Return a range made longer, to where the last request that it needs ends anyway."""
    key, offset, length = one
    _, end = block_span(offset, length)
    return key, offset, request_end(end - 1) * BLOCK_BYTES - offset
