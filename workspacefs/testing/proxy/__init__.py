"""A proxy between a client and an HTTP store that delays, limits and goes wrong to order.

Plain HTTP/1.1 on loopback, a thread a connection, standard library only. It must not know what a
workspace is; of S3 it knows one error document.
"""

from __future__ import annotations

from workspacefs.testing.proxy.requests import RequestInfo, read_log, sequential_depth
from workspacefs.testing.proxy.rules import (
    SLOW_DOWN,
    Action,
    CorruptBody,
    CutBody,
    DropAnswer,
    Reset,
    Rule,
    SlowBody,
    Stall,
    Status,
    WrongBody,
)
from workspacefs.testing.proxy.server import FaultProxy

__all__ = [
    "SLOW_DOWN",
    "Action",
    "CorruptBody",
    "CutBody",
    "DropAnswer",
    "FaultProxy",
    "RequestInfo",
    "Reset",
    "Rule",
    "SlowBody",
    "Stall",
    "Status",
    "WrongBody",
    "read_log",
    "sequential_depth",
]
