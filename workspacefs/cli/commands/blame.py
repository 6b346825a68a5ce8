"""`workspacefs blame`: for each line of a file, which commit wrote it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import NamedTuple

from workspacefs.cli.blame_text import blame_document, iter_blame_lines, iter_process_lines
from workspacefs.cli.context import Context, text_of
from workspacefs.cli.mount_paths import workspace_path
from workspacefs.cli.mounted_file import committed_path, read_mounted
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import open_place
from workspacefs.cli.store_urls import is_s3, split_revision
from workspacefs.client.locate import session_of
from workspacefs.errors import UsageError
from workspacefs.merge.lines import TEXT_MAX_BYTES
from workspacefs.tracing.blame import Uncommitted, blame_file

EXAMPLE = """\
  workspacefs blame src/parser.py            # in a mount; what is not committed is told, too
  workspacefs blame src/parser.py main~5 -L 10,20
  workspacefs blame ./store@main src/parser.py --json"""


class _Request(NamedTuple):
    where: str | None
    """A store, or a directory in a mount; None: `path` lies in a mount."""
    path: str
    rev: str | None


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[URL[@REV]] PATH [REV]",
        nargs="+",
        help="a file in a mount; or a store, and a path from the root of the workspace. Without a "
        "REV, in a mount, the file is taken as it is now",
    )
    parser.add_argument(
        "-L",
        dest="lines",
        metavar="START,END",
        type=_line_range,
        default=(1, None),
        help="these lines only, counted from 1; either may be left out",
    )
    parser.add_argument(
        "--writers",
        action="store_true",
        help="also tell which processes wrote to the file in each of these commits (--json always "
        "does)",
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Print each line with who wrote it."""
    request = _parse(options.words)
    address = None if request.where is not None else session_of(request.path, context.state)
    where = request.where if address is None else address.mountpoint
    place = open_place(where, request.rev, options, context)
    head = None if place.is_empty() else place.load()
    typed = request.path if address is None else workspace_path(request.path, address)
    path = before = os.fsencode(typed.strip("/"))
    uncommitted = None
    if address is not None and request.rev is None and not address.session.startswith("@"):
        file = read_mounted(request.path, limit_bytes=TEXT_MAX_BYTES + 1)
        uncommitted = Uncommitted(file.data, path)
        if head is not None:
            root = head[1].root
            before = committed_path(path, file.file_id, root, place.workspace.store, address)
    first, last = options.lines
    lines = blame_file(
        head, before, place.workspace.store, uncommitted=uncommitted, first=first, last=last
    )
    if not context.out.as_json:
        for row in iter_blame_lines(lines):
            context.out.write(row)
        if options.writers:
            context.out.line("")
            for told in iter_process_lines(lines, place.workspace.store):
                context.out.line(told)
    return {
        "url": place.workspace.url,
        "commit": None if head is None else head[0].id.hex(),
        "path": text_of(path),
        **blame_document(lines, place.workspace.store),
    }


def _parse(words: list[str]) -> _Request:
    if len(words) > 1 and _is_place(words[0]):
        if len(words) <= 3:
            return _Request(words[0], words[1], words[2] if len(words) > 2 else None)
    elif len(words) <= 2:
        return _Request(None, words[0], words[1] if len(words) > 1 else None)
    raise UsageError(
        "it is: blame PATH [REV] in a mount, or blame URL[@REV] PATH [REV]", kind="usage.words"
    )


def _is_place(word: str) -> bool:
    """Tell whether a word is a store, or a directory, and no file."""
    if is_s3(word) or word.startswith("file:"):
        return True
    return os.path.isdir(os.path.expanduser(split_revision(word)[0]))


def _line_range(text: str) -> tuple[int, int | None]:
    first, comma, last = text.partition(",")
    try:
        start = int(first) if first else 1
        if not comma:
            return start, start
        return start, int(last) if last else None
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form START,END") from None
