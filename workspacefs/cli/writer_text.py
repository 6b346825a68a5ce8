"""Who wrote what of a commit, as a person and as a program read it."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from workspacefs.cli.context import text_of
from workspacefs.layers.writers import ProcessId
from workspacefs.workspace.changes import PathChange
from workspacefs.workspace.writers import Writers

_SHOWN_CHARS: Final = 72
_SHOWN_PROCESSES: Final = 8
_NOT_QUOTED: Final = ("***", "…")


def process_documents(writers: Writers) -> list[dict[str, object]]:
    """Return what --json says of all processes; `parent` is an index into this list."""
    numbers = {process_id: number for number, process_id in enumerate(writers.by_id())}
    return [
        {
            "pid": process.pid,
            "start_ns": process.start_ns or None,
            "executable": text_of(process.executable),
            "arguments": [text_of(one) for one in process.arguments],
            "tool_call": process.tool_call,
            "run": process.run,
            "agent": process.agent,
            "parent": None if process.parent is None else numbers.get(process.parent),
            "first_ns": first_ns or None,
        }
        for process, first_ns in writers.by_id().values()
    ]


def writer_numbers(writers: Writers, changes: Iterable[PathChange]) -> list[list[int]]:
    """Return for each change the indexes of the processes that made it."""
    numbers: Mapping[ProcessId, int] = {
        process_id: number for number, process_id in enumerate(writers.by_id())
    }
    return [
        [numbers[one] for one in writers.of_change(change) if one in numbers] for change in changes
    ]


def iter_writer_lines(
    processes: Sequence[Mapping[str, object]], numbers: Sequence[int]
) -> Iterator[str]:
    """Yield the lines that tell who made one change, of what process_documents() returned."""
    for number in numbers[:_SHOWN_PROCESSES]:
        process = processes[number]
        words = [f"{process['pid'] or '?':>8}  {_command(process)}"]
        words += [
            f"{title} {process[member]}"
            for title, member in (("call", "tool_call"), ("run", "run"), ("agent", "agent"))
            if process[member]
        ]
        yield "  ".join(words)
    if len(numbers) > _SHOWN_PROCESSES:
        yield f"          … and {len(numbers) - _SHOWN_PROCESSES} more"


def _command(process: Mapping[str, object]) -> str:
    arguments = process["arguments"]
    if isinstance(arguments, list) and arguments:
        shown = " ".join(one if one in _NOT_QUOTED else shlex.quote(one) for one in arguments)
        shown = " ".join(shown.split())
        return shown if len(shown) <= _SHOWN_CHARS else shown[: _SHOWN_CHARS - 1] + "…"
    return str(process["executable"]) or "(a process that could not be looked at)"
