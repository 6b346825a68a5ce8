"""Log files: one JSON document a line, from constant event names and fields.

Only entry points install handlers. This module must not know what is logged.
"""

from __future__ import annotations

import json
import logging
import os
import time
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler
from typing import Final

LOG_FILE_MODE: Final = 0o600
ROTATE_BYTES: Final = 32 * 1024 * 1024
"""A log file longer than this is set aside as `.1` when the next supervisor starts."""

_STANDARD_FIELDS: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", (), None)).keys() | {"message", "asctime", "taskName"}
)


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON: time, level, event, where from, fields, trace."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        seconds, fraction = divmod(record.created, 1)
        document: dict[str, object] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
            + f".{int(fraction * 1000):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "role": self._role,
            "pid": os.getpid(),
            "logger": record.name,
        }
        for name, value in vars(record).items():
            if name not in _STANDARD_FIELDS:
                document[name] = value
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return json.dumps(document, default=repr)


class PrivateLogFile(WatchedFileHandler):
    """Appends to a file that only we can read; follows it when it is set aside."""

    def _open(self) -> TextIOWrapper:
        descriptor = os.open(
            self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, LOG_FILE_MODE
        )
        return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def install_log_file(path: str, *, role: str, level: int = logging.INFO) -> None:
    """Send everything that this process logs to `path`; replaces handlers installed before.

    Survives process death: every line is written when it is logged. Not synced: a power loss may
    take the last seconds.
    """
    handler = PrivateLogFile(path)
    handler.setFormatter(JsonLines(role))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(level)


def set_aside_if_long(path: str, *, limit_bytes: int = ROTATE_BYTES) -> None:
    """Rename a log file that has grown past the limit, replacing the one set aside before."""
    try:
        is_long = os.stat(path).st_size > limit_bytes
    except FileNotFoundError:
        return
    if is_long:
        os.replace(path, f"{path}.1")
