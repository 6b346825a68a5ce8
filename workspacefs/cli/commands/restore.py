"""`workspacefs restore`: have a mount show an earlier state, and keep what it showed."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Mapping
from shlex import quote

from workspacefs.cli.context import Context, count_text, size_text
from workspacefs.cli.parser import add_progress_flag
from workspacefs.cli.progress import Bar, show_files
from workspacefs.client.connection import Connection
from workspacefs.client.locate import SessionAddress, path_inside, session_of
from workspacefs.errors import NotFoundError, UsageError
from workspacefs.protocol.receipt import ReceiptCounts

EXAMPLE = """\
  workspacefs restore before-refactoring       # a checkpoint of the session that one is in
  workspacefs restore HEAD                     # its last commit: all that is not committed goes
  workspacefs restore /tmp/w main~3
  workspacefs restore main --paths src/app.py docs    # those, and nothing else
  workspacefs undo                             # takes the restore back"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[PATH] CHECKPOINT|REV",
        nargs="+",
        help="session (default: the working directory), and what to go back to: a checkpoint, a "
        "revision, or HEAD",
    )
    parser.add_argument(
        "--paths",
        metavar="PATH",
        nargs="+",
        help="restore these files and directories alone; what was not there then is removed",
    )
    add_progress_flag(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Restore, and return when every path was looked at."""
    if len(options.words) > 2:
        raise UsageError("it is: restore [PATH] CHECKPOINT|REV", kind="usage.arguments")
    *path, target = options.words
    somewhere = path or options.paths or ["."]
    address = session_of(somewhere[0], context.state)
    if options.paths:
        return _restore_paths(address, target, options, context)
    with (
        Bar("verify", unit="files", is_shown=options.progress) as bar,
        address.connect() as session,
    ):
        answer = session.call(
            "restore", {"target": target}, on_progress=lambda facts: show_files(bar, facts)
        )
    tell_restored(answer, address.mountpoint, context)
    return {"mountpoint": address.mountpoint, **answer}


def _restore_paths(
    address: SessionAddress, target: str, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    # By name: a whole restore needs none of it.
    path_restore = importlib.import_module("workspacefs.client.path_restore")
    inside = [path_inside(path, address.mountpoint) for path in options.paths]
    if "" in inside:
        raise UsageError("--paths names the whole mount; leave it out for that", kind="usage.paths")
    with address.connect() as session:
        source = _source_of(address, session, target)
        what = ", ".join(options.paths[:3]) + (" …" if len(options.paths) > 3 else "")
        safety = session.call(
            "checkpoint",
            {"action": "create", "automatic": True, "message": f"before restoring {what}"},
        )
    receipt = ReceiptCounts()
    with Bar("restore", unit="files", is_shown=options.progress) as bar:
        for path in inside:
            path_restore.restore_path(
                os.path.join(source, path),
                os.path.join(address.mountpoint, path),
                receipt,
                lambda files, size_bytes: bar.update(files, None, size_text(size_bytes)),
            )
    answer = {
        "session": address.session,
        "restored": f"{target} in {count_text(len(inside), 'path')}",
        "safety": safety["checkpoint"],
        "receipt": receipt.document(),
    }
    tell_restored(answer, address.mountpoint, context)
    return {"mountpoint": address.mountpoint, **answer}


def _source_of(address: SessionAddress, session: Connection, target: str) -> str:
    """Return where the mount shows a checkpoint or revision."""
    hidden = os.path.join(address.mountpoint, ".workspacefs")
    rows = session.call("checkpoint", {"action": "list"})["checkpoints"]
    assert isinstance(rows, list)
    name = target.replace("/", ",")
    if target in [row["checkpoint"] for row in rows]:
        found = os.path.join(hidden, "checkpoints", name)
    else:
        base = session.call("info")["base"]
        if base is not None and (target == "HEAD" or target.startswith(("HEAD~", "HEAD^"))):
            name = str(base) + target.removeprefix("HEAD")
        found = os.path.join(hidden, "at", name)
    if not os.path.isdir(found):
        raise NotFoundError(
            f"{target} is neither a checkpoint of session {address.session} on this machine nor a "
            "revision; workspacefs checkpoint list, and log, name those that there are",
            kind="restore.absent",
            target=target,
        )
    return found


def tell_restored(answer: Mapping[str, object], mountpoint: str, context: Context) -> None:
    """Print the receipt."""
    out, receipt = context.out, answer["receipt"]
    assert isinstance(receipt, dict)
    out.line(f"session {answer['session']} is at {answer['restored']}")
    out.line(
        f"  verified: {count_text(receipt['files'], 'file')} of {size_text(receipt['bytes'])}, "
        f"{count_text(receipt['directories'], 'directory', 'directories')}, "
        f"{count_text(receipt['symlinks'], 'symbolic link')}; {receipt['removed']} removed"
    )
    if receipt["kept_open"]:
        out.line(
            f"  {count_text(receipt['kept_open'], 'file')} had other content and are open: who has "
            "them open goes on with what was there"
        )
    out.note(
        f"what was here until now is checkpoint {answer['safety']}; to take this back: "
        f"workspacefs undo {quote(mountpoint)}"
    )
