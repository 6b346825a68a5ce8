"""What blame tells, as a person and as a program read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from workspacefs.cli.commit_text import commit_document, time_text
from workspacefs.cli.context import SHORT_ID_DIGITS, text_of
from workspacefs.cli.writer_text import iter_writer_lines, process_documents
from workspacefs.tracing.blame import BlamedLine, Origin, iter_origins
from workspacefs.workspace.listing import TreeStore, find_path
from workspacefs.workspace.writers import writers_of

_NOT_COMMITTED = "not committed"


def blame_document(lines: Sequence[BlamedLine], store: TreeStore) -> dict[str, object]:
    """Return what --json says of lines: the commits, each once, with the processes that wrote to
    the file in it; and the lines.
    """
    return {
        "commits": [
            {**_origin_document(origin), "writers": writers_in(origin, store)}
            for origin in iter_origins(lines)
        ],
        "lines": [
            {
                "line": line.number,
                "commit": None if line.origin is None else line.origin.ref.id.hex(),
                "path": None if line.origin is None else text_of(line.origin.path),
                "line_then": None if line.origin is None else line.origin_number,
                "text": line.text.decode("utf-8", "surrogateescape"),
            }
            for line in lines
        ],
    }


def iter_blame_lines(lines: Sequence[BlamedLine]) -> Iterator[bytes]:
    """Yield a row for each line: commit, who, when, number, and the line itself."""
    labels = {origin.ref.id: _columns(origin) for origin in iter_origins(lines)}
    used = [at for at in range(_COLUMNS) if any(columns[at] for columns in labels.values())]
    widths = [max(len(columns[at]) for columns in labels.values()) for at in used]
    blank = sum(widths) + 2 * len(widths)
    number_width = len(str(lines[-1].number)) if lines else 0
    shown: dict[bytes, str] = {
        commit_id: "  ".join(
            (
                commit_id.hex()[:SHORT_ID_DIGITS],
                *(f"{columns[at]:<{width}}" for at, width in zip(used, widths, strict=True)),
            )
        )
        for commit_id, columns in labels.items()
    }
    missing = f"{_NOT_COMMITTED:<{SHORT_ID_DIGITS + blank}}"
    for line in lines:
        label = missing if line.origin is None else shown[line.origin.ref.id]
        head = f"{label}  {line.number:>{number_width}}) "
        yield head.encode("utf-8", "surrogateescape") + line.text + b"\n"


def writers_in(origin: Origin, store: TreeStore) -> list[dict[str, object]]:
    """Return the processes that wrote to a file in a commit, as the mount saw them."""
    writers = writers_of(origin.commit, store)
    if not writers.files:
        return []
    file_id = find_path(origin.commit.root, origin.path, store).file_id
    documents = dict(zip(writers.by_id(), process_documents(writers), strict=True))
    found = (documents[one] for one in writers.of_file(file_id) if one in documents)
    return [{**document, "parent": None} for document in found]


def iter_process_lines(lines: Sequence[BlamedLine], store: TreeStore) -> Iterator[str]:
    """Yield what tells, for each commit that wrote lines, which processes wrote to the file."""
    for origin in iter_origins(lines):
        processes = writers_in(origin, store)
        told = list(iter_writer_lines(processes, range(len(processes))))
        yield f"{origin.ref.id.hex()[:SHORT_ID_DIGITS]}  {text_of(origin.path)}"
        yield from told or ["          (nobody saw who wrote it)"]


_COLUMNS = 5


def _columns(origin: Origin) -> tuple[str, str, str, str, str]:
    who = origin.writer
    return (
        who.agent or who.author,
        who.session,
        who.run,
        who.tool_call,
        time_text(origin.commit.time_ns),
    )


def _origin_document(origin: Origin) -> dict[str, object]:
    document = commit_document(origin.ref, origin.commit)
    who = origin.writer
    given = {
        "author": who.author,
        "agent": who.agent,
        "session": who.session,
        "run": who.run,
        "tool_call": who.tool_call,
        "model": who.model,
        "host": who.host,
    }
    return {**document, **given}
