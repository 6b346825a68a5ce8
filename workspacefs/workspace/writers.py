"""Which processes wrote what of a commit: collected from layers, kept as its note `writers`.

The note names files by their ids, as layers do: so it is right for a file under any of its names,
for one that is gone (its id stands in the parent's tree), and after a merge. Form: docs/format.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from workspacefs.errors import IntegrityError
from workspacefs.ids import FileId
from workspacefs.layers.writers import (
    FileWriters,
    Process,
    ProcessId,
    SeenProcess,
    encode_file,
    encode_process,
    iter_files,
    iter_processes,
    process_id_of,
    process_key,
    writer_key,
)
from workspacefs.objects.commits import Commit
from workspacefs.objects.encoding import decode, encode, ints, malformed
from workspacefs.workspace.changes import PathChange
from workspacefs.workspace.listing import TreeStore
from workspacefs.workspace.masking import CUT
from workspacefs.workspace.notes import WRITERS, Note, read_note
from workspacefs.workspace.pending import Pending

START_KEY: Final = "workspacefs.start_ns"
"""Key in Commit.meta: when the first of its changes was seen; wall time, ns since 1970."""

FILES_MAX: Final = 1_000_000
PROCESSES_MAX_BYTES: Final = 8 << 20
_VERSION: Final = 1
_FILE_ID_END: Final = 1 << 63
_ANCESTORS: Final = 4
_SHORT_BYTES: Final = 200
_WHAT: Final = "the note about writers"


@dataclass(frozen=True, slots=True)
class Writers:
    """Who wrote what of one commit, as far as it was seen."""

    processes: tuple[SeenProcess, ...] = ()
    """Those that wrote, and what started them; `parent` of each is among them, or unknown."""
    files: Mapping[FileId, FileWriters] = field(default_factory=dict)
    left_out: int = 0
    """Changed files that were too many to be told of."""

    def first_ns(self) -> int | None:
        """Return when the first change was seen, or None: none was."""
        return min((seen.first_ns for seen in self.processes if seen.first_ns), default=None)

    def by_id(self) -> dict[ProcessId, SeenProcess]:
        """Return the processes by id."""
        return {process_id_of(seen.process): seen for seen in self.processes}

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a layer that says the same."""
        for process_id, seen in self.by_id().items():
            yield process_key(process_id), encode_process(seen)
        for file_id, writers in self.files.items():
            yield writer_key(file_id), encode_file(writers)

    def of_file(self, *file_ids: FileId) -> tuple[ProcessId, ...]:
        """Return the ids of the processes that changed any of these files, each once."""
        found = (self.files[one].processes for one in dict.fromkeys(file_ids) if one in self.files)
        return tuple(dict.fromkeys(process_id for ids in found for process_id in ids))

    def of_change(self, change: PathChange) -> tuple[ProcessId, ...]:
        """Return the ids of the processes that made one change of the commit."""
        entries = (change.new, change.old)
        return self.of_file(*(entry.file_id for entry in entries if entry is not None))


NOBODY: Final = Writers()


def collect_writers(pending: Pending) -> Writers:
    """Return who wrote what is uncommitted; files that came and went since the base are left out.

    The cost is that of the files that were changed.
    """
    seen = dict(iter_processes(pending.snapshots))
    files: dict[FileId, FileWriters] = {}
    left_out = 0
    for file_id, writers in iter_files(pending.snapshots):
        if writers.is_made and _is_gone(pending, file_id):
            continue
        if len(files) == FILES_MAX:
            left_out += 1
            continue
        files[file_id] = writers
    named = dict.fromkeys(one for writers in files.values() for one in writers.processes)
    kept = _with_ancestors(named, seen)
    return Writers(tuple(seen[process_id] for process_id in kept), files, left_out)


def writers_note(writers: Writers) -> bytes:
    """Return the content of the note; nothing: there is nobody to tell of."""
    if not writers.files:
        return b""
    processes = dict(writers.by_id())
    numbers = {process_id: number for number, process_id in enumerate(processes)}
    sets: dict[FileWriters, int] = {}
    flat: list[int] = []
    last = 0
    for file_id, found in sorted(writers.files.items()):
        flat += (file_id - last, sets.setdefault(found, len(sets)))
        last = file_id
    told = [
        [int(one.is_made), *(numbers[known] for known in one.processes if known in numbers)]
        for one in sets
    ]
    size = sum(len(part) for seen in processes.values() for part in seen.process.arguments)
    is_cut = size > PROCESSES_MAX_BYTES
    rows = [_process_row(seen, numbers, is_cut=is_cut) for seen in processes.values()]
    return encode([_VERSION, rows, told, flat, writers.left_out])


def start_of(writers: Writers) -> dict[str, str]:
    """Return what Commit.meta says of when work began; nothing, if nobody was seen."""
    first_ns = writers.first_ns()
    return {} if first_ns is None else {START_KEY: str(first_ns)}


def start_ns_of(commit: Commit) -> int | None:
    """Return when the first change of a commit was seen, or None: nobody saw it."""
    text = dict(commit.meta).get(START_KEY, "")
    return int(text) if text.isdecimal() else None


def notes_of(pending: Pending) -> dict[bytes, Note]:
    """Return the notes of uncommitted work: who wrote it."""
    return {WRITERS: writers_note(collect_writers(pending))}


def decode_writers(note: bytes) -> Writers:
    """Return what a note says.

    Raises:
        IntegrityError: It is malformed.
    """
    if not note:
        return NOBODY
    fields = decode(note, what=_WHAT)
    if fields[:1] != [_VERSION] or len(fields) != 5:
        raise malformed(_WHAT, "is of an unknown version")
    _, rows, sets, flat, left_out = fields
    if not (isinstance(rows, list) and isinstance(sets, list) and isinstance(flat, list)):
        raise malformed(_WHAT, "is no list of processes and files")
    if type(left_out) is not int:
        raise malformed(_WHAT, "has a malformed count")
    processes, ids = _processes_of(rows)
    known = [_set_of(one, ids) for one in sets]
    values = ints(flat, what=_WHAT)
    files: dict[FileId, FileWriters] = {}
    last = 0
    try:
        for step, number in zip(values[::2], values[1::2], strict=True):
            last += step
            if step <= 0 or number < 0 or last >= _FILE_ID_END:
                raise malformed(_WHAT, "has files out of order")
            files[FileId(last)] = known[number]
    except (ValueError, IndexError) as exc:
        raise malformed(_WHAT, "names processes that it does not have") from exc
    return Writers(tuple(processes), files, left_out)


def writers_of(commit: Commit, store: TreeStore) -> Writers:
    """Return who wrote what of a commit; nobody, if it was made where that is not seen.

    Raises:
        IntegrityError: The note is missing or malformed.
        UnavailableError: The store does not answer.
    """
    return decode_writers(read_note(commit.notes, WRITERS, store))


def _is_gone(pending: Pending, file_id: FileId) -> bool:
    row = pending.find_row(file_id)
    return row is None or row.nlink == 0


def _with_ancestors(
    named: Iterable[ProcessId], seen: Mapping[ProcessId, SeenProcess]
) -> dict[ProcessId, None]:
    kept: dict[ProcessId, None] = {}
    level = [one for one in named if one in seen]
    for _ in range(_ANCESTORS + 1):
        kept |= dict.fromkeys(level)
        parents = (seen[one].process.parent for one in level)
        level = [one for one in parents if one is not None and one in seen and one not in kept]
    return kept


def _process_row(
    seen: SeenProcess, numbers: Mapping[ProcessId, int], *, is_cut: bool
) -> list[object]:
    process = seen.process
    arguments = (
        [process.arguments[0][:_SHORT_BYTES], CUT]
        if is_cut and process.arguments
        else list(process.arguments)
    )
    parent = None if process.parent is None else numbers.get(process.parent)
    return [
        process.pid, process.start_ns, process.executable, arguments,
        process.tool_call, process.run, process.agent, parent, seen.first_ns,
    ]  # fmt: skip


def _processes_of(rows: list[object]) -> tuple[list[SeenProcess], list[ProcessId]]:
    """Return the processes of a note, and their ids, which say what their parents are."""
    facts = [_facts_of(row, len(rows)) for row in rows]
    found: list[Process | None] = [None] * len(rows)
    for number in range(len(facts)):
        chain = [number]
        while (above := facts[chain[-1]][1]) is not None and found[above] is None:
            if above in chain:
                raise malformed(_WHAT, "has a process that started itself")
            chain.append(above)
        for one in reversed(chain):
            process, above, _ = facts[one]
            parent = None if above is None else found[above]
            found[one] = process._replace(parent=None if parent is None else process_id_of(parent))
    processes = [one for one in found if one is not None]
    seen = [
        SeenProcess(process, first_ns)
        for process, (_, _, first_ns) in zip(processes, facts, strict=True)
    ]
    return seen, [process_id_of(process) for process in processes]


def _facts_of(row: object, count: int) -> tuple[Process, int | None, int]:
    if not isinstance(row, list) or len(row) != 9:
        raise malformed(_WHAT, "has a malformed process")
    pid, start_ns, executable, arguments, tool_call, run, agent, parent, first_ns = row
    ints((pid, start_ns, first_ns), what=_WHAT)
    if (
        not isinstance(executable, bytes)
        or not isinstance(arguments, list)
        or not all(isinstance(one, bytes) for one in arguments)
        or not all(isinstance(one, str) for one in (tool_call, run, agent))
        or not (parent is None or (type(parent) is int and 0 <= parent < count))
    ):
        raise malformed(_WHAT, "has a malformed process")
    process = Process(pid, start_ns, executable, tuple(arguments), tool_call, run, agent)
    return process, parent, first_ns


def _set_of(value: object, ids: list[ProcessId]) -> FileWriters:
    if not isinstance(value, list) or not value:
        raise malformed(_WHAT, "has malformed processes of a file")
    made, *numbers = ints(value, what=_WHAT)
    if made not in (0, 1) or not all(0 <= number < len(ids) for number in numbers):
        raise IntegrityError(
            f"{_WHAT} names processes that it does not have", kind="object.malformed"
        )
    return FileWriters(bool(made), tuple(ids[number] for number in numbers))
