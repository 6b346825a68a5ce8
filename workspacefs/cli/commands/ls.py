"""`workspacefs ls`: a directory of a revision, straight from the store."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Mapping

from workspacefs.cli.commit_text import time_text
from workspacefs.cli.context import Context, text_of
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import open_place
from workspacefs.objects.entry import Entry
from workspacefs.workspace.listing import list_path

EXAMPLE = """\
  workspacefs ls ./store
  workspacefs ls -l ./store@main~2 src"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL[@REV]", help="store, or a path inside a mount")
    parser.add_argument("path", metavar="PATH", nargs="?", default="", help="default: the root")
    parser.add_argument("-l", "--long", action="store_true", help="modes, sizes and times too")
    parser.add_argument("-R", "--recursive", action="store_true", help="all that lies below")
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """List it."""
    place = open_place(options.where, None, options, context)
    document: dict[str, object] = {"url": place.workspace.url, "rev": place.rev, "commit": None}
    rows: list[dict[str, object]] = []
    document["entries"] = rows
    if place.is_empty():
        return document
    ref, commit = place.load()
    document["commit"] = ref.id.hex()
    found = list_path(
        commit.root,
        os.fsencode(options.path),
        place.workspace.store,
        recursive=options.recursive,
    )
    for path, entry in found:
        if context.out.as_json:
            rows.append(_row(path, entry))
        else:
            context.out.line(_line(path, entry, is_long=options.long))
    return document


def _line(path: bytes, entry: Entry, *, is_long: bool) -> str:
    name = text_of(path) + ("/" if entry.is_dir else "")
    if not is_long:
        return name
    target = _target(entry)
    arrow = f" -> {target}" if target is not None else ""
    return (
        f"{stat.filemode(entry.mode)} {entry.nlink:>3} {entry.uid:>5} {entry.gid:>5} "
        f"{entry.size_bytes:>12,} {time_text(entry.mtime_ns)} {name}{arrow}"
    )


def _target(entry: Entry) -> str | None:
    if entry.is_symlink and isinstance(entry.content, bytes):
        return text_of(entry.content)
    return None


def _row(path: bytes, entry: Entry) -> dict[str, object]:
    return {
        "path": text_of(path),
        "kind": _kind(entry.mode),
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
        "size": entry.size_bytes,
        "mtime_ns": entry.mtime_ns,
        "ctime_ns": entry.ctime_ns,
        "file_id": entry.file_id,
        "nlink": entry.nlink,
        "target": _target(entry),
    }


def _kind(mode: int) -> str:
    for test, kind in (
        (stat.S_ISREG, "file"),
        (stat.S_ISDIR, "directory"),
        (stat.S_ISLNK, "symlink"),
        (stat.S_ISFIFO, "fifo"),
        (stat.S_ISSOCK, "socket"),
        (stat.S_ISBLK, "block device"),
    ):
        if test(mode):
            return kind
    return "character device"
