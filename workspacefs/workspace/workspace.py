"""One workspace: its store, its parameters, and what revisions mean in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Protocol

from workspacefs.backend.contract import Backend
from workspacefs.backend.open import open_backend
from workspacefs.backend.probe import check_conditional_writes, create_value
from workspacefs.backend.retry import RetryPolicy
from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.clock import Clock, SystemClock
from workspacefs.errors import BusyError, KeyAbsentError, NotFoundError, UsageError
from workspacefs.objects.commits import Commit, Signature
from workspacefs.objects.refs import Ref
from workspacefs.packs.reader import ObjectStore
from workspacefs.packs.writer import Known, ObjectWriter
from workspacefs.refs import RefKind, Refs
from workspacefs.trees.parameters import TreeParameters
from workspacefs.workspace.file_ids import FileIdAllocator, allocate_epoch
from workspacefs.workspace.history import iter_history
from workspacefs.workspace.manifest import (
    MANIFEST_KEY,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from workspacefs.workspace.near import near_names

DEFAULT_BRANCH: Final = "main"
CACHE_BYTES: Final = 64 << 20
_STEPS: Final = re.compile(r"(?P<name>.*?)(?P<steps>(?:~[0-9]{0,9}|\^)*)", re.DOTALL)
_ID_PREFIX: Final = re.compile(r"[0-9a-f]{6,64}")


class Signer(Protocol):
    """Signs commits."""

    def sign(self, body: bytes) -> Signature:
        """Return the signature of the body that a commit has without one.

        Raises:
            WorkspaceError: It cannot; then the commit is not made.
        """
        ...


class Workspace:
    """An open workspace. Thread-safe; must not be used across a fork. Use `create` or `open`."""

    def __init__(
        self,
        backend: Backend,
        manifest: Manifest,
        clock: Clock,
        *,
        cache_bytes: int = CACHE_BYTES,
        retry: RetryPolicy | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.signer = signer
        """Signs what becomes part of a history; None: nobody does."""
        self.backend = backend
        self.manifest = manifest
        self.clock = clock
        self.refs = Refs(backend, clock, retry=retry)
        self.store = ObjectStore(backend, cache_bytes=cache_bytes, decoded_cache_bytes=cache_bytes)

    @classmethod
    def create(cls, backend: Backend | str, *, clock: Clock | None = None) -> Workspace:
        """Make a new, empty workspace; it survives power loss on return.

        Raises:
            BusyError: There is one already (kind "workspace.exists").
            RefusedError: The store ignores conditions on writes (kind "store.no_conditions").
            UnavailableError: The store does not answer.
        """
        backend = open_backend(backend) if isinstance(backend, str) else backend
        clock = clock or SystemClock()
        if not backend.is_local:
            check_conditional_writes(backend)
        manifest = Manifest.new(created_ns=clock.now_ns())
        if not create_value(backend, MANIFEST_KEY, encode_manifest(manifest)):
            raise BusyError(
                f"there is a workspace at {backend.url} already; import into it or mount it",
                kind="workspace.exists",
                url=backend.url,
            )
        return cls(backend, manifest, clock)

    @classmethod
    def open(
        cls,
        backend: Backend | str,
        *,
        clock: Clock | None = None,
        cache_bytes: int = CACHE_BYTES,
        retry: RetryPolicy | None = None,
        signer: Signer | None = None,
    ) -> Workspace:
        """Open a workspace that exists.

        Args:
            backend: Where it is.
            clock: For what is written; default: the system's.
            cache_bytes: Memory for frames, and again as much for decoded nodes, at most.
            retry: How long the store is asked what became of a ref whose answer was lost.
            signer: Signs the commits that are made; None: they are not signed.

        Raises:
            NotFoundError: There is none (kind "workspace.absent").
            RefusedError: It is of a newer format (kind "format.newer").
            IntegrityError: Its description is damaged.
        """
        backend = open_backend(backend) if isinstance(backend, str) else backend
        try:
            value = backend.get(MANIFEST_KEY)
        except KeyAbsentError as exc:
            raise NotFoundError(
                f"there is no workspace at {backend.url}; check the URL, or make one with "
                f"'workspacefs init {backend.url}'",
                kind="workspace.absent",
                url=backend.url,
            ) from exc
        manifest = decode_manifest(value, url=backend.url)
        return cls(
            backend,
            manifest,
            clock or SystemClock(),
            cache_bytes=cache_bytes,
            retry=retry,
            signer=signer,
        )

    @property
    def id(self) -> str:
        """The workspace's identity, 32 hex digits."""
        return self.manifest.workspace_id

    @property
    def url(self) -> str:
        """Canonical URL of the store."""
        return self.backend.url

    @property
    def tree_params(self) -> TreeParameters:
        """Shape of its trees."""
        return self.manifest.tree

    @property
    def chunk_params(self) -> ChunkParameters:
        """Where its files are cut."""
        return self.manifest.chunker

    def new_writer(self, *, known: Known | None = None, is_small: bool = False) -> ObjectWriter:
        """Return a writer for the objects of one import or commit.

        Args:
            known: Where objects lie that are stored already.
            is_small: Few objects will come: starting threads would take longer than the work.
        """
        return ObjectWriter(self.backend, known=known, threads=0 if is_small else 2)

    def allocate_epoch(self) -> int:
        """Claim an epoch of file ids for ever."""
        return allocate_epoch(self.backend, self.clock)

    def new_file_ids(self, *, in_background: bool = False) -> FileIdAllocator:
        """Return an allocator of fresh file ids; it claims an epoch when first asked.

        Args:
            in_background: As for FileIdAllocator, which must be settled then.
        """
        return FileIdAllocator(self.backend, self.clock, in_background=in_background)

    def resolve(self, rev: str) -> tuple[Ref, Commit]:
        """Return the commit that `rev` names.

        Args:
            rev: A branch, tag, session, or at least 6 digits of a commit id (looked for in this
                order), with any number of ~N (N-th first parent) and ^ (the same as ~1) behind.

        Raises:
            NotFoundError: It names nothing; the message lists near names.
            UsageError: The digits are the beginning of several ids.
        """
        match = _STEPS.fullmatch(rev)
        assert match is not None
        ref, commit = self._resolve_name(match["name"], rev)
        steps = re.findall(r"~[0-9]{0,9}|\^", match["steps"])
        for done in range(sum(int(step[1:] or 1) for step in steps)):
            if not commit.parents:
                commits = "1 commit" if done == 0 else f"{done + 1:,} commits"
                raise NotFoundError(
                    f"{rev} goes further back than the history: {match['name']} has {commits}",
                    kind="rev.absent",
                    rev=rev,
                )
            ref = commit.parents[0]
            commit = self.store.load_commit(ref)
        return ref, commit

    def iter_heads(self) -> Iterator[tuple[RefKind, str, Ref, Commit]]:
        """Yield every ref that has a commit: branches, then tags, then sessions."""
        for kind in RefKind:
            for name, record in self.refs.iter(kind):
                ref = record.ref()
                if ref is not None:
                    yield kind, name, ref, record.commit()

    def _resolve_name(self, name: str, rev: str) -> tuple[Ref, Commit]:
        for kind in RefKind:
            try:
                found = self.refs.find_live(kind, name)
            except UsageError:
                break  # no ref can have such a name, so none does
            if found is not None:
                ref = found[0].ref()
                if ref is None:
                    raise NotFoundError(
                        f"{kind.value} {name} has no commit yet", kind="rev.absent", rev=rev
                    )
                return ref, found[0].commit()
        if _ID_PREFIX.fullmatch(name.lower()):
            return self._resolve_id(name.lower())
        raise self._absent(name)

    def _resolve_id(self, prefix: str) -> tuple[Ref, Commit]:
        heads = [(ref, commit) for _, _, ref, commit in self.iter_heads()]
        found: dict[bytes, tuple[Ref, Commit]] = {}
        for ref, commit in iter_history(heads, self.store):
            if ref.id.hex().startswith(prefix):
                found[ref.id] = (ref, commit)
                if len(prefix) == 64:
                    break
        if len(found) == 1:
            return next(iter(found.values()))
        if not found:
            raise self._absent(prefix)
        shown = ", ".join(sorted(commit_id.hex()[: len(prefix) + 6] for commit_id in found))
        raise UsageError(
            f"{prefix} is the beginning of {len(found)} commit ids ({shown}); give more digits",
            kind="rev.ambiguous",
        )

    def _absent(self, name: str) -> NotFoundError:
        names = [other for kind in RefKind for other in self.refs.iter_names(kind)]
        near = near_names(name, names)
        if near:
            hint = f"did you mean {', '.join(near)}?"
        elif names:
            hint = f"there are {', '.join(sorted(set(names))[:8])}"
        else:
            hint = "the workspace has no commits yet"
        return NotFoundError(
            f"no branch, tag, session or commit is called {name}; {hint}",
            kind="rev.absent",
            rev=name,
        )
