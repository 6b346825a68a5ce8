"""From a spec to a mounted view: the session begun or resumed, its layers opened or recovered.

Runs before the event loop starts, so it may block. How a far store is reached: far.py.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from workspacefs.backend.retry import RetryPolicy
from workspacefs.errors import BusyError, RefusedError
from workspacefs.layers.journal import Journal
from workspacefs.layers.layer import Layer
from workspacefs.layers.rebase import rebase_rows
from workspacefs.objects.entry import Entry
from workspacefs.refs import RefRecord
from workspacefs.workspace.commit import settle_ref
from workspacefs.workspace.local import LocalRecord, LocalSession
from workspacefs.workspace.pending import Pending, entries_in
from workspacefs.workspace.sessions import OpenSession, open_session, root_of
from workspacefs.workspace.workspace import Workspace
from workspacefs_daemon.far import FarStore
from workspacefs_daemon.identity import default_session_names, owner_name
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.recovery import begin_layer, open_layer
from workspacefs_daemon.spec import SessionSpec

log = logging.getLogger(__name__)

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
    if not spec.is_far:
        workspace = Workspace.open(spec.store_url, cache_bytes=_CACHE_BYTES)
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
    workspace = Workspace.open(far.backend, cache_bytes=_CACHE_BYTES, retry=retry)
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
    name, local = _lock_session(spec, workspace)
    try:
        session, _ = open_session(workspace, name, branch=spec.branch, owner=owner_name())
        record = _local_record(local, session, name)
        local.sweep_layers(record)
        local.check_layers(record)
        layers = [open_layer(local.layer_directory(n), n) for n in record.layers]
        root = _root_of(workspace, session, record)
        if record.sealing is not None:
            if not workspace.backend.is_local:
                # The transfer process outlived the one that was committing, with its requests.
                session = settle_ref(workspace, session, record.sealing, moved_by=owner_name())
            record, root = _finish_commit(workspace, local, session, record, root, layers)
        return Mounted(
            spec, workspace, name=name, session_id=session.session.session_id, root=root,
            base=record.base, local=local, record=record, session=session, layers=layers, far=far,
        )  # fmt: skip
    except BaseException:
        local.close()
        raise


def _root_of(workspace: Workspace, session: OpenSession, record: LocalRecord) -> Entry:
    head = session.head
    if record.base is not None and record.base == head:
        return session.record.commit().root  # the ref holds a copy of the commit
    return root_of(
        workspace, record.base, created_ns=session.session.created_ns,
        uid=os.geteuid(), gid=os.getegid(),
    )  # fmt: skip


def _lock_session(spec: SessionSpec, workspace: Workspace) -> tuple[str, LocalSession]:
    sessions_dir = Path(spec.state_dir) / "sessions"
    if spec.session_name is not None:
        return spec.session_name, LocalSession.lock(sessions_dir, workspace.id, spec.session_name)
    return _first_free(default_session_names(spec.state_dir), sessions_dir, workspace.id)


def _first_free(
    names: Iterator[str], sessions_dir: Path, workspace_id: str
) -> tuple[str, LocalSession]:
    while True:
        name = next(names)
        try:
            return name, LocalSession.lock(sessions_dir, workspace_id, name)
        except BusyError:
            continue


def _local_record(local: LocalSession, session: OpenSession, name: str) -> LocalRecord:
    """Return what this machine has of a session; begin with the session's head if nothing."""
    found = local.load()
    head = session.head
    if found is not None and found.session_id != session.session.session_id:
        kept = local.set_aside(found.session_id)
        log.warning("session.set_aside", extra={"session": name, "kept": str(kept)})
        found = None
    if found is None:
        if local.has_layers():
            kept = local.set_aside(secrets.token_hex(8))
            log.warning("session.set_aside", extra={"session": name, "kept": str(kept)})
        record = LocalRecord(
            session_id=session.session.session_id, base=head, layers=(0,), next_layer=1
        )
        begin_layer(local.layer_directory(0))
        local.save(record)
        return record
    base_id = None if found.base is None else found.base.id
    if session.record.commit_id in (base_id, found.sealing):
        return found
    raise RefusedError(
        f"session {name} has gone on in another place (it is at "
        f"{_short(session.record)} there, at {base_id.hex()[:12] if base_id else 'nothing'} here), "
        f"and the work that is not committed here, kept in {local.directory}, does not build on "
        "that. Mount with another --session",
        kind="session.diverged",
        session=name,
    )


def _short(record: RefRecord) -> str:
    return record.commit_id.hex()[:12] if record.commit_id else "nothing"


def _finish_commit(
    workspace: Workspace,
    local: LocalSession,
    session: OpenSession,
    record: LocalRecord,
    root: Entry,
    layers: list[tuple[Layer, Journal]],
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
            for _ in rebase_rows(layer, entries, numbered):
                pass
            # Durable before the record says that the sealed layers are gone.
            pending = journal.prepare()
            journal.write(pending)
            layer.bury(pending.doomed)
    kept = tuple(number for number in record.layers if number not in numbered)
    record = replace(record, base=head, layers=kept, sealing=None, sealed_layers=())
    local.save(record)
    for pair in sealed:
        layers.remove(pair)
        pair[1].close()
        pair[0].close()
        local.remove_layer(pair[0].number)
    log.info("commit.finished", extra={"commit": head.id.hex()})
    return record, new_root
