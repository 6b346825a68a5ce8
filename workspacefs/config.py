"""Settings, and how they are read from the environment.

Only entry points (the command line and the daemon's app.py) call this, with their own environment;
nothing else in the product looks at one. This module must not know who uses a setting.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from workspacefs.errors import UsageError
from workspacefs.statedir import StateDir

STATE_DIR_VARIABLE: Final = "WORKSPACEFS_STATE_DIR"
CACHE_SIZE_VARIABLE: Final = "WORKSPACEFS_CACHE_SIZE"
SIGNING_KEY_VARIABLE: Final = "WORKSPACEFS_SIGNING_KEY"
RESTART_VARIABLE: Final = "WORKSPACEFS_RESTART"
CACHE_MIN_BYTES: Final = 64 << 20
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

# The numbers of the logging module, which costs the command line 5 ms to import.
_LOG_LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_DAEMON_VARIABLES: Final = frozenset(
    ("HOME", "LANG", "LOGNAME", "PATH", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
)
_DAEMON_PREFIXES: Final = ("LC_", "PYTHON", "XDG_", "WORKSPACEFS_")


# What leads to a store, keys and tokens included: handed to daemons over their sockets, never
# through their environment.
_STORE_PREFIX: Final = "AWS_"
_STORE_VARIABLES: Final = frozenset(
    (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
    )
)


class CommitDefaults(NamedTuple):
    """Who a commit is said to come from when its flags do not say. Empty: not known."""

    agent: str = ""
    run: str = ""
    tool_call: str = ""
    model: str = ""


_PROVENANCE_VARIABLES: Final = {
    "agent": "WORKSPACEFS_AGENT",
    "run": "WORKSPACEFS_RUN",
    "tool_call": "WORKSPACEFS_TOOL_CALL",
    "model": "WORKSPACEFS_MODEL",
}


def load_state_dir(environ: Mapping[str, str], flag: str | None = None) -> StateDir:
    """Return the state directory: the flag, else the environment, else the XDG default."""
    if flag:
        return StateDir(os.path.abspath(os.path.expanduser(flag)))
    if chosen := environ.get(STATE_DIR_VARIABLE):
        return StateDir(os.path.abspath(chosen))
    xdg = environ.get("XDG_STATE_HOME", "")
    # Source: XDG Base Directory Specification 0.8: a path that is not absolute is ignored.
    base = xdg if os.path.isabs(xdg) else os.path.expanduser("~/.local/state")
    return StateDir(os.path.abspath(os.path.join(base, "workspacefs")))


def config_dir(environ: Mapping[str, str]) -> str:
    """Return where an account keeps its own settings, absolute; it need not be there."""
    xdg = environ.get("XDG_CONFIG_HOME", "")
    base = xdg if os.path.isabs(xdg) else os.path.expanduser("~/.config")
    return os.path.abspath(os.path.join(base, "workspacefs"))


def default_signing_key(environ: Mapping[str, str]) -> str:
    """Return where the key that commits are signed with is looked for: what the environment says,
    else its place among the settings.
    """
    chosen = environ.get(SIGNING_KEY_VARIABLE, "")
    if chosen and chosen != "off":
        return os.path.abspath(os.path.expanduser(chosen))
    return os.path.join(config_dir(environ), "signing-key.pem")


def load_signing_key(environ: Mapping[str, str]) -> str | None:
    """Return the path of the key that commits shall be signed with; None: they are not signed.

    One that the environment names must be there; the one among the settings counts if it is.
    """
    chosen = environ.get(SIGNING_KEY_VARIABLE, "")
    path = default_signing_key(environ)
    if chosen == "off" or (not chosen and not os.path.lexists(path)):
        return None
    return path


def trusted_keys_file(environ: Mapping[str, str]) -> str:
    """Return where the list of trusted keys of an account is; it need not be there."""
    return os.path.join(config_dir(environ), "trusted-keys")


def load_commit_defaults(environ: Mapping[str, str]) -> CommitDefaults:
    """Return what the environment says about who is at work."""
    return CommitDefaults(
        **{name: environ.get(variable, "") for name, variable in _PROVENANCE_VARIABLES.items()}
    )


def daemon_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a caller's environment that a long-lived daemon may inherit.

    A daemon outlives its caller and its /proc/PID/environ can be read: keys and tokens stay out,
    and so does what describes one run of one agent.
    """
    return {
        name: value
        for name, value in environ.items()
        if (name in _DAEMON_VARIABLES or name.startswith(_DAEMON_PREFIXES))
        and name not in _PROVENANCE_VARIABLES.values()
    }


def store_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the part of a caller's environment that says how to reach stores. Holds secrets."""
    found = {
        name: value
        for name, value in environ.items()
        if name.startswith(_STORE_PREFIX) or name in _STORE_VARIABLES
    }
    # boto3 1.44 looks at the second one only; the first is what all other AWS tools take.
    if "AWS_REGION" in found:
        found.setdefault("AWS_DEFAULT_REGION", found["AWS_REGION"])
    return found


def parse_cache_size(text: str | None) -> int | None:
    """Return the bytes that a text like 20G stands for; None for none.

    Raises:
        UsageError: It is no size, or too small to be of use.
    """
    if not text:
        return None
    number, unit = text, ""
    stripped = text.upper().removesuffix("B").removesuffix("I")
    if stripped and stripped[-1] in _UNITS:
        number, unit = stripped[:-1], stripped[-1]
    try:
        size_bytes = int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        size_bytes = 0
    if size_bytes < CACHE_MIN_BYTES:
        raise UsageError(
            f"{text!r} is no size for a cache: give at least 64M, as in 500M or 20G",
            kind="usage.cache_size",
        )
    return size_bytes


def load_restarts(environ: Mapping[str, str]) -> bool:
    """Return whether dead processes are brought back: unless WORKSPACEFS_RESTART is "off"."""
    return environ.get(RESTART_VARIABLE, "").lower() != "off"


def load_log_level(environ: Mapping[str, str]) -> int:
    """Return the level that daemons log at: WORKSPACEFS_LOG_LEVEL, else that of INFO."""
    return _LOG_LEVELS.get(environ.get("WORKSPACEFS_LOG_LEVEL", "").lower(), _LOG_LEVELS["info"])
