"""`workspacefs diff`: what a session changed, as a patch."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.client.locate import path_inside, session_of

EXAMPLE = """\
  workspacefs diff               # of the mount we are in, against its base commit
  workspacefs diff /tmp/w/src > changes.patch"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "path", metavar="PATH", nargs="?", help="a mountpoint, or anything inside (default: here)"
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the session; its patch is written as it comes."""
    address = session_of(options.path or ".", context.state)
    under = path_inside(options.path, address.mountpoint) if options.path else ""
    pieces: list[str] = []

    def take(piece: object) -> None:
        if not isinstance(piece, str):
            return
        if context.out.as_json:
            pieces.append(piece)
        else:
            context.out.write(os.fsencode(piece))

    with address.connect() as connection:
        answer = connection.call(
            "diff",
            {"under": under},
            on_progress=lambda facts: take(facts.get("patch")),
            on_part=lambda member, value: take(value) if member == "patch" else None,
        )
    take(answer.pop("patch", None))
    return {
        "session": address.session,
        "mountpoint": address.mountpoint,
        **answer,
        "patch": "".join(pieces),
    }
