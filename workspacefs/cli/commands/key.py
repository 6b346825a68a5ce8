"""`workspacefs key`: the key that commits are signed with, and whose signatures count."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Final

from workspacefs.cli.context import Context
from workspacefs.cli.provenance import own_name
from workspacefs.config import (
    SIGNING_KEY_VARIABLE,
    default_signing_key,
    load_signing_key,
    trusted_keys_file,
)
from workspacefs.errors import UsageError
from workspacefs.signing.key_files import make_key_file, public_key_of
from workspacefs.signing.trusted import distrust, load_trusted, parse_public_key, trust_key

EXAMPLE = """\
  workspacefs key new                        # commits made from now on are signed
  workspacefs key show                       # the public half, to be given to others
  workspacefs key trust ana 0f5c…            # what ana signs counts in verify
  workspacefs key list"""


_WORDS: Final = {"new": 0, "show": 0, "list": 0, "trust": 2, "distrust": 1}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "action",
        choices=tuple(_WORDS),
        help="make a key and trust it; print its public half; list the keys whose signatures "
        "count; have one count (trust), or all of a name no more (distrust)",
    )
    parser.add_argument(
        "words",
        metavar="NAME PUBKEY",
        nargs="*",
        help="for trust: whose key it is, and its 64 hex digits; for distrust: one of the two",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="new: whose key it is (default: account and host)"
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help=f"new, show: the private key (default: ${SIGNING_KEY_VARIABLE}, else "
        "~/.config/workspacefs/signing-key.pem)",
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Do one of these."""
    action, words = options.action, options.words
    if len(words) != _WORDS[action]:
        raise UsageError(
            "it is: key new|show|list, key trust NAME PUBKEY, or key distrust NAME|PUBKEY",
            kind="usage.arguments",
        )
    path = trusted_keys_file(context.environ)
    if action == "new":
        return _new(options, path, context)
    if action == "show":
        return _show(options, context)
    if action == "trust":
        key_id = parse_public_key(words[1])
        trust_key(path, words[0], key_id)
        context.out.line(f"signatures of {words[0]} count: {key_id.hex()}")
    if action == "distrust":
        for key_id in distrust(path, words[0]):
            context.out.line(f"signatures by {key_id.hex()} count no more")
    keys = load_trusted(path)
    rows = [
        {"name": name, "key": key.hex()}
        for key, name in sorted(keys.items(), key=lambda row: (row[1], row[0]))
    ]
    if action == "list":
        for row in rows:
            context.out.line(f"{row['key']} {row['name']}")
        if not rows:
            context.out.line("nobody's signatures count yet; workspacefs key trust NAME PUBKEY")
    return {"file": path, "keys": rows}


def _show(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    file = _file_of(options, context)
    key = public_key_of(file).hex()
    is_used = load_signing_key(context.environ) == file
    context.out.line(key)
    context.out.note(f"of {file}" + ("" if is_used else "; commits are not signed with it"))
    return {"key": key, "file": file, "is_used": is_used}


def _new(options: argparse.Namespace, trusted: str, context: Context) -> Mapping[str, object]:
    file, name = _file_of(options, context), options.name or own_name()
    key = make_key_file(file)
    trust_key(trusted, name, key)
    is_used = load_signing_key(context.environ) == file
    context.out.line(f"public key of {name}: {key.hex()}")
    context.out.line(f"  the private half is in {file}: keep it, and let nobody read it")
    if is_used:
        context.out.note("new mounts, and commands that commit, sign from now on")
    else:
        context.out.note(f"to sign with it: export {SIGNING_KEY_VARIABLE}={file}")
    return {"key": key.hex(), "name": name, "file": file, "is_used": is_used}


def _file_of(options: argparse.Namespace, context: Context) -> str:
    given: str | None = options.file
    if given:
        return os.path.abspath(os.path.expanduser(given))
    return default_signing_key(context.environ)
