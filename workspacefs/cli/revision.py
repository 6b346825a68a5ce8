"""What a person means by URL, PATH and REV: an open workspace and a revision in it.

Loads the whole library; only modules of commands that look into a store import this.
"""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

from workspacefs.cli.context import Context
from workspacefs.cli.store_urls import absolute_url, split_revision
from workspacefs.cli.stores import open_workspace
from workspacefs.client.locate import find_session_of
from workspacefs.errors import UsageError
from workspacefs.objects.commits import Commit
from workspacefs.objects.refs import Ref
from workspacefs.refs import RefKind
from workspacefs.workspace.workspace import DEFAULT_BRANCH, Workspace


class Place(NamedTuple):
    """A workspace, and the revision that is meant in it."""

    workspace: Workspace
    rev: str

    def load(self) -> tuple[Ref, Commit]:
        """Return the commit."""
        return self.workspace.resolve(self.rev)

    def is_empty(self) -> bool:
        """Tell whether the revision is a session that has no commit yet, or all there is."""
        for kind in RefKind:
            try:
                found = self.workspace.refs.find_live(kind, self.rev)
            except UsageError:  # "main~2" names no ref, so it is none without a commit
                return False
            if found is not None:
                return found[0].commit_id is None
        is_default = self.rev == DEFAULT_BRANCH
        return is_default and next(self.workspace.refs.iter_names(RefKind.BRANCH), None) is None


def open_place(
    where: str | None, rev: str | None, options: argparse.Namespace, context: Context
) -> Place:
    """Open what [URL[@REV]|PATH] [REV] names; a path inside a mount means its session.

    A single word that is no directory is a revision, when we are inside a mount. `options` has
    the flags of `add_store_flags`.
    """
    at_rev = None
    if where is not None:
        where, at_rev = split_revision(where)
        if rev is not None and at_rev is not None:
            raise UsageError(
                f"both @{at_rev} and {rev} name a revision; give one", kind="usage.rev"
            )
    session = find_session_of(where or ".", context.state) if _is_path(where) else None
    if session is None and where is not None and rev is None and not is_store(where):
        session = find_session_of(".", context.state)
        if session is not None:
            where, rev = None, where
    if session is None:
        if where is None:
            raise UsageError(
                "name a store (./dir, file:///dir or s3://bucket/prefix), or go into a mount",
                kind="usage.url",
            )
        url = absolute_url(where, context.environ, options)
        return Place(open_workspace(url, context), rev or at_rev or DEFAULT_BRANCH)
    workspace = open_workspace(session.store_url, context)
    chosen = rev or at_rev
    if chosen is None and session.session.startswith("@"):
        chosen = session.session[1:]  # a read-only view calls itself @REV; no session can
    if chosen is None:
        is_known = workspace.refs.find(RefKind.SESSION, session.session) is not None
        chosen = session.session if is_known else DEFAULT_BRANCH
    return Place(workspace, chosen)


def _is_path(where: str | None) -> bool:
    return where is None or os.path.lexists(where)


def is_store(where: str) -> bool:
    """Tell whether a word is a store, or a directory that may lie in a mount, and no name."""
    return ":" in where or where.startswith((".", "/", "~")) or os.path.isdir(where)
