"""`settings.json`: what is settled for a workspace and may be changed.

So far that is what commits must say. Absent as long as nothing is. One line of JSON like a ref's,
replaced by compare-and-swap. Members: docs/format.md.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from blake3 import blake3

from workspacefs.backend.contract import Version
from workspacefs.errors import IntegrityError, KeyAbsentError, MovedError, RefusedError, UsageError
from workspacefs.objects.commits import Provenance
from workspacefs.workspace.workspace import Workspace

SETTINGS_KEY: Final = "settings.json"
FORMAT_VERSION: Final = 1
PROVENANCE_KEYS: Final = ("agent", "run", "tool_call", "model")
"""Keys that are members of Provenance; all others are keys of Commit.meta."""
_KEYS_MAX: Final = 64
_KEY: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MEMBERS: Final = {"format", "require", "changed_by", "changed_at_ns", "write_id"}


class Settings(NamedTuple):
    """What is settled."""

    require: tuple[str, ...] = ()
    """Keys that every commit must have, in ascending order."""


def parse_require(text: str) -> tuple[str, ...]:
    """Return the keys that a person listed, with commas; "" is none.

    Raises:
        UsageError: One of them can be no key.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    keys = {"tool_call" if name == "tool-call" else name for name in names}
    for key in keys:
        if not _KEY.fullmatch(key) or key.startswith("workspacefs."):
            raise UsageError(
                f"{key:.100} is no key that a commit may have; it is agent, run, tool_call, model, "
                "or a name of letters, digits and . _ - for --meta",
                kind="settings.key",
            )
    if len(keys) > _KEYS_MAX:
        raise UsageError(f"at most {_KEYS_MAX} keys can be required", kind="settings.key")
    return tuple(sorted(keys))


def load_settings(workspace: Workspace) -> tuple[Settings, Version | None]:
    """Return what is settled, and the token to replace it by (None: nothing is).

    Raises:
        IntegrityError: It is damaged.
        RefusedError: It is of a newer format.
        UnavailableError: The store does not answer.
    """
    try:
        value, version = workspace.backend.get_versioned(SETTINGS_KEY)
    except KeyAbsentError:
        return Settings(), None
    return decode_settings(value, url=workspace.url), version


def change_settings(
    workspace: Workspace, settings: Settings, expected: Version | None, *, changed_by: str
) -> None:
    """Settle anew what was loaded with the token `expected`; durable in the store on return.

    Raises:
        MovedError: Somebody else has changed it since.
        UnavailableError: The store does not answer; whether it is changed is not known.
    """
    document: dict[str, object] = {
        "format": FORMAT_VERSION,
        "require": list(settings.require),
        "changed_by": changed_by,
        "changed_at_ns": workspace.clock.now_ns(),
        "write_id": secrets.token_hex(16),
    }
    value, backend = _checked(document), workspace.backend
    done = (
        backend.put_if_absent(SETTINGS_KEY, value)
        if expected is None
        else backend.put_if_version(SETTINGS_KEY, value, expected)
    )
    # After an answer that was lost, sent again by the backend, our own value stands in the way.
    if done is None and backend.get(SETTINGS_KEY) != value:
        raise MovedError(
            f"the settings of {workspace.url} were changed by someone else meanwhile; look at them "
            "and try again",
            kind="settings.moved",
            url=workspace.url,
        )


def check_required(
    settings: Settings, provenance: Provenance, meta: Mapping[str, str] | None
) -> None:
    """Raise RefusedError (kind "commit.required") if a commit lacks what it must say.

    Args:
        settings: Of the workspace.
        provenance: Of the commit.
        meta: Of the commit; None: it has none of its own, and needs none.
    """
    missing = [key for key in settings.require if not _has(key, provenance, meta)]
    if missing:
        told = ", ".join(f"{key} ({_how(key)})" for key in missing)
        raise RefusedError(
            f"this workspace wants each commit to say: {told}; nothing was committed",
            kind="commit.required",
            missing=",".join(missing),
        )


def decode_settings(value: bytes, *, url: str) -> Settings:
    """Return what a stored value says.

    Raises:
        RefusedError: It is of a newer format (kind "format.newer").
        IntegrityError: It is damaged.
    """
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise _damaged(url) from exc
    if not isinstance(document, dict):
        raise _damaged(url)
    version = document.get("format")
    if type(version) is int and version > FORMAT_VERSION:
        raise RefusedError(
            f"{SETTINGS_KEY} of {url} has format version {version}, this program knows "
            f"{FORMAT_VERSION}; use a newer release of workspacefs",
            kind="format.newer",
            format=version,
        )
    document.pop("check", None)
    if _checked(document) != value or document.keys() != _MEMBERS:
        raise _damaged(url)
    require = document["require"]
    if (
        not isinstance(require, list)
        or len(require) > _KEYS_MAX
        or not all(isinstance(key, str) and _KEY.fullmatch(key) for key in require)
        or require != sorted(set(require))
    ):
        raise _damaged(url)
    return Settings(tuple(require))


def _has(key: str, provenance: Provenance, meta: Mapping[str, str] | None) -> bool:
    if key in PROVENANCE_KEYS:
        return bool(getattr(provenance, key).strip())
    return meta is None or bool(meta.get(key, "").strip())


def _how(key: str) -> str:
    if key not in PROVENANCE_KEYS:
        return f"--meta {key}=VALUE"
    return f"--{key.replace('_', '-')} NAME or WORKSPACEFS_{key.upper()}"


def _checked(document: Mapping[str, object]) -> bytes:
    return _line({**document, "check": blake3(_line(document)).hexdigest()})


def _line(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _damaged(url: str) -> IntegrityError:
    return IntegrityError(f"{SETTINGS_KEY} of {url} is damaged", kind="settings.damaged", url=url)


def keys_text(keys: Iterable[str]) -> str:
    """Return keys as a person reads them."""
    return ", ".join(keys) or "nothing"
