"""What a commit changed against its first parent, as --stat and --patch show it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from workspacefs.cli.context import text_of
from workspacefs.cli.writer_text import iter_writer_lines, process_documents, writer_numbers
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.workspace.changes import PathChange, changes_between
from workspacefs.workspace.difftext import iter_patch, iter_stat
from workspacefs.workspace.workspace import Workspace
from workspacefs.workspace.writers import writers_of

_NAMED_MAX = 1000


def add_change_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose how changes are shown."""
    parser.add_argument(
        "--files",
        action="store_true",
        help="the paths that changed, and which processes wrote them",
    )
    parser.add_argument("--stat", action="store_true", help="lines added and removed in each file")
    parser.add_argument("--patch", "-p", action="store_true", help="the changes themselves")


def changes_of(
    commit: Commit, workspace: Workspace, options: argparse.Namespace, *, with_names: bool = False
) -> dict[str, object]:
    """Return the members "names", "processes", "stat" and "patch", as far as they are wanted."""
    if not (options.stat or options.patch or options.files or with_names):
        return {}
    changes = _load_changes(commit, workspace)
    members: dict[str, object] = {}
    if with_names or options.files:
        members["names"] = [_row(change) for change in changes]
    if options.files:
        writers = writers_of(commit, workspace.store)
        members["processes"] = process_documents(writers)
        members["names"] = [
            {**_row(change), "writers": numbers}
            for change, numbers in zip(changes, writer_numbers(writers, changes), strict=True)
        ]
    if options.stat:
        members["stat"] = "".join(iter_stat(changes, workspace.store))
    if options.patch:
        members["patch"] = "".join(iter_patch(changes, workspace.store))
    return members


def iter_change_lines(members: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines that show what changes_of returned, an empty one before each part."""
    names = members.get("names")
    processes = members.get("processes")
    is_beside = "stat" in members or "patch" in members
    if isinstance(names, list) and names and (isinstance(processes, list) or not is_beside):
        yield ""
        for row in names[:_NAMED_MAX]:
            before = f"{row['from']} -> " if row["from"] else ""
            yield f"  {row['kind']} {before}{row['path']}"
            if isinstance(processes, list):
                yield from iter_writer_lines(processes, row["writers"])
        if len(names) > _NAMED_MAX:
            yield f"  … and {len(names) - _NAMED_MAX:,} more (--json names them all)"
    for member in ("stat", "patch"):
        text = members.get(member)
        if isinstance(text, str) and text:
            yield ""
            yield text.rstrip("\n")


def _load_changes(commit: Commit, workspace: Workspace) -> list[PathChange]:
    if commit.parents:
        old = workspace.store.load_commit(commit.parents[0]).root
    else:
        old = _emptied(commit.root)
    return changes_between(old, commit.root, workspace.store)


def _emptied(root: Entry) -> Entry:
    return root._replace(content=Subtree())


def _row(change: PathChange) -> dict[str, object]:
    return {
        "kind": change.kind.value,
        "path": text_of(change.path),
        "from": text_of(change.old_path) if change.old_path is not None else None,
        "old_size": change.old.size_bytes if change.old is not None else None,
        "new_size": change.new.size_bytes if change.new is not None else None,
    }
