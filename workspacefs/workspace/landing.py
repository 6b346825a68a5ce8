"""Importing into a workspace: a directory tree becomes a commit on a branch.

Requests to the store, those in braces at the same time: {branch}, nodes of the commit before,
{last packs, log entry, claim of an epoch of file ids}, {branch}.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes

from workspacefs.errors import MovedError
from workspacefs.objects.commits import ChangeCounts, Commit, Provenance
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.packs.writer import WriteSummary
from workspacefs.refs import RefKind, Stale
from workspacefs.workspace.base import KnownObjects
from workspacefs.workspace.imported import ImportedTree, ImportOptions, Progress
from workspacefs.workspace.ingest import import_tree
from workspacefs.workspace.publish import RefMove, make_move, seal_and_log
from workspacefs.workspace.scan import Inode
from workspacefs.workspace.workspace import DEFAULT_BRANCH, Workspace


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What an import made, or found to be there already."""

    ref: Ref
    """The branch's head now."""
    commit: Commit
    tree: ImportedTree
    written: WriteSummary
    is_new: bool
    """False: the branch was the same as the source, so no commit was made."""


def import_directory(
    workspace: Workspace,
    source: str | bytes | os.PathLike[str],
    *,
    message: str,
    branch: str = DEFAULT_BRANCH,
    provenance: Provenance | None = None,
    meta: tuple[tuple[str, str], ...] = (),
    options: ImportOptions | None = None,
    progress: Progress | None = None,
) -> ImportResult:
    """Make the content of `source` the next commit of a branch; begin the branch if need be.

    The commit's tree is exactly the source: what the branch had besides is removed in it. Files at
    equal paths keep their ids, known content is not stored again. Durable on return. No commit is
    made of a source that is the same as the branch.

    Raises:
        MovedError: The branch moved meanwhile; nothing landed.
        WorkspaceError: Something cannot be read (kind "import.unreadable"); nothing landed.
    """
    provenance = provenance or Provenance()
    found = workspace.refs.find(RefKind.BRANCH, branch)
    record, version = found if found is not None else (None, None)
    parent = record.ref() if record is not None else None
    head = record.commit() if record is not None and parent is not None else None
    base = None if head is None else head.root
    known = KnownObjects()
    file_ids = workspace.new_file_ids(in_background=True)
    with workspace.new_writer(known=known.find) as writer:
        tree = import_tree(
            source,
            writer,
            allocate_id=file_ids.allocate,
            tree_params=workspace.tree_params,
            chunk_params=workspace.chunk_params,
            options=options or ImportOptions(),
            base=base,
            base_store=workspace.store,
            known=known,
            avoid=_store_directory(workspace.url),
            progress=progress,
        )
        if head is not None and parent is not None and _is_same(tree, head.root):
            writer.abort()
            return ImportResult(parent, head, tree, WriteSummary((), 0, 0, 0, 0), is_new=False)
        commit = Commit(
            root=tree.root,
            parents=() if parent is None else (parent,),
            message=message,
            time_ns=workspace.clock.now_ns(),
            provenance=provenance,
            changes=tree.changes,
            meta=tuple(sorted(meta)),
        )
        move = RefMove(
            kind=RefKind.BRANCH,
            name=branch,
            expected=version,
            previous=record,
            action="import",
            moved_by=provenance.author,
        )
        sealed, planned = seal_and_log(workspace, writer, commit, move)
    file_ids.settle()
    answer = make_move(workspace, planned, sealed.record())
    if isinstance(answer, Stale):
        raise MovedError(
            f"branch {branch} moved while the import ran, so nothing landed; import again",
            branch=branch,
        )
    return ImportResult(sealed.ref, sealed.commit, tree, sealed.summary, is_new=True)


def _is_same(tree: ImportedTree, base: Entry) -> bool:
    """Tell whether nothing changed; times of the root, which excluded names change, are nothing."""
    root = tree.root._replace(mtime_ns=base.mtime_ns, ctime_ns=base.ctime_ns)
    return tree.changes == ChangeCounts() and root == base


def _store_directory(url: str) -> Inode | None:
    """Return device and inode of the directory that a file store lies in."""
    if not url.startswith("file://"):
        return None
    try:
        status = Path(os.fsdecode(unquote_to_bytes(url.removeprefix("file://")))).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
