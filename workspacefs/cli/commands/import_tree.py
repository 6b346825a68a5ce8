"""`workspacefs import`: a directory tree becomes the next commit of a branch."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping

from workspacefs.allocator import bound_memory
from workspacefs.cli.commit_text import commit_document
from workspacefs.cli.context import Context, Output, count_text, short_id, size_text, text_of
from workspacefs.cli.parser import add_progress_flag, add_provenance_flags, add_store_flags
from workspacefs.cli.progress import Bar
from workspacefs.cli.provenance import new_provenance
from workspacefs.cli.store_urls import absolute_url
from workspacefs.cli.stores import open_workspace
from workspacefs.errors import UsageError
from workspacefs.workspace.ingest import ImportOptions
from workspacefs.workspace.landing import ImportResult, import_directory
from workspacefs.workspace.settings import check_required, load_settings
from workspacefs.workspace.workspace import DEFAULT_BRANCH

EXAMPLE = """\
  workspacefs import ./store ~/project -m "first import"
  workspacefs import ./store ~/project -m "again" --exclude '*.log' --exclude /build"""

_NAMED_MAX = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("url", metavar="URL", help="store of the workspace")
    parser.add_argument("directory", metavar="DIR", help="its content becomes the root")
    parser.add_argument("-m", "--message", required=True, help="why, in a line or more")
    parser.add_argument("--branch", default=DEFAULT_BRANCH, help="where it lands (main)")
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="leave out what matches, in the syntax of .gitignore; may be given again. Files "
        "named .workspacefsignore in the tree say more",
    )
    parser.add_argument(
        "--skip-unreadable", action="store_true", help="leave out and name what cannot be read"
    )
    parser.add_argument(
        "--trust-mtime",
        action="store_true",
        help="do not read files whose size and time are as in the last commit",
    )
    add_provenance_flags(parser)
    add_progress_flag(parser)
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Import; all of it lands, or nothing."""
    if not options.message.strip():
        raise UsageError("a commit needs a message that says why (-m)", kind="commit.message")
    workspace = open_workspace(absolute_url(options.url, context.environ, options), context)
    bound_memory()
    provenance = new_provenance(options, context)
    check_required(load_settings(workspace)[0], provenance, dict(options.meta))
    began = time.monotonic()
    with Bar("import", unit="files", is_shown=options.progress) as bar:
        result = import_directory(
            workspace,
            options.directory,
            message=options.message,
            branch=options.branch,
            provenance=provenance,
            meta=tuple(dict(options.meta).items()),
            options=ImportOptions(
                exclude=tuple(options.exclude),
                skip_unreadable=options.skip_unreadable,
                trust_mtime=options.trust_mtime,
            ),
            progress=lambda files, size_bytes, total: bar.update(
                files, total, size_text(size_bytes)
            ),
        )
    _tell(result, options, time.monotonic() - began, context.out)
    return {
        **commit_document(result.ref, result.commit),
        "is_new": result.is_new,
        "branch": options.branch,
        "url": workspace.url,
        "dirs": result.tree.dirs,
        "excluded": result.tree.excluded,
        "skipped": [
            {"path": text_of(path), "reason": reason} for path, reason in result.tree.skipped
        ],
        "unsteady": [text_of(path) for path in result.tree.unsteady],
        "stored_bytes": result.written.stored_bytes,
    }


def _tell(result: ImportResult, options: argparse.Namespace, seconds: float, out: Output) -> None:
    tree = result.tree
    if result.is_new:
        _tell_commit(result, options, seconds, out)
    else:
        out.line(f"nothing to import: {options.branch} is the same as {options.directory}")
    if tree.excluded:
        out.line(f"left out by rules: {count_text(tree.excluded, 'name')}")
    for path, reason in tree.skipped[:_NAMED_MAX]:
        out.note(f"skipped {text_of(path)}: {reason}")
    if len(tree.skipped) > _NAMED_MAX:
        out.note(f"skipped {len(tree.skipped) - _NAMED_MAX:,} more (--json names them all)")
    for path in tree.unsteady[:_NAMED_MAX]:
        out.note(f"changed while it was read: {text_of(path)}")


def _tell_commit(
    result: ImportResult, options: argparse.Namespace, seconds: float, out: Output
) -> None:
    tree = result.tree
    out.line(
        f"commit {short_id(result.ref.id.hex())} on {options.branch}: "
        f"{count_text(tree.files, 'file')}, {count_text(tree.dirs, 'directory', 'directories')}, "
        f"{size_text(tree.size_bytes)} ({size_text(result.written.stored_bytes)} stored) "
        f"in {seconds:.1f} s"
    )
    if result.commit.parents:
        # The tree takes the place of all that was there: what is not in DIR is gone from here on.
        counts = result.commit.changes
        out.line(
            f"against {short_id(result.commit.parents[0].id.hex())}: {counts.added:,} added, "
            f"{counts.modified:,} modified, {counts.removed:,} removed"
        )
    else:
        out.note(f"next: workspacefs mount {options.url} MOUNTPOINT --mkdir")
