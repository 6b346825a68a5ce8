"""`workspacefs export`: a revision as plain files, or as a tar stream."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping

from workspacefs.cli.context import Context, Output, count_text, size_text, text_of
from workspacefs.cli.parser import add_progress_flag, add_store_flags
from workspacefs.cli.progress import Bar
from workspacefs.cli.revision import Place, open_place
from workspacefs.errors import UsageError
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.workspace.export import ExportResult, export_tree
from workspacefs.workspace.sessions import root_of
from workspacefs.workspace.tar import export_tar

EXAMPLE = """\
  workspacefs export ./store ./out
  workspacefs export ./store@main~3 - | tar -C ./out -x"""

_NAMED_MAX = 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL[@REV]", help="store, or a path inside a mount")
    parser.add_argument(
        "target", metavar="DIR|-", help="an absent or empty directory; - is a tar on stdout"
    )
    parser.add_argument(
        "--keep-special", action="store_true", help="write set-id bits and devices too"
    )
    add_progress_flag(parser)
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Write it."""
    is_tar = options.target == "-"
    if is_tar and context.out.as_json:
        raise UsageError("standard output cannot hold both a tar and JSON", kind="usage.output")
    if is_tar and sys.stdout.isatty():
        raise UsageError("a tar is nothing for a terminal: send it elsewhere", kind="usage.output")
    place = open_place(options.where, None, options, context)
    ref, root = _load(place)
    with Bar("export", unit="files", is_shown=options.progress) as bar:

        def progress(files: int, size_bytes: int, total: int | None) -> None:
            bar.update(files, total, size_text(size_bytes))

        if is_tar:
            result = export_tar(
                root,
                place.workspace.store,
                sys.stdout.buffer,
                keep_special=options.keep_special,
                progress=progress,
            )
        else:
            result = export_tree(
                root,
                place.workspace.store,
                options.target,
                keep_special=options.keep_special,
                progress=progress,
            )
    if ref is None:
        context.out.note(f"{place.rev} has no commits yet, so there is nothing in it")
    _tell(result, "" if is_tar else options.target, context.out)
    return {
        "url": place.workspace.url,
        "commit": None if ref is None else ref.id.hex(),
        "target": options.target,
        "files": result.files,
        "dirs": result.dirs,
        "size_bytes": result.size_bytes,
        "dropped": [{"path": text_of(path), "what": missing} for path, missing in result.dropped],
        "collisions": [text_of(path) for path in result.collisions],
    }


def _load(place: Place) -> tuple[Ref | None, Entry]:
    """Return commit and root; no commit and an empty root where there are none yet."""
    if place.is_empty():
        root = root_of(
            place.workspace, None, created_ns=time.time_ns(), uid=os.geteuid(), gid=os.getegid()
        )
        return None, root
    ref, commit = place.load()
    return ref, commit.root


def _tell(result: ExportResult, target: str, out: Output) -> None:
    if target:
        out.line(
            f"wrote {count_text(result.files, 'file')}, {size_text(result.size_bytes)} to {target}"
        )
    for path, missing in result.dropped[:_NAMED_MAX]:
        out.note(f"not written: {missing} of {text_of(path)}")
    if len(result.dropped) > _NAMED_MAX:
        out.note(f"not written: {len(result.dropped) - _NAMED_MAX:,} more (--json names them all)")
    for path in result.collisions:
        out.note(f"the target cannot tell {text_of(path)} from a neighbour")
