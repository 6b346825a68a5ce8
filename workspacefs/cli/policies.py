"""Policies of sessions as flags, and as a person reads them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Final

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME_MAX_S: Final = 100 * 365 * 86400
_TIMES: Final = {
    "idle_pause_s": "pause after so long without a request of a program",
    "ttl_s": "pause so long after it was mounted, though programs use it",
    "archive_after_s": "archive it when nobody has had it mounted for so long",
    "delete_after_s": "delete it when nobody has had it mounted for so long",
}
OF_A_MOUNT: Final = ("idle_pause_s", "ttl_s")
OF_A_SESSION: Final = tuple(_TIMES)
_EPHEMERAL: Final = "ephemeral"


def add_policy_flags(parser: argparse.ArgumentParser, members: tuple[str, ...]) -> None:
    """Add flags for these times, and --ephemeral. What is not given is not in the options."""
    group = parser.add_argument_group(
        "policies", "kept with the session in the store; times as 90s, 30m, 2h or 7d"
    )
    for member in members:
        group.add_argument(
            "--" + member.removesuffix("_s").replace("_", "-"),
            dest=member,
            metavar="TIME|off",
            type=policy_time_s,
            default=argparse.SUPPRESS,
            help=_TIMES[member],
        )
    group.add_argument(
        "--ephemeral",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="delete it when it is unmounted, with what was not committed",
    )


def policy_changes(options: argparse.Namespace) -> dict[str, object]:
    """Return what flags were given, by member of the policy; None stands for off."""
    given = vars(options)
    return {name: given[name] for name in (*_TIMES, _EPHEMERAL) if name in given}


def time_s(text: str) -> float:
    """Return the seconds that "90", "90s", "1.5m", "2h" or "7d" stand for, at least 1."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in _UNITS_S else (text, "s")
    try:
        seconds = float(number) * _UNITS_S[unit]
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= _TIME_MAX_S:
        raise argparse.ArgumentTypeError(f"{text!r} is neither off nor a time of at least 1s")
    return seconds


def policy_time_s(text: str) -> int | None:
    """Return the whole seconds that a policy's time stands for; None: off."""
    return None if text == "off" else round(time_s(text))


def time_text(seconds: float) -> str:
    """Return a time as the flags take it: "90s", "30m", "7d"."""
    for unit, length in reversed(_UNITS_S.items()):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def policy_text(policy: object) -> str:
    """Return what is set of a policy, in words; "" when nothing is."""
    if not isinstance(policy, Mapping):
        return ""
    words = []
    for member, said in (
        ("idle_pause_s", "pauses when idle for {}"),
        ("ttl_s", "pauses {} after it was mounted"),
        ("archive_after_s", "archived after {} at rest"),
        ("delete_after_s", "deleted after {} at rest"),
    ):
        seconds = policy.get(member)
        if isinstance(seconds, int):
            words.append(said.format(time_text(seconds)))
    if policy.get(_EPHEMERAL):
        words.append("ephemeral: deleted when it is unmounted")
    return ", ".join(words)
