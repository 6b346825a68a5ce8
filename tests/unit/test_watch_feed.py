"""A feed of what happens to refs: each thing once, in order, wherever it stops and goes on."""

from __future__ import annotations

import os
import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count

import pytest

from tests.unit.files_workspace import SECOND_NS, FilesWorkspace, SkewedClock
from tests.unit.recording_backend import RecordingBackend, kinds_of
from workspacefs.backend.memory import MemoryBackend
from workspacefs.cli.event_text import event_document, event_line
from workspacefs.cli.pace import LONGEST_S, SHORTEST_S, Pace
from workspacefs.errors import IntegrityError, UnavailableError, UsageError
from workspacefs.ids import CommitId
from workspacefs.merge.landing import LandingMerge
from workspacefs.objects.commits import Provenance
from workspacefs.refs import Lease, Moved, RefKind, RefRecord, SessionRecord
from workspacefs.statedir import StateDir, ensure_state_dir
from workspacefs.testing.faulty import FaultyBackend
from workspacefs.workspace.feed import Event, Feed
from workspacefs.workspace.feed_position import Position, decode_position
from workspacefs.workspace.land import land_commit
from workspacefs.workspace.operation_log import newest_operations
from workspacefs.workspace.operations import undo_operation
from workspacefs.workspace.publish import RefMove, log_move, make_move, plan_move
from workspacefs.workspace.refusals import list_refusals
from workspacefs.workspace.session_deletion import delete_session
from workspacefs.workspace.sessions import open_session
from workspacefs.workspace.workspace import Workspace

RUNS = 300 if os.environ.get("WORKSPACEFS_TEST_EFFORT") == "full" else 40
HOUR_NS = 3600 * SECOND_NS
_NUMBERS = count()


class World:
    """Machines whose clocks are hours apart, that move refs of one store."""

    def __init__(self, backend: object = None, machines: int = 3) -> None:
        self.backend = backend or MemoryBackend(secrets.token_hex(8))
        self.clocks = [SkewedClock((500_000 + 5000 * n) * SECOND_NS) for n in range(machines)]
        first = Workspace.create(self.backend, clock=self.clocks[0])  # type: ignore[arg-type]
        others = [
            Workspace.open(self.backend, clock=clock)  # type: ignore[arg-type]
            for clock in self.clocks[1:]
        ]
        self.machines = [first, *others]

    def move(
        self, name: str, machine: int = 0, *, kind: RefKind = RefKind.BRANCH, action: str = "land"
    ) -> str:
        """Move a ref as its log says; return the operation's id."""
        workspace = self.machines[machine]
        found = workspace.refs.find(kind, name)
        record, version = found or (None, None)
        session = None if record is None else record.session
        move = RefMove(
            kind=kind, name=name, expected=version, previous=record, action=action,
            moved_by=f"m{machine}", session=session,
        )  # fmt: skip
        planned = plan_move(workspace, None, move)
        log_move(workspace, planned)
        assert isinstance(make_move(workspace, planned, RefRecord()), Moved)
        return planned.write_id

    def leave_entry(self, name: str, machine: int) -> None:
        """Log a move that never takes place, as a crash does."""
        workspace = self.machines[machine]
        found = workspace.refs.find(RefKind.BRANCH, name)
        record, version = found or (None, None)
        move = RefMove(
            kind=RefKind.BRANCH, name=name, expected=version, previous=record, action="land",
            moved_by="nobody",
        )  # fmt: skip
        log_move(workspace, plan_move(workspace, None, move))

    def feed(self, position: Position | None = None, *names: str) -> Feed:
        return Feed(self.machines[0], position, names=names)

    def resumed(self, feed: Feed, *names: str) -> Feed:
        """Return a feed in another process that goes on where this one is."""
        text = feed.position.encode()
        position = decode_position(text, workspace_id=self.machines[0].id, names=names)
        return Feed(self.machines[0], position, names=names)


def start(world: World) -> Feed:
    """Return a feed of all that ever happened."""
    return world.feed(Position(world.machines[0].id))


def operations(events: list[Event]) -> list[str]:
    """Return which moves were told."""
    assert all(event.operation is not None for event in events)
    return [event.operation.id for event in events if event.operation is not None]


@pytest.mark.parametrize("seed", range(RUNS))
def test_every_move_is_told_once_and_in_order(seed: int) -> None:
    """Clocks that are hours apart, entries of moves that never were, watchers that stop anywhere
    and go on from text: what is told of each branch is just what it went through.
    """
    rng = random.Random(seed)
    world = World()
    names = ["main", "a", "a/b"]
    happened: dict[str, list[str]] = {name: [] for name in names}
    told: list[Event] = []
    feed = start(world)
    for _ in range(60):
        name, machine = rng.choice(names), rng.randrange(3)
        if rng.random() < 0.3:
            world.leave_entry(name, machine)
        else:
            happened[name].append(world.move(name, machine))
        if rng.random() < 0.2:
            stop = rng.choice([1, 2, None])
            for number, event in enumerate(feed.poll(), 1):
                told.append(event)
                if number == stop:
                    break
            if stop is not None or rng.random() < 0.5:
                feed = world.resumed(feed)
    told += feed.poll()

    for name in names:
        assert operations([event for event in told if event.name == name]) == happened[name]
    assert list(feed.poll()) == list(world.resumed(feed).poll()) == []


def test_feed_begins_with_what_happens_next() -> None:
    """Without a position nothing of the past is told; not even to whoever goes on from there."""
    world = World()
    world.move("main")
    feed = world.feed()

    assert list(feed.poll()) == []
    first = world.move("main")
    other = world.resumed(feed)
    assert operations(list(feed.poll())) == operations(list(other.poll())) == [first]


def test_event_tells_who_and_what(tmp_path: object) -> None:
    """From the log, and of the newest commit from the ref itself."""
    made = FilesWorkspace()
    feed = Feed(made.workspace, Position(made.workspace.id))
    ref, _ = made.begin("write f 1")

    (event,) = feed.poll()

    (operation,) = newest_operations(made.workspace, 9)
    assert (event.operation, event.new, event.old) == (operation, ref.id, None)
    document = event_document(event, feed.position.encode())
    commit = document["commit"]
    assert isinstance(commit, dict)
    assert (document["event"], document["by"], commit["agent"]) == ("land", "a@h", "bot")
    assert event_line(event).endswith(f"(none) -> {ref.id.hex()[:12]}, by a@h (bot): base")


def test_quiet_round_reads_no_ref_and_another_only_what_moved() -> None:
    """A round is a listing of each kind and of refusals; then one read, and its entry."""
    backend = RecordingBackend()
    world = World(backend)
    for number in range(30):
        world.move(f"b{number}")
    feed = world.feed()
    list(feed.poll())

    with backend.recorded() as quiet:
        assert list(feed.poll()) == []
    world.move("b7")
    with backend.recorded() as moved:
        assert len(list(feed.poll())) == 1

    lists = ["list conflicts", *["list refs"] * len(RefKind)]
    assert kinds_of(quiet) == lists
    assert kinds_of(moved) == sorted([*lists, "get refs", "list ops", "get ops"])


def new_session(world: World, name: str = "s") -> None:
    open_session(world.machines[0], name, branch="main", owner="me")


def rewrite(world: World, name: str = "s", **members: object) -> None:
    """Change a session as leases, saves and policies do: in no log."""
    refs = world.machines[0].refs
    record, version = refs.get(RefKind.SESSION, name)
    assert record.session is not None
    session: SessionRecord = replace(record.session, **members)  # type: ignore[arg-type]
    new = replace(record, write_id="", session=session)
    assert isinstance(
        refs.compare_and_swap(RefKind.SESSION, name, expected=version, new=new), Moved
    )


def actions(feed: Feed) -> list[tuple[str, str]]:
    return [(event.action, event.name) for event in feed.poll()]


LEASE = Lease(saver="x", host="h", since_ns=1)


def test_session_writes_that_move_nothing_are_not_told() -> None:
    """Leases and the like; what the log has behind them is, once."""
    world = World()
    feed = world.feed()
    list(feed.poll())
    new_session(world)
    assert actions(feed) == [("begin", "s")]

    rewrite(world, lease=LEASE)
    assert actions(feed) == []
    world.move("s", kind=RefKind.SESSION, action="commit")
    world.move("s", kind=RefKind.SESSION, action="commit")
    assert actions(world.resumed(feed)) == [("commit", "s")] * 2
    assert actions(feed) == [("commit", "s")] * 2
    rewrite(world, state="archived")
    assert actions(feed) == [("state", "s")]
    assert actions(feed) == []
    rewrite(world, state="open")
    rewrite(world, lease=LEASE)
    world.move("s", kind=RefKind.SESSION, action="commit")
    assert actions(feed) == [("commit", "s")]


def test_what_no_log_tells_is_told_as_from_where_to_where() -> None:
    """A commit that was covered by a lease between two looks: both ends, and nobody's name."""
    made = FilesWorkspace()
    workspace = made.workspace
    base, _ = made.begin("write f 1")
    session, _ = open_session(workspace, "s", branch="main", owner="me")
    feed = Feed(workspace, None)
    list(feed.poll())
    ref, commit = made.commit(made.files, base)
    assert land_commit(workspace, ref, "other", moved_by="me")
    other, _ = workspace.refs.get(RefKind.BRANCH, "other")
    for lease in (None, LEASE):
        new = replace(
            other, write_id="", moved_by="x", session=replace(session.session, lease=lease)
        )
        _, version = workspace.refs.get(RefKind.SESSION, "s")
        workspace.refs.compare_and_swap(RefKind.SESSION, "s", expected=version, new=new)
    del commit

    told = [event for event in feed.poll() if event.kind is RefKind.SESSION]

    assert [(one.action, one.old, one.new, one.by) for one in told] == [
        ("move", base.id, ref.id, "")
    ]
    assert told[0].operation is None
    assert told[0].record is not None


def test_deleted_session_is_told_once_and_may_come_back(tmp_path: object) -> None:
    """Gravestones are kept as marks; undoing a deletion is told, too."""
    world = World()
    workspace = world.machines[0]
    state = StateDir(str(tmp_path) + "/state")
    ensure_state_dir(state)
    feed = world.feed()
    list(feed.poll())
    new_session(world)
    new_session(world, "t")
    list(feed.poll())
    delete_session(workspace, state, "s", deleted_by="me", is_forced=False)
    assert actions(feed) == [("delete", "s")]
    feed = world.resumed(feed)
    assert actions(feed) == []
    assert set(feed.position.refs) == {(RefKind.SESSION, "t")}

    (deletion,) = newest_operations(workspace, 1)
    undo_operation(workspace, state, deletion, moved_by="me")

    assert actions(feed) == [("undo", "s")]
    rewrite(world, "t", state="deleted")
    new_session(world, "u")
    rewrite(world, "u", state="deleted")
    assert actions(feed) == [("state", "t")]


def test_ref_that_is_gone_is_told() -> None:
    """Nothing in the store says who took it."""
    world = World()
    world.move("main")
    feed = world.feed()
    list(feed.poll())

    world.machines[0].refs.delete(RefKind.BRANCH, "main")

    assert actions(world.resumed(feed)) == actions(feed) == [("remove", "main")]
    assert actions(feed) == []


def test_only_wanted_names_are_told_and_read() -> None:
    """By pattern; a position is good for the same patterns only."""
    backend = RecordingBackend()
    world = World(backend)
    feed = world.feed(None, "agent-*", "main")
    list(feed.poll())
    for name in ("agent-1", "other", "main"):
        world.move(name)

    with backend.recorded() as requests:
        told = sorted(actions(feed))

    assert told == [("land", "agent-1"), ("land", "main")]
    assert not any("other" in request.key for request in requests)
    assert actions(world.resumed(feed, "main", "agent-*")) == []
    with pytest.raises(UsageError, match="--ref agent-\\* --ref main"):
        world.resumed(feed, "main")


@pytest.mark.parametrize("text", ["", "x", "start!", "AAAA", "eJwDAAAAAAE"])
def test_text_that_is_no_position_is_refused(text: str) -> None:
    """So is a position of another workspace."""
    world = World()
    with pytest.raises(UsageError, match="no position"):
        decode_position(text, workspace_id=world.machines[0].id, names=())
    with pytest.raises(UsageError, match="another workspace"):
        decode_position(start(World()).position.encode(), workspace_id="0", names=())


def test_error_half_way_loses_nothing() -> None:
    """The store goes away between two reads; the next round tells all that is left, once."""
    inner = MemoryBackend(secrets.token_hex(8))
    backend = FaultyBackend(inner)
    world = World(backend)
    feed = start(world)
    moves = [world.move(name) for name in ("a", "b", "a", "b")]
    told: list[Event] = []
    failures = 0
    for _ in range(20):
        backend.lose_reads = 1 if failures < 6 else 0
        try:
            told += feed.poll()
            break
        except UnavailableError:
            failures += 1

    assert failures
    assert sorted(operations(told)) == sorted(moves)


def clash(made: FilesWorkspace, base: object, name: str) -> LandingMerge:
    """Try to land what is in conflict with main."""
    files = made.files.fork(5000)
    files.write(b"f", name.encode() + b"\n")
    ref, _ = made.commit(files, base, name=name)  # type: ignore[arg-type]
    joining = LandingMerge(
        made.workspace, name=name, provenance=Provenance(author="a@h", agent="bot")
    )
    assert land_commit(made.workspace, ref, "main", moved_by="a@h", join=joining.join) is None
    return joining


def test_refused_landing_is_told_with_its_conflicts() -> None:
    """It moves nothing, and is in no log of moves; whoever watches hears of it once."""
    made = FilesWorkspace()
    base, _ = made.begin("write f 1; write g 1")
    files = made.files.fork(9000)
    files.write(b"f", b"theirs\n")
    made.land(made.commit(files, base)[0])
    feed = Feed(made.workspace, None)
    list(feed.poll())
    before = newest_operations(made.workspace, 99)

    clash(made, base, "one")
    (event,) = feed.poll()

    refused = event.refused
    assert refused is not None
    assert (event.action, event.name, event.old) == ("conflict", "main", event.new)
    assert (refused.name, refused.conflicts, refused.count) == ("one", (("content", b"f"),), 1)
    assert "of one, by a@h: 1 conflict: f" in event_line(event)
    assert list(feed.poll()) == list(Feed(made.workspace, None).poll()) == []
    assert newest_operations(made.workspace, 99) == before


def test_refusals_are_numbered_without_gaps_whoever_writes_them() -> None:
    """Eight at once, one of them just before another; who has come to a number has missed none."""
    backend = FaultyBackend(MemoryBackend(secrets.token_hex(8)))
    made = FilesWorkspace(backend)
    base, _ = made.begin("write f 1")
    files = made.files.fork(9000)
    files.write(b"f", b"theirs\n")
    made.land(made.commit(files, base)[0])

    backend.before_write = partial(clash, made, base, "first")
    clash(made, base, "second")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: clash(made, base, f"s{n}"), range(6)))

    numbers = [one.number for one in list_refusals(made.workspace, after=0)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) == 8
    assert [one.number for one in list_refusals(made.workspace, after=6)] == [7, 8]


def test_refusal_that_cannot_be_noted_is_refused_all_the_same() -> None:
    """The log of refusals is a courtesy; conflicts are told to whoever wants to land."""
    backend = FaultyBackend(MemoryBackend(secrets.token_hex(8)))
    made = FilesWorkspace(backend)
    base, _ = made.begin("write f 1")
    files = made.files.fork(9000)
    files.write(b"f", b"theirs\n")
    made.land(made.commit(files, base)[0])
    backend.lose_requests = 1

    joining = clash(made, base, "s")

    assert joining.refusal is not None
    assert len(joining.refusal.conflicts) == 1
    assert list_refusals(made.workspace, after=0) == []


def test_damaged_refusal_is_damage() -> None:
    """Not an end of the log."""
    world = World()
    world.machines[0].backend.put("conflicts/999999999999", [b"{}"])

    with pytest.raises(IntegrityError):
        list(start(world).poll())


def test_pace_goes_down_while_nothing_happens() -> None:
    """From half a second to five, and back at once; a given interval stays."""
    pace = Pace(None)
    waits = [pace.next_wait_s(is_quiet=True) for _ in range(12)]

    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_S
    assert pace.next_wait_s(is_quiet=False) == SHORTEST_S
    assert Pace(2.0).next_wait_s(is_quiet=True) == 2.0


def test_commit_ids_survive_the_text_of_a_position() -> None:
    """What was told last is there to be compared with."""
    made = FilesWorkspace()
    ref, _ = made.begin("write f 1")
    feed = Feed(made.workspace, None)
    list(feed.poll())

    text = feed.position.encode()

    found = decode_position(text, workspace_id=made.workspace.id, names=())
    assert found == feed.position
    assert found.refs[RefKind.BRANCH, "main"].commit == CommitId(ref.id)
