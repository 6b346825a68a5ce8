"""What happens to the refs of a workspace, as a feed that goes on exactly where it stopped.

Nothing is skipped and nothing is told twice, whatever clocks say: of each ref the position has the
write that was told last, and what the ref holds now is followed back to that (operation_chain.py).
Where writes are in no log, all that is told is what the ref was at and what it is at. Across refs
the order is by time, which is for people.

Requests of each round: a listing of each kind of refs and one of the refused landings, all at the
same time; for refs that have changed a read each, and what following them takes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final

from workspacefs.backend.rounds import iter_answers
from workspacefs.ids import CommitId
from workspacefs.refs import RefKind, RefRecord
from workspacefs.workspace.feed_position import Position, RefName, Told, write_mark
from workspacefs.workspace.operation_chain import Chains
from workspacefs.workspace.operation_log import Operation
from workspacefs.workspace.refusals import RefusedLanding, list_refusals, newest_number
from workspacefs.workspace.workspace import Workspace

_SILENT: Final = frozenset(("settle", "claim"))
"""Moves after which the ref says what it said before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that took place."""

    action: str
    """Of the operation log: "commit", "land", "import" …; or of no log: "begin", "move", "state",
    "remove", "conflict"."""
    kind: RefKind
    name: str
    old: CommitId | None
    new: CommitId | None
    time_ns: int | None
    """Wall time of whoever did it, for people; None: not known."""
    by: str
    """Empty: not known."""
    operation: Operation | None = None
    """None: the log does not tell of it."""
    record: RefRecord | None = None
    """What the ref holds, if that is what the event led to."""
    refused: RefusedLanding | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """What brings the position on."""

    event: Event | None
    apply: Callable[[], None]
    time_ns: int


class Feed:
    """Tells what happens to the refs of a workspace.

    Args:
        workspace: Which.
        position: Where to go on; changed as events are told. None: with what happens from the
            first call of `poll` on.
        names: Patterns (fnmatch) of the names that are wanted; none: all.
    """

    def __init__(
        self, workspace: Workspace, position: Position | None, *, names: Iterable[str] = ()
    ) -> None:
        self._workspace = workspace
        self._names = tuple(sorted(set(names)))
        self._is_new = position is None
        self._states: dict[RefName, str] = {}
        self._chains = Chains(workspace)
        self.position = position or Position(workspace.id, self._names)

    def poll(self) -> Iterator[Event]:
        """Yield what happened since the position; that is behind an event when it is yielded.

        Stopping anywhere, also by an error, loses nothing: ask again.

        Raises:
            IntegrityError: A ref, or an entry of the log, is damaged.
            UnavailableError: The store does not answer.
        """
        self._chains.forget()
        listed, newest = self._list()
        if self._is_new:
            self.position.refused = newest
        queues = [self._refusals(newest)]
        gone = [ref for ref in self.position.refs if ref not in listed]
        changed = [
            ref for ref, state in listed.items() if state is None or state != self._states.get(ref)
        ]
        found = iter_answers(
            self._workspace.backend,
            lambda ref: self._workspace.refs.find(*ref),
            [*gone, *changed],
        )
        for ref, value in zip([*gone, *changed], found, strict=True):
            record = None if value is None else value[0]
            if self._is_new and record is not None:
                self._note(ref, record)
            else:
                queues.append(self._steps(ref, record))
        self._is_new = False
        for step in _in_order(queues):
            step.apply()
            if step.event is not None:
                yield step.event
        self._states = {ref: state for ref, state in listed.items() if state is not None}

    # -- looking -----------------------------------------------------------------------------

    def _list(self) -> tuple[dict[RefName, str | None], int]:
        refs = self._workspace.refs

        def list_one(kind: RefKind | None) -> dict[RefName, str | None] | int:
            if kind is None:
                return newest_number(self._workspace)
            return {
                (kind, name): state
                for name, state in refs.iter_states(kind)
                if self._is_wanted(name)
            }

        listed: dict[RefName, str | None] = {}
        newest = 0
        for answer in iter_answers(self._workspace.backend, list_one, [None, *RefKind]):
            if isinstance(answer, int):
                newest = answer
            else:
                listed |= answer
        return listed, newest

    def _is_wanted(self, name: str) -> bool:
        return not self._names or any(fnmatchcase(name, pattern) for pattern in self._names)

    # -- telling -----------------------------------------------------------------------------

    def _refusals(self, newest: int) -> list[_Step]:
        if newest == self.position.refused:
            return []
        refused = list_refusals(self._workspace, after=self.position.refused)
        return [self._refusal(one) for one in refused]

    def _refusal(self, refused: RefusedLanding) -> _Step:
        def apply() -> None:
            self.position.refused = refused.number

        event = None
        if self._is_wanted(refused.branch) or self._is_wanted(refused.name):
            event = Event(
                action="conflict",
                kind=RefKind.BRANCH,
                name=refused.branch,
                old=refused.tip,
                new=refused.tip,
                time_ns=refused.time_ns,
                by=refused.by,
                refused=refused,
            )
        return _Step(event, apply, refused.time_ns)

    def _steps(self, ref: RefName, record: RefRecord | None) -> list[_Step]:
        told = self.position.refs.get(ref)
        if record is None:
            return [] if told is None else [self._removed(ref, told)]
        chain = self._chains.follow(
            ref[0], record, lambda write_id: self.position.is_told(ref, write_id)
        )
        events: list[tuple[Event | None, Told | None]] = []
        first = chain.operations[0].old if chain.operations else record.commit_id
        if not chain.is_whole:
            # What led to the first of them is in no log.
            event = _unlogged(ref, record, told, first, is_all=not chain.operations)
            mark = b"" if told is None else told.write
            events.append((event, Told(mark, first, "") if chain.operations else None))
        for operation in chain.operations:
            events.append((_logged(operation), Told(write_mark(operation.id), operation.new, "")))
        return self._applied(ref, record, events)

    def _applied(
        self,
        ref: RefName,
        record: RefRecord,
        events: Sequence[tuple[Event | None, Told | None]],
    ) -> list[_Step]:
        steps = []
        for number, (event, told) in enumerate(events):
            is_last = number + 1 == len(events)

            def apply(told: Told | None = told, is_last: bool = is_last) -> None:
                if is_last or told is None:
                    self._note(ref, record)
                else:
                    self.position.refs[ref] = told

            if is_last and event is not None:
                event = _with_record(event, record)
            time_ns = None if event is None else event.time_ns
            steps.append(_Step(event, apply, time_ns or record.moved_at_ns))
        return steps

    def _removed(self, ref: RefName, told: Told) -> _Step:
        def apply() -> None:
            del self.position.refs[ref]

        event = Event(
            action="remove", kind=ref[0], name=ref[1], old=told.commit, new=None, time_ns=None,
            by="",
        )  # fmt: skip
        return _Step(event, apply, 0)

    def _note(self, ref: RefName, record: RefRecord) -> None:
        """Have told all that led to what a ref holds."""
        if record.session is not None and record.session.is_deleted:
            self.position.note_ended(ref, record.write_id)
            return
        self.position.refs[ref] = Told(
            write_mark(record.write_id), record.commit_id, _state_of(record)
        )


def _logged(operation: Operation) -> Event | None:
    if operation.action in _SILENT:
        return None
    return Event(
        action=operation.action,
        kind=operation.kind,
        name=operation.name,
        old=operation.old,
        new=operation.new,
        time_ns=operation.time_ns,
        by=operation.by,
        operation=operation,
    )


def _unlogged(
    ref: RefName, record: RefRecord, told: Told | None, at: CommitId | None, *, is_all: bool
) -> Event | None:
    """Return what can be told of writes that are in no log; None: nothing, or nothing that counts.

    Args:
        ref: Which.
        record: What it holds now.
        told: What was told last.
        at: The commit that those writes brought it to.
        is_all: Whether that is what it holds now.
    """
    session = record.session
    action, old, time_ns, by = "move", None if told is None else told.commit, None, ""
    if told is None:
        if session is not None and session.is_deleted:
            return None  # begun and deleted meanwhile, or a gravestone that was written anew
        action = "begin"
        if session is not None:
            time_ns, by = session.created_ns, session.owner
    elif at == told.commit:
        if not is_all or not told.state or told.state == _state_of(record):
            return None
        action = "state"
    return Event(
        action=action, kind=ref[0], name=ref[1], old=old, new=at, time_ns=time_ns, by=by
    )  # fmt: skip


def _with_record(event: Event, record: RefRecord) -> Event:
    return replace(event, record=record) if event.new == record.commit_id else event


def _state_of(record: RefRecord) -> str:
    return "" if record.session is None else record.session.state


def _in_order(queues: Iterable[Sequence[_Step]]) -> Iterator[_Step]:
    """Yield the steps of all queues, each queue in its own order, else by time."""
    waiting = [(queue[0].time_ns, number, 0, queue) for number, queue in enumerate(queues) if queue]
    heapq.heapify(waiting)
    while waiting:
        _, number, at, queue = waiting[0]
        yield queue[at]
        if at + 1 < len(queue):
            heapq.heapreplace(waiting, (queue[at + 1].time_ns, number, at + 1, queue))
        else:
            heapq.heappop(waiting)
