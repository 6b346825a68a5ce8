"""`workspacefs prefetch`: files of a mount come to this machine before anyone asks for them."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping

from workspacefs.cli.context import Context, count_text, size_text
from workspacefs.cli.parser import add_progress_flag
from workspacefs.cli.progress import Bar
from workspacefs.cli.stores import open_store
from workspacefs.client.locate import path_inside, session_of
from workspacefs.errors import UsageError
from workspacefs.objects.commits import Commit
from workspacefs.workspace.prefetch import prefetch_paths
from workspacefs.workspace.workspace import Workspace

EXAMPLE = """\
  workspacefs prefetch .                 # everything below, of the mount we are in
  workspacefs prefetch src tests/data"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "paths", metavar="PATH", nargs="+", help="files and directories inside one mount"
    )
    add_progress_flag(parser)


def _commit_of(workspace: Workspace, session: str, base: str) -> Commit:
    # By name first: an id alone is looked for in the history of everything.
    if not session.startswith("@"):
        ref, commit = workspace.resolve(session)
        if ref.id.hex() == base:
            return commit
    return workspace.resolve(base)[1]


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Fetch what is not here yet; return when all of it is."""
    address = session_of(options.paths[0], context.state)
    for path in options.paths[1:]:
        if session_of(path, context.state).session_id != address.session_id:
            raise UsageError(
                f"{path} is in another mount than {options.paths[0]}; give them one by one",
                kind="usage.mounts",
            )
    with address.connect() as connection:
        info = connection.call("info")
    base, top = info["base"], str(info.get("subpath") or "")
    store = open_store(address.store_url, context)
    if base is None or store.is_local:
        context.out.line("everything is on this machine already")
        return {"files": 0, "size_bytes": 0, "fetched_bytes": 0}
    workspace = Workspace.open(store)
    commit = _commit_of(workspace, address.session, str(base))
    began = time.monotonic()
    names = [
        os.fsencode(os.path.join(top, path_inside(path, address.mountpoint)))
        for path in options.paths
    ]
    with Bar("prefetch", unit="MB", is_shown=options.progress) as bar:
        result = prefetch_paths(
            workspace,
            commit.root,
            names,
            progress=lambda done, total: bar.update(done >> 20, total >> 20),
        )
    context.out.line(
        f"{count_text(result.files, 'file')}, {size_text(result.size_bytes)}: fetched "
        f"{size_text(result.fetched_bytes)} in {time.monotonic() - began:.1f} s, the rest was here"
    )
    return {
        "files": result.files,
        "size_bytes": result.size_bytes,
        "fetched_bytes": result.fetched_bytes,
        "uncommitted": [name.decode(errors="surrogateescape") for name in result.absent],
    }
