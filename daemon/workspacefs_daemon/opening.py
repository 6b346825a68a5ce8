"""From a spec to a mounted view: the session begun or resumed, its layers opened or recovered.

Runs before the event loop starts, so it may block. How a far store is reached: far.py.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final

from workspacefs.backend.retry import RetryPolicy
from workspacefs.errors import BusyError, IntegrityError, RefusedError
from workspacefs.layers.journal import Journal, settle
from workspacefs.layers.layer import Layer
from workspacefs.layers.rebase import rebase_rows
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry
from workspacefs.refs import RefRecord
from workspacefs.refs.policy import NO_POLICY
from workspacefs.signing.key_files import FileSigner
from workspacefs.statedir import StateDir
from workspacefs.workspace.commit import settle_ref
from workspacefs.workspace.leftovers import end_leftover
from workspacefs.workspace.local import LocalSession
from workspacefs.workspace.local_record import LocalRecord, new_saver
from workspacefs.workspace.open_merge import state_of
from workspacefs.workspace.pending import Pending, entries_in
from workspacefs.workspace.renaming import bring_copy
from workspacefs.workspace.saving import load_saved
from workspacefs.workspace.sessions import OpenSession, open_session, root_of, take_lease
from workspacefs.workspace.tree_rows import rows_between
from workspacefs.workspace.workspace import Workspace
from workspacefs.workspace.writers import writers_of
from workspacefs_daemon.far import FarStore
from workspacefs_daemon.identity import default_session_names, own_lease, owner_name
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.recovery import open_frozen_layer, open_layer
from workspacefs_daemon.spares import new_layer
from workspacefs_daemon.spec import SessionSpec

log = logging.getLogger(__name__)

_BATCH_ROWS: Final = 2000
_DRAWN_BYTES: Final = 3
_CACHE_BYTES: Final = 16 << 20
"""The kernel caches what is read; ours only bridges neighbouring small files in one frame."""


def open_mounted(spec: SessionSpec, environ: Mapping[str, str]) -> Mounted:
    """Open what `spec` asks for: a session, begun or resumed, or a read-only view.

    Args:
        spec: What to open.
        environ: What a new supervisor would be started with, if one is needed.

    Raises:
        WorkspaceError: As workspace, session and layers tell.
    """
    if spec.session_name is None and spec.policy.get("ephemeral") is True:
        # Its name is not given again: the usual one of this account must not be used up.
        usual = next(default_session_names(spec.state_dir))
        drawn = f"{usual}.{secrets.token_hex(_DRAWN_BYTES)}"
        spec = replace(spec, session_name=drawn)
    signer = None if spec.signing_key is None else FileSigner(spec.signing_key)
    if not spec.is_far:
        workspace = Workspace.open(spec.store_url, cache_bytes=_CACHE_BYTES, signer=signer)
        near = _open_view(spec, workspace, None) if spec.read_only else _open(spec, workspace, None)
        top = near.base_root.subtree.root
        if top is not None:
            # In memory from now on, so that whatever happens to the store, new files can be made
            # at the top. Is it damaged, that is told when it is looked at.
            workspace.store.near_node(top)
        return near
    far = FarStore(spec, environ)
    if spec.read_only:
        far.begin(None)
    else:
        far.begin(spec.session_name or next(default_session_names(spec.state_dir)))
    retry = RetryPolicy(deadline_s=spec.store_timeout_s)
    workspace = Workspace.open(far.backend, cache_bytes=_CACHE_BYTES, retry=retry, signer=signer)
    far.check_probe()  # before anything is written
    mounted = _open_view(spec, workspace, far) if spec.read_only else _open(spec, workspace, far)
    far.backend.forget_early()
    return mounted


def _open_view(spec: SessionSpec, workspace: Workspace, far: FarStore | None) -> Mounted:
    ref, commit = workspace.resolve(spec.at_rev or spec.branch)
    return Mounted(
        spec, workspace, name=f"@{spec.at_rev or spec.branch}",
        session_id=secrets.token_hex(8), root=commit.root, base=ref,
        local=None, record=None, session=None, layers=[], far=far,
    )  # fmt: skip


def _open(spec: SessionSpec, workspace: Workspace, far: FarStore | None) -> Mounted:
    state = StateDir(spec.state_dir)
    if (name := spec.session_name) is not None:
        local = LocalSession.lock(state, workspace.id, name)
        return _open_locked(spec, workspace, far, name, local)
    for name in default_session_names(spec.state_dir):
        try:
            local = LocalSession.lock(state, workspace.id, name)
            return _open_locked(spec, workspace, far, name, local)
        except BusyError as exc:
            if exc.kind != "session.mounted":
                raise
        except RefusedError as exc:
            if exc.kind != "session.deleted":
                raise
    raise AssertionError("there are names without end")


def _open_locked(
    spec: SessionSpec, workspace: Workspace, far: FarStore | None, name: str, local: LocalSession
) -> Mounted:
    """Open a session in its directory, which is closed if that fails."""
    try:
        if end_leftover(workspace, local, name, ended_by=owner_name()):
            raise RefusedError(
                f"session {name} was ephemeral and its process was killed, so it is deleted with "
                "what was not committed, as it would have been by umount; choose another name",
                kind="session.deleted",
                session=name,
            )
        now_ns, saver = workspace.clock.now_ns(), new_saver()
        lease = own_lease(saver, now_ns=now_ns)
        session, is_new = open_session(
            workspace, name, branch=spec.branch, owner=owner_name(), lease=lease,
            policy=NO_POLICY.changed(spec.policy),
        )  # fmt: skip
        if not is_new:
            bring_copy(workspace, StateDir(spec.state_dir), local, session.session.session_id)
        found = _find_record(local, session, name)
        if found is not None:
            lease = own_lease(found.saver, now_ns=now_ns)
        if not is_new:
            session = take_lease(workspace, session, lease, steals=spec.steals, changes=spec.policy)
        record = found or _begin_record(workspace, local, session, saver)
        local.check_layers(record)
        layers = _open_layers(local, record)
        root = _root_of(workspace, session, record)
        if record.sealing is not None:
            if not workspace.backend.is_local:
                # The transfer process outlived the one that was committing, with its requests.
                session = settle_ref(workspace, session, record.sealing, moved_by=owner_name())
            record, root = _finish_commit(workspace, local, session, record, root, layers)
        return Mounted(
            spec, workspace, name=name, session_id=session.session.session_id, root=root,
            base=record.base, local=local, record=record, session=session, layers=layers, far=far,
            is_as_stored=found is None,
        )  # fmt: skip
    except BaseException:
        local.close()
        raise


def _open_layers(local: LocalSession, record: LocalRecord) -> list[tuple[Layer, Journal | None]]:
    *frozen, live = record.layers
    layers: list[tuple[Layer, Journal | None]] = [
        (open_frozen_layer(local.layer_directory(place), place.number), None) for place in frozen
    ]
    return [*layers, open_layer(local.layer_directory(live), live.number)]


def _root_of(workspace: Workspace, session: OpenSession, record: LocalRecord) -> Entry:
    head = session.head
    if record.base is not None and record.base == head:
        return session.record.commit().root  # the ref holds a copy of the commit
    return root_of(
        workspace, record.base, created_ns=session.session.created_ns,
        uid=os.geteuid(), gid=os.getegid(),
    )  # fmt: skip


def _find_record(local: LocalSession, session: OpenSession, name: str) -> LocalRecord | None:
    """Return what this machine has of a session, or None."""
    found = local.load()
    if found is not None and found.session_id != session.session.session_id:
        kept = local.set_aside(found.session_id)
        log.warning("session.set_aside", extra={"session": name, "kept": str(kept)})
        found = None
    if found is None:
        for kept in local.pool.disown(local.owner):
            log.warning("session.set_aside", extra={"session": name, "kept": str(kept)})
        return None
    base_id = None if found.base is None else found.base.id
    saved = session.session.saved
    is_ours = (
        saved is None
        or saved.saver == found.saver
        or saved.commit_id == found.begun_from  # nobody has saved since
    )
    if session.record.commit_id in (base_id, found.sealing) and is_ours:
        return found
    raise RefusedError(
        f"session {name} has gone on in another place"
        f"{'' if saved is None else ' (' + saved.host + ')'}: it is at {_short(session.record)} "
        f"there, at {base_id.hex()[:12] if base_id else 'nothing'} here. The work that is not "
        f"committed here, kept by {local.directory}, does not build on that. Mount with another "
        "--session",
        kind="session.diverged",
        session=name,
    )


def _begin_record(
    workspace: Workspace, local: LocalSession, session: OpenSession, saver: str
) -> LocalRecord:
    """Begin with what the store has of a session: its head, and the work that was saved on top."""
    found = load_saved(workspace, session)
    merge = None
    with local.pool.holding():
        places = [new_layer(local)]
        if found is not None:
            head = session.head
            head_commit = None if head is None else session.record.commit()
            merge = state_of(*found, head, head_commit, workspace.store)
            base = root_of(
                workspace, head, created_ns=session.session.created_ns,
                uid=os.geteuid(), gid=os.getegid(),
            )  # fmt: skip
            saved = open_layer(local.layer_directory(places[0]), places[0].number)[0]
            _fill(saved, rows_between(base, found[1].root, workspace.store))
            _fill(saved, _writer_rows(found[1], workspace))
            settle(saved)
            saved.drop_ballast()
            saved.close()
            places.append(new_layer(local))
        record = LocalRecord(
            session_id=session.session.session_id,
            base=session.head,
            layers=tuple(places),
            saver=saver,
            begun_from=session.session.saved_commit,
            merge=merge,
        )
        local.save(record)
    return record


def _writer_rows(work: Commit, workspace: Workspace) -> Iterator[tuple[bytes, bytes]]:
    try:
        return writers_of(work, workspace.store).rows()
    except IntegrityError as exc:
        # The work itself is whole; it goes on as of nobody.
        log.warning("session.writers_lost", extra={"kind": exc.kind, "reason": str(exc)})
        return iter(())


def _fill(layer: Layer, rows: Iterator[tuple[bytes, bytes]]) -> None:
    while batch := list(islice(rows, _BATCH_ROWS)):
        layer.rows.commit(batch)


def _short(record: RefRecord) -> str:
    return record.commit_id.hex()[:12] if record.commit_id else "nothing"


def _finish_commit(
    workspace: Workspace,
    local: LocalSession,
    session: OpenSession,
    record: LocalRecord,
    root: Entry,
    layers: list[tuple[Layer, Journal | None]],
) -> tuple[LocalRecord, Entry]:
    """Finish, or give up, the commit that a process was making when it died."""
    if session.record.commit_id != record.sealing:
        record = replace(record, sealing=None, sealed_layers=())
        local.save(record)
        return record, root
    head = session.head
    assert head is not None
    new_root = workspace.store.load_commit(head).root
    sealed = [pair for pair in layers if pair[0].number in record.sealed_layers]
    snapshots = [layer.snapshot() for layer, _ in reversed(sealed)]
    numbered = {layer.number: layer for layer, _ in sealed}
    entries = entries_in(new_root, Pending(root, snapshots, numbered, workspace.store))
    for snapshot in snapshots:
        snapshot.close()
    for layer, journal in layers:
        if layer.number not in numbered:
            for _ in rebase_rows(layer, entries.get, numbered):
                pass
            # Durable before the record says that the sealed layers are gone.
            assert journal is not None  # only the live layer is above those
            pending = journal.prepare()
            journal.write(pending)
            layer.bury(pending.doomed)
    gone = [place for place in record.layers if place.number in numbered]
    record = replace(record.without(numbered), base=head, merge=None)
    local.save(record)
    for pair in sealed:
        layers.remove(pair)
        pair[0].close()
    local.pool.release(gone)
    log.info("commit.finished", extra={"commit": head.id.hex()})
    return record, new_root
