"""Argument parsers whose errors are ours, and the flags that every command has."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final, NoReturn

from workspacefs.config import load_commit_defaults
from workspacefs.errors import UsageError

STORE_FLAGS: Final = {
    "endpoint-url": ("endpoint_url", "URL", "S3 server (default: $AWS_ENDPOINT_URL_S3, else AWS)"),
    "region": ("region", "NAME", "region of the bucket (default: of the AWS configuration)"),
    "profile": ("profile", "NAME", "profile of ~/.aws that holds the credentials"),
    "s3-addressing": (
        "addressing",
        "STYLE",
        "path or virtual: where the bucket's name stands (default: auto)",
    ),
    "ca-bundle": ("ca_bundle", "FILE", "certificates to trust (default: those of the system)"),
    "sse": ("sse", "KIND", "AES256 or aws:kms: encryption that the server shall apply"),
    "sse-kms-key-id": ("sse_kms_key_id", "ID", "key for --sse aws:kms"),
}
"""Flag → the option of an s3 URL that it gives, the name of its value, and what it is."""


class CommandParser(argparse.ArgumentParser):
    """Raises UsageError where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments."""
        raise UsageError(f"{message}; see: {self.prog} --help", kind="usage.arguments")


def new_parser(name: str, summary: str, example: str) -> CommandParser:
    """Return the parser of a command, with the common flags."""
    parser = CommandParser(
        prog=f"workspacefs {name}",
        description=summary,
        epilog=f"example:\n{example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document on standard output"
    )
    parser.add_argument(
        "--state-dir",
        metavar="DIR",
        help="where daemons keep sockets, logs and uncommitted work "
        "(default: $WORKSPACEFS_STATE_DIR, else ~/.local/state/workspacefs)",
    )
    return parser


def add_progress_flag(parser: argparse.ArgumentParser) -> None:
    """Add --progress to a command that may take long."""
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show progress on standard error (default: when that is a terminal)",
    )


def add_store_flags(parser: argparse.ArgumentParser) -> None:
    """Add what says how an S3 store is reached; credentials never come by flags."""
    group = parser.add_argument_group(
        "S3 stores", "also as options of the URL: s3://BUCKET/PREFIX?endpoint_url=URL&region=NAME"
    )
    for flag, (_, value, what) in STORE_FLAGS.items():
        group.add_argument(f"--{flag}", metavar=value, help=what)


def add_provenance_flags(parser: argparse.ArgumentParser, *, meta: bool = True) -> None:
    """Add the flags that say who is at work, and by --meta anything else."""
    for flag, what in (
        ("agent", "who made the changes"),
        ("run", "in which run of it"),
        ("tool-call", "in which call of a tool"),
        ("model", "with which model"),
    ):
        variable = "WORKSPACEFS_" + flag.replace("-", "_").upper()
        parser.add_argument(f"--{flag}", metavar="NAME", help=f"{what} (default: ${variable})")
    if not meta:
        return
    parser.add_argument(
        "--meta",
        metavar="KEY=VALUE",
        action="append",
        type=key_value,
        default=[],
        help="anything else worth keeping; may be given again",
    )


def given_provenance(options: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return who is at work: what the flags say, else the environment, else empty texts."""
    defaults = load_commit_defaults(environ)._asdict()
    return {
        name: default if getattr(options, name) is None else getattr(options, name)
        for name, default in defaults.items()
    }


def key_value(text: str) -> tuple[str, str]:
    """Return the parts of K=V, for an argument's type."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form KEY=VALUE")
    return key, value
