"""Answers of any length as messages of bounded length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from workspacefs.errors import WorkspaceError
from workspacefs.protocol.failures import error_document
from workspacefs.protocol.messages import PART_MAX_CHARS, PART_MAX_ITEMS


def iter_answer(
    request_id: int, answer: Mapping[str, object] | WorkspaceError
) -> Iterator[dict[str, object]]:
    """Yield the messages that end a request: parts of its long members, then ok or error.

    Lists and texts at the top of the answer that are longer than one part are sent in parts.
    """
    if isinstance(answer, WorkspaceError):
        yield {"id": request_id, "error": error_document(answer)}
        return
    short: dict[str, object] = {}
    for member, value in answer.items():
        if isinstance(value, list | tuple) and len(value) > PART_MAX_ITEMS:
            size = PART_MAX_ITEMS
        elif isinstance(value, str) and len(value) > PART_MAX_CHARS:
            size = PART_MAX_CHARS
        else:
            short[member] = value
            continue
        for start in range(0, len(value), size):
            part = {"member": member, "value": value[start : start + size]}
            yield {"id": request_id, "part": part}
    yield {"id": request_id, "ok": short}
