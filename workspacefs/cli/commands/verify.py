"""`workspacefs verify`: whether a history is what it says, and who vouches for it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from workspacefs.cli.context import Context, count_text, short_id
from workspacefs.cli.main import EXIT_MEMBER
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.revision import open_place
from workspacefs.config import trusted_keys_file
from workspacefs.errors import ExitCode, UsageError
from workspacefs.ids import CommitId
from workspacefs.signing.key_files import is_signed
from workspacefs.signing.trusted import load_trusted
from workspacefs.workspace.verification import Verification, verify_history

EXAMPLE = """\
  workspacefs verify                         # of the session that one is in
  workspacefs verify s3://bucket/shop main --require-signed --trusted ./team-keys
  workspacefs verify ./store --contains "$LAST_SEEN"    # and main was not set back"""

_SHOWN_MAX = 50


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("where", metavar="URL|PATH", nargs="?", help="default: here")
    parser.add_argument("rev", metavar="REV", nargs="?", help="where to begin (default: newest)")
    parser.add_argument(
        "--trusted",
        metavar="FILE",
        help="whose signatures count: a public key, a blank and a name on each line (default: "
        "those of workspacefs key list)",
    )
    parser.add_argument(
        "--require-signed",
        action="store_true",
        help="have every commit be signed by a trusted key; else exit code 8",
    )
    parser.add_argument(
        "--contains",
        metavar="COMMIT",
        type=_commit_id,
        action="append",
        default=[],
        help="a commit that must be in the history, 64 digits; may be given again",
    )
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Check all of it; damage and bad signatures end with exit code 6."""
    if options.trusted:
        trusted = load_trusted(options.trusted, must_exist=True)
    else:
        trusted = load_trusted(trusted_keys_file(context.environ))
    place = open_place(options.where, options.rev, options, context)
    head, _ = place.load()
    found = verify_history(
        head, place.workspace.store, is_signed, trusted=trusted, must_have=options.contains
    )
    code = ExitCode.OK
    if found.bad:
        code = ExitCode.DAMAGED
    elif options.require_signed and not found.is_all_signed:
        code = ExitCode.REFUSED
    _tell(found, trusted, place.rev, context)
    first = found.first_unsigned
    return {
        "url": place.workspace.url,
        "rev": place.rev,
        "commit": head.id.hex(),
        "ok": code is ExitCode.OK,
        "commits": found.commits,
        "signed": sum(found.signed.values()),
        "unsigned": found.unsigned,
        "untrusted": sum(found.untrusted.values()),
        "signers": [
            {"name": trusted[key], "key": key.hex(), "commits": count}
            for key, count in found.signed.items()
        ],
        "untrusted_keys": [
            {"key": key.hex(), "commits": count} for key, count in found.untrusted.items()
        ],
        "first_unsigned": None if first is None else first.hex(),
        "bad": [{"commit": one.commit_id.hex(), "reason": one.reason} for one in found.bad],
        EXIT_MEMBER: int(code),
    }


def _tell(found: Verification, trusted: Mapping[bytes, str], rev: str, context: Context) -> None:
    out = context.out
    out.line(f"{count_text(found.commits, 'commit')} of {rev}")
    for key, count in found.signed.items():
        out.line(f"  {count:,} signed by {trusted[key]} ({key.hex()[:16]})")
    for key, count in found.untrusted.items():
        out.line(f"  {count:,} signed by {key.hex()}, whom nobody has said to trust")
    if found.unsigned:
        first = None if found.first_unsigned is None else found.first_unsigned.hex()
        out.line(f"  {found.unsigned:,} not signed, as {short_id(first)}")
    for one in found.bad[:_SHOWN_MAX]:
        out.line(f"  BAD {short_id(one.commit_id.hex())}: {one.reason}")
    if len(found.bad) > _SHOWN_MAX:
        out.line(f"  … and {len(found.bad) - _SHOWN_MAX:,} more; --json lists all")
    if not found.bad:
        out.line("  ids and parents are as they should be")


def _commit_id(text: str) -> CommitId:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise UsageError(f"{text!r} is no commit id of 64 hex digits", kind="usage.commit")
    return CommitId(bytes.fromhex(text))
