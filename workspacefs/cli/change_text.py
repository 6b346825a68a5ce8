"""What a commit changed against its first parent, as --stat and --patch show it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from workspacefs.cli.context import text_of
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.workspace.changes import PathChange, changes_between
from workspacefs.workspace.difftext import iter_patch, iter_stat
from workspacefs.workspace.workspace import Workspace

_NAMED_MAX = 1000


def add_change_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose how changes are shown."""
    parser.add_argument("--stat", action="store_true", help="lines added and removed in each file")
    parser.add_argument("--patch", "-p", action="store_true", help="the changes themselves")


def changes_of(
    commit: Commit, workspace: Workspace, options: argparse.Namespace, *, with_names: bool = False
) -> dict[str, object]:
    """Return the members "names", "stat" and "patch", as far as they were asked for."""
    if not (options.stat or options.patch or with_names):
        return {}
    changes = _load_changes(commit, workspace)
    members: dict[str, object] = {}
    if with_names:
        members["names"] = [_row(change) for change in changes]
    if options.stat:
        members["stat"] = "".join(iter_stat(changes, workspace.store))
    if options.patch:
        members["patch"] = "".join(iter_patch(changes, workspace.store))
    return members


def iter_change_lines(members: Mapping[str, object]) -> Iterator[str]:
    """Yield the lines that show what changes_of returned, an empty one before each part."""
    names = members.get("names")
    if isinstance(names, list) and names and "stat" not in members and "patch" not in members:
        yield ""
        for row in names[:_NAMED_MAX]:
            before = f"{row['from']} -> " if row["from"] else ""
            yield f"  {row['kind']} {before}{row['path']}"
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
