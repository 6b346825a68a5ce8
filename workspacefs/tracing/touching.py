"""Which commits changed something at or below some paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.tracing.trails import Names, Trail, find_trail, follow_back, names_of
from workspacefs.trees.diff import diff_trees
from workspacefs.trees.nodes import NodeSource
from workspacefs.workspace.changes import kind_of_change
from workspacefs.workspace.history import CommitSource, iter_history


class TracingSource(CommitSource, NodeSource, Protocol):
    """Gives commits and tree nodes."""


class Touch(NamedTuple):
    """A commit of a history."""

    ref: Ref
    commit: Commit
    paths: tuple[bytes, ...]
    """Of those that are followed, under the names that they have in this commit, the ones that it
    changed; none: it did not touch any."""


def iter_touches(
    heads: Iterable[tuple[Ref, Commit]],
    paths: Iterable[bytes],
    source: TracingSource,
    *,
    first_parent: bool = False,
) -> Iterator[Touch]:
    """Yield all commits of a history, in the order of iter_history, with what they touched.

    A commit touches a path if it differs there from each of its parents in anything but times and
    link counts; the first commit of all, if it has it. Files and directories are followed under
    the names that they had before. Each commit that did not touch a path costs the nodes on the
    way to it that it has for itself.

    Args:
        heads: Where to begin; the paths are those that they have.
        paths: Need not exist. An empty one is the root.
        source: Gives commits and nodes.
        first_parent: Follow, and compare with, first parents only.
    """
    wanted = [names_of(path) for path in paths]
    if not wanted:
        for ref, commit in iter_history(heads, source, first_parent=first_parent):
            yield Touch(ref, commit, ())
        return
    commits = _Kept(source)
    trails: dict[bytes, dict[Names, Trail]] = {}
    """By commit; what leads there in the child has led to it."""
    for ref, commit in iter_history(heads, commits, first_parent=first_parent):
        own = trails.pop(ref.id, None) or {
            names: find_trail(commit.root, names, source) for names in wanted
        }
        parents = commit.parents[:1] if first_parent else commit.parents
        touched = {names for names, trail in own.items() if parents or trail.entry is not None}
        for parent in parents:
            old_root = commits.load_commit(parent).root
            before = trails.setdefault(parent.id, {})
            for names, trail in own.items():
                old = follow_back(trail, old_root, source)
                before.setdefault(old.names, old)
                if names in touched and not _is_touched(old, trail, source):
                    touched.discard(names)
        commits.forget(ref)
        yield Touch(ref, commit, tuple(own[names].path for names in sorted(touched)))


class _Kept:
    """Commits that are looked at before the history comes to them, so that each is loaded once."""

    def __init__(self, source: CommitSource) -> None:
        self._source = source
        self._kept: dict[bytes, Commit] = {}

    def load_commit(self, ref: Ref) -> Commit:
        """Return a commit, and keep it until the history has passed it."""
        commit = self._kept.get(ref.id)
        if commit is None:
            commit = self._kept[ref.id] = self._source.load_commit(ref)
        return commit

    def forget(self, ref: Ref) -> None:
        """Take note that the history has passed a commit."""
        self._kept.pop(ref.id, None)


def _is_touched(old: Trail, new: Trail, source: NodeSource) -> bool:
    before, after = old.entry, new.entry
    if before is None or after is None:
        return before is not after
    return old.names != new.names or _is_changed(before, after, source)


def _is_changed(old: Entry, new: Entry, source: NodeSource) -> bool:
    """Tell whether two entries differ, or anything below them, in more than times and links."""
    if kind_of_change(old, new) is not None:
        return True
    return old.is_dir and any(
        change.old is None
        or change.new is None
        or kind_of_change(change.old, change.new) is not None
        for change in diff_trees(old, new, source)
    )
