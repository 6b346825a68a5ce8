"""Who a commit made by the command line itself comes from."""

from __future__ import annotations

import argparse
import os
import pwd
import socket

from workspacefs.cli.context import Context
from workspacefs.cli.parser import key_value
from workspacefs.config import load_commit_defaults
from workspacefs.objects.commits import Provenance


def new_provenance(options: argparse.Namespace, context: Context) -> Provenance:
    """Return the provenance of what is done now: account and host, flags, environment."""
    given = {
        name: getattr(options, name) if getattr(options, name) is not None else default
        for name, default in load_commit_defaults(context.environ)._asdict().items()
    }
    host = socket.gethostname()
    return Provenance(author=f"{_account()}@{host}", host=host, **given)


def add_provenance_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say who is at work."""
    for flag, what in (
        ("agent", "who made the changes"),
        ("run", "in which run of it"),
        ("tool-call", "in which call of a tool"),
        ("model", "with which model"),
    ):
        variable = "WORKSPACEFS_" + flag.replace("-", "_").upper()
        parser.add_argument(f"--{flag}", metavar="NAME", help=f"{what} (default: ${variable})")
    parser.add_argument(
        "--meta",
        metavar="KEY=VALUE",
        action="append",
        type=key_value,
        default=[],
        help="anything else worth keeping; may be given again",
    )


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # an account that has no name, as in containers
        return str(os.geteuid())
