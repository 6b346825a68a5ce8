"""What the proxy notes of each request, and what can be told from such notes."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

_SECRET: Final = frozenset({"authorization", "x-amz-security-token", "cookie"})
_SECRET_QUERY: Final = frozenset({"X-Amz-Signature", "X-Amz-Credential", "X-Amz-Security-Token"})


@dataclass(slots=True)
class RequestInfo:
    """One request. Times are of time.monotonic(), which all processes of a machine share."""

    method: str
    path: str
    """Without the query, percent signs decoded."""
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    """Of the request, names in lower case; without what is secret."""
    begin_s: float = 0.0
    """When its head had arrived."""
    end_s: float | None = None
    """Just before the last piece of the answer left; None while it is in flight."""
    status: int | None = None
    """What the client was told; None when it got no answer."""
    received_bytes: int = 0
    """Of its body."""
    sent_bytes: int = 0
    """Of the answer's body."""
    fault: str | None = None
    """Name of the action that a rule took."""


def without_secrets(
    headers: Mapping[str, str], query: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return headers and query without what could be used to sign in."""
    return (
        {name: value for name, value in headers.items() if name not in _SECRET},
        {name: value for name, value in query.items() if name not in _SECRET_QUERY},
    )


def sequential_depth(requests: Iterable[RequestInfo]) -> int:
    """Return the length of the longest chain in which each request begins after the one before.

    That is how many round trips somebody waited for at least; what is in flight does not count.
    """
    depth = 0
    last_end_s = float("-inf")
    spans = sorted((found.end_s, found.begin_s) for found in requests if found.end_s is not None)
    for end_s, begin_s in spans:  # the earliest end first: no other choice gives a longer chain
        if begin_s >= last_end_s:
            depth += 1
            last_end_s = end_s
    return depth


class LogFile:
    """Notes as JSON lines in a file; for readers in other processes. Any thread may write."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(path, flags, 0o600)
        self._lock = threading.Lock()

    def write(self, info: RequestInfo) -> None:
        """Append one line; readers see it whole."""
        line = json.dumps(asdict(info), separators=(",", ":")).encode() + b"\n"
        with self._lock:
            if self._descriptor >= 0:
                os.write(self._descriptor, line)

    def close(self) -> None:
        """Close the file; later lines are lost."""
        with self._lock:
            os.close(self._descriptor)
            self._descriptor = -1


def read_log(path: Path, *, offset: int = 0) -> tuple[list[RequestInfo], int]:
    """Read the whole lines from a byte offset on; return them and the offset of what comes next."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return [RequestInfo(**json.loads(line)) for line in whole.splitlines()], offset + len(whole)
