"""Times as people give them: "3d" ago, a day, or a moment in ISO 8601."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, date, datetime, timedelta
from typing import Final

_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_NS: Final = 1_000_000_000


def since_ns(text: str) -> int:
    """Return the moment that a value of --since names, in ns since 1970: of a day, its start."""
    return moment_ns(text, now_ns=time.time_ns(), is_end=False)


def until_ns(text: str) -> int:
    """Return the moment that a value of --until names, in ns since 1970: of a day, its end."""
    return moment_ns(text, now_ns=time.time_ns(), is_end=True)


def moment_ns(text: str, *, now_ns: int, is_end: bool) -> int:
    """Return a moment in ns since 1970.

    Args:
        text: "90s", "30m", "2h", "3d" or "2w" before `now_ns`; or a day or a moment in ISO 8601, in
            UTC unless it says otherwise.
        now_ns: The present, ns since 1970.
        is_end: Whether a day stands for its end, not its start.

    Raises:
        argparse.ArgumentTypeError: It is none of these.
    """
    number, unit = text[:-1], text[-1:]
    if unit in _UNITS_S and number.replace(".", "", 1).isdecimal():
        return now_ns - round(float(number) * _UNITS_S[unit]) * _NS
    try:
        return _of_iso(text, is_end=is_end)
    except (ValueError, OverflowError) as exc:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time: give 2h, 3d, 2026-11-30 or 2026-11-30T14:05Z"
        ) from exc


def _of_iso(text: str, *, is_end: bool) -> int:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
    else:
        moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
        moment += timedelta(days=int(is_end))
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * _NS + since.microseconds * 1000
