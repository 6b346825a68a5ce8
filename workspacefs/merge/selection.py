"""Part of what a side changed: the base with the side's changes at and below some paths alone."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from workspacefs.errors import NotFoundError, RefusedError, UsageError
from workspacefs.ids import FileId
from workspacefs.merge.content import MergeSink, MergeSource
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.trees.diff import Change, diff_trees
from workspacefs.trees.edit import edit_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.trees.walk import find_entry

_NAMED_MAX = 3

_Ways: TypeAlias = "dict[bytes, _Ways | None]"
"""Names that lead to the selected paths; None: it is one, with all that is below."""


def check_paths(texts: Iterable[str]) -> list[bytes]:
    """Return paths of a workspace as they are stored: "src/a", without a slash at either end.

    Raises:
        UsageError: One leads out of the workspace, or is all of it.
    """
    paths = []
    for text in texts:
        parts = [part for part in os.fsencode(text).split(b"/") if part not in (b"", b".")]
        if b".." in parts or b"\0" in os.fsencode(text) or not parts:
            raise UsageError(
                f"{text!r} is no path in the workspace; give them from its root, as in src/main.py",
                kind="usage.paths",
            )
        paths.append(b"/".join(parts))
    return paths


def select_changes(
    base: Entry,
    theirs: Entry,
    paths: Iterable[bytes],
    source: MergeSource,
    sink: MergeSink,
    *,
    tree_params: TreeParameters,
) -> Entry:
    """Return the root of the base with what `theirs` changed at and below some paths.

    Directories above a path that only `theirs` has are made as they are there, with nothing else
    in them.

    Args:
        base: Root of the tree that the side began from.
        theirs: Root of the side.
        paths: As check_paths returns them; not empty.
        source: Gives nodes of both.
        sink: Gets the new nodes.
        tree_params: Shape of trees in this workspace.

    Raises:
        NotFoundError: Nothing changed at or below one of them.
        RefusedError: A file or directory was moved or linked between what is selected and the rest:
            it would be there twice, or not at all (kind "selection.crossing").
    """
    wanted = list(paths)
    ways = _ways_to(wanted)
    selection = _Selection(source, sink, tree_params)
    root = selection.apply(base, theirs, ways, b"")
    assert root is not None
    _check_border(diff_trees(base, theirs, source), wanted, selection.made)
    return root


def _ways_to(paths: Iterable[bytes]) -> _Ways:
    ways: _Ways = {}
    for path in sorted(paths):
        *above, name = path.split(b"/")
        at: _Ways | None = ways
        for part in above:
            if at is not None:
                at = at.setdefault(part, {})
        if at is not None:  # else something above is selected
            at[name] = None
    return ways


@dataclass(slots=True)
class _Selection:
    source: MergeSource
    sink: MergeSink
    tree_params: TreeParameters
    made: set[bytes] = field(default_factory=set)
    """Directories that only lead to what is selected, and that the base does not have."""

    def apply(
        self,
        base: Entry | None,
        theirs: Entry | None,
        ways: Mapping[bytes, _Ways | None],
        at: bytes,
    ) -> Entry | None:
        """Return a directory of the base with the selected changes; None: neither has it."""
        old = base if base is not None and base.is_dir else None
        new = theirs if theirs is not None and theirs.is_dir else None
        if old is None and base is not None and new is not None:
            raise _crossing([at], "another kind of file became this directory")
        shown = old or new
        if shown is None:
            return base
        subtree = old.subtree if old is not None else Subtree()
        changes: dict[bytes, Entry | None] = {}
        dirs = 0
        for name, below in ways.items():
            before = find_entry(subtree, name, self.source)
            after = None if new is None else find_entry(new.subtree, name, self.source)
            if below is not None:
                after = self.apply(before, after, below, at + name + b"/")
            if before != after:
                changes[name] = after
                dirs += (after is not None and after.is_dir) - (
                    before is not None and before.is_dir
                )
        if old is None:
            if not changes:
                return None
            self.made.add(at.rstrip(b"/"))
            shown = shown._replace(nlink=2)
        if not changes:
            return shown
        edited = edit_directory(subtree, changes, self.source, self.sink, self.tree_params)
        return shown._replace(content=edited, nlink=shown.nlink + dirs)


def _check_border(changes: Iterable[Change], paths: list[bytes], made: set[bytes]) -> None:
    """Raise unless what changed inside of a selection has nothing to do with the rest."""
    inside: dict[FileId, bytes] = {}
    outside: dict[FileId, bytes] = {}
    untouched = set(paths)
    for change in changes:
        is_inside = change.path in made
        for path in paths:
            if change.path == path or change.path.startswith(path + b"/"):
                is_inside = True
                untouched.discard(path)
        for entry in (change.old, change.new):
            if entry is not None:
                (inside if is_inside else outside).setdefault(entry.file_id, change.path)
    if untouched:
        named = ", ".join(map(os.fsdecode, sorted(untouched)))
        raise NotFoundError(f"nothing was changed at or below {named}", kind="selection.unchanged")
    crossing = [
        path + b" and " + outside[file_id] for file_id, path in inside.items() if file_id in outside
    ]
    if crossing:
        raise _crossing(
            sorted(crossing), "one file, which was moved or linked from one to the other"
        )


def _crossing(paths: list[bytes], what: str) -> RefusedError:
    shown = "; ".join(os.fsdecode(path.rstrip(b"/")) for path in paths[:_NAMED_MAX])
    more = f" and {len(paths) - _NAMED_MAX} more" if len(paths) > _NAMED_MAX else ""
    return RefusedError(
        f"these paths cannot be taken apart from the rest: {shown}{more} ({what}); name both, or "
        "the directory above",
        kind="selection.crossing",
    )
