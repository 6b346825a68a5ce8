"""Proposals: decided once, whoever dies or is late; accepted ones are in the branch, once."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from tests.unit.files_workspace import FilesWorkspace
from tests.unit.merge_files import do
from tests.unit.stepped_backend import Crash, SteppedBackend
from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import (
    BusyError,
    MovedError,
    NotFoundError,
    RefusedError,
    UsageError,
    WorkspaceError,
)
from workspacefs.merge.deciding import Decided, accept, turn_down
from workspacefs.merge.landing import LandingMerge, Refusal
from workspacefs.merge.reviewing import review
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.entry import Entry
from workspacefs.objects.refs import Ref
from workspacefs.refs import RefKind
from workspacefs.refs.record import decode_ref, encode_ref
from workspacefs.statedir import StateDir
from workspacefs.trees.walk import iter_entries, walk
from workspacefs.workspace.ancestry import is_ancestor
from workspacefs.workspace.feed import Feed
from workspacefs.workspace.feed_position import Position
from workspacefs.workspace.history import iter_history
from workspacefs.workspace.land import land_commit
from workspacefs.workspace.operations import newest_operations, undo_operation
from workspacefs.workspace.proposals import (
    find_proposal,
    list_proposals,
    make_proposal,
)
from workspacefs.workspace.refusals import list_refusals
from workspacefs.workspace.workspace import Workspace

ANA = Provenance(author="ana@h", agent="")
BEN = Provenance(author="ben@h", agent="reviewer-2")
CODER = Provenance(author="x@sandbox", agent="coder-1", session="s", run="r7")


class Proposing:
    """A branch at "base", one commit more on it, and a proposal from before that."""

    def __init__(self, change: str = "write p 2; write d/x 2", other: str = "write o 2") -> None:
        self.inner = MemoryBackend(secrets.token_hex(8))
        self.made = FilesWorkspace(self.inner)
        self.workspace = self.made.workspace
        base, _ = self.made.begin("mkdir d; write f 1; write p 1; write o 1; write d/x 1")
        if other:
            self.land(other, base)
        self.files = self.made.files.fork(5000)
        do(self.files, change)
        self.head = self.made.commit(self.files, base, message="my work\nin detail")
        self.proposal = make_proposal(
            self.workspace, self.head, "main", message="it works now", who=CODER
        )
        self.id = self.proposal.id

    def land(self, program: str, base: Ref) -> None:
        files = self.made.files.fork(9000)
        do(files, program)
        self.made.land(self.made.commit(files, base)[0])

    def tip(self) -> tuple[Ref, Commit]:
        return self.workspace.resolve("main")

    def through(self) -> tuple[SteppedBackend, Workspace]:
        """Return the same workspace, reached by a store that a test can step through."""
        stepped = SteppedBackend(self.inner)
        return stepped, Workspace.open(stepped, clock=self.made.clock)

    def state(self) -> str:
        return find_proposal(self.workspace, self.id).stated.state

    def landings(self) -> int:
        """Return how often the proposal is in the branch: what was made for it, once at most."""
        commits = [commit for _, commit in iter_history([self.tip()], self.workspace.store)]
        return sum(dict(commit.meta).get("proposal") == self.id for commit in commits)

    def check(self, *, is_part: bool = False) -> None:
        """Raise unless the proposal says what is so."""
        proposal = find_proposal(self.workspace, self.id)
        store, backend = self.workspace.store, self.workspace.backend
        is_in = is_ancestor(self.head, self.tip(), store, backend) or self.landings() > 0
        assert self.landings() <= 1
        assert (proposal.stated.state == "accepted") == is_in
        if is_in and proposal.stated.decision is not None:
            result = proposal.stated.decision.result
            assert result is not None
            history = iter_history([self.tip()], store)
            assert result in {ref.id for ref, _ in history}


def accepted(outcome: Decided | Refusal) -> Decided:
    assert isinstance(outcome, Decided)
    return outcome


def actions(workspace: Workspace) -> list[tuple[str, str]]:
    return [(one.action, one.kind.value) for one in reversed(newest_operations(workspace, 99))]


def test_proposal_says_what_was_proposed() -> None:
    """Commit, branch, where they parted, who and why; found by id, by listing and as a revision."""
    one = Proposing()

    (listed,) = list_proposals(one.workspace)

    stated = listed.stated
    assert listed == find_proposal(one.workspace, one.id) == one.proposal
    assert (stated.branch, stated.who, stated.message) == ("main", CODER, "it works now")
    assert stated.base == one.head[1].parents[0].id
    assert one.workspace.resolve(one.id)[0] == one.head[0]
    assert actions(one.workspace)[-1] == ("propose", "proposal")
    heads = {ref.id for _, _, ref, _ in one.workspace.iter_heads()}
    assert one.head[0].id in heads
    with pytest.raises(NotFoundError, match=one.id):
        find_proposal(one.workspace, one.id[:-1] + ("0" if one.id[-1] != "0" else "1"))


def test_what_the_branch_has_is_not_proposed() -> None:
    """Nor what has no reason."""
    one = Proposing()
    base = one.workspace.resolve("main~1")

    with pytest.raises(RefusedError, match="nothing to propose"):
        make_proposal(one.workspace, base, "main", message="x", who=CODER)
    with pytest.raises(UsageError):
        make_proposal(one.workspace, one.head, "main", message=" ", who=CODER)


@pytest.mark.parametrize("other", ["write o 2", ""])
def test_accepted_proposal_is_a_merge_that_names_its_reviewer(other: str) -> None:
    """Also where the branch could just have moved forward."""
    one = Proposing(other=other)
    tip, _ = one.tip()

    decided = accepted(accept(one.workspace, one.id, reviewer=BEN, message="tried it"))

    ref, commit = one.tip()
    assert commit.parents == (tip, one.head[0])
    assert commit.message == f"accept {one.id} into main: it works now\n\ntried it"
    assert dict(commit.meta) == {"proposal": one.id, "reviewed-by": "ben@h"}
    assert commit.provenance == BEN
    assert (commit.changes.modified, commit.changes.added) == (2, 0)
    shown = one.made.show()
    assert (shown[b"p"], shown[b"d/x"]) == (b"2\n", b"2\n")
    assert shown[b"o"] == (b"2\n" if other else b"1\n")
    stated = decided.proposal.stated
    assert stated.decision is not None
    assert (stated.state, stated.claim, stated.decision.by) == ("accepted", None, "ben@h")
    assert (stated.decision.result, stated.decision.reason) == (ref.id, "tried it")
    assert actions(one.workspace)[-4:] == [
        ("propose", "proposal"), ("land", "branch"), ("claim", "proposal"), ("accept", "proposal"),
    ]  # fmt: skip
    with pytest.raises(MovedError, match="accepted by ben@h"):
        accept(one.workspace, one.id, reviewer=ANA)
    with pytest.raises(MovedError, match="accepted by ben@h"):
        turn_down(one.workspace, one.id, "reject", by=ANA, reason="no")


def test_proposal_for_a_branch_that_is_not_there_begins_it() -> None:
    """With the reviewer's commit on top of the proposed one."""
    one = Proposing()
    proposal = make_proposal(one.workspace, one.head, "new", message="m", who=CODER)

    accept(one.workspace, proposal.id, reviewer=BEN)

    _, commit = one.workspace.resolve("new")
    assert commit.parents == (one.head[0],)
    assert commit.root == one.head[1].root
    assert proposal.stated.base is None


@pytest.mark.parametrize(("action", "state"), [("reject", "rejected"), ("withdraw", "withdrawn")])
def test_proposal_is_turned_down_once(action: str, state: str) -> None:
    """It says who and why, lands no more, and its commit is still named."""
    one = Proposing()

    turn_down(one.workspace, one.id, action, by=BEN, reason="no tests")

    decision = find_proposal(one.workspace, one.id).stated.decision
    assert one.state() == state
    assert decision is not None
    assert (decision.by, decision.reason, decision.result) == ("ben@h", "no tests", None)
    with pytest.raises(MovedError, match="no tests"):
        accept(one.workspace, one.id, reviewer=ANA)
    assert one.made.show()[b"p"] == b"1\n"
    assert one.workspace.resolve(one.id)[0] == one.head[0]


def test_conflict_leaves_all_as_it_is() -> None:
    """Nothing lands, nothing is decided, nobody has it; review and watch tell of it."""
    one = Proposing(other="write p other")
    tip = one.tip()[0]

    outcome = accept(one.workspace, one.id, reviewer=BEN)

    assert isinstance(outcome, Refusal)
    assert [(c.kind.value, c.path) for c in outcome.conflicts] == [("content", b"p")]
    assert one.tip()[0] == tip
    assert find_proposal(one.workspace, one.id) == one.proposal
    (refused,) = list_refusals(one.workspace, after=0)
    assert (refused.name, refused.by, refused.agent) == (one.id, "ben@h", "reviewer-2")
    found = review(one.workspace, one.proposal)
    assert [c.path for c in found.conflicts] == [b"p"]
    ours = found.conflicts[0].ours
    assert ours is not None
    assert ours.entry.content == b"2\n"


def test_review_shows_what_would_land_and_stores_nothing() -> None:
    """Against where they parted: what else landed is no part of it."""
    one = Proposing()
    keys = [info.key for info in one.inner.iter_keys("")]

    found = review(one.workspace, one.proposal)

    assert [change.path for change in found.changes] == [b"d/x", b"p"]
    assert (found.conflicts, found.landed, found.tip) == ((), None, one.tip()[0].id)
    assert [info.key for info in one.inner.iter_keys("")] == keys


def test_proposal_that_landed_in_another_way_is_found_and_marked() -> None:
    """As a session's own landing does it; review says so, and whoever decides next is told."""
    one = Proposing()
    joining = LandingMerge(one.workspace, name="s", provenance=CODER)
    land_commit(one.workspace, one.head[0], "main", moved_by="x", join=joining.join)

    found = review(one.workspace, one.proposal)
    assert found.landed is not None
    assert one.state() == "open"
    with pytest.raises(MovedError, match="accepted"):
        turn_down(one.workspace, one.id, "reject", by=BEN, reason="no")

    assert one.state() == "accepted"
    one.check()


# -- part of it ----------------------------------------------------------------------------------


def part(one: Proposing, *paths: bytes) -> dict[bytes, bytes]:
    accepted(accept(one.workspace, one.id, reviewer=BEN, paths=paths))
    check_links(one.tip()[1].root, one.workspace)
    return one.made.show()


def check_links(root: Entry, workspace: Workspace) -> None:
    """Raise unless link counts of directories and totals are those of what is there."""
    for entry in [root, *(one for _, one in walk(root, workspace.store) if one.is_dir)]:
        below = list(iter_entries(entry.subtree, workspace.store))
        assert entry.nlink == 2 + sum(one.is_dir for one in below), entry.name
        totals = [one.totals() for one in below]
        assert entry.subtree.totals.files == sum(one.files for one in totals)


def test_part_for_a_branch_that_is_not_there_begins_it() -> None:
    """With that part of the tree, and no history."""
    one = Proposing()
    proposal = make_proposal(one.workspace, one.head, "new", message="m", who=CODER)

    accept(one.workspace, proposal.id, reviewer=BEN, paths=[b"d", b"p"])

    _, commit = one.workspace.resolve("new")
    assert one.made.show("new") == {b"d/x": b"2\n", b"p": b"2\n"}
    assert (commit.parents, commit.changes.added) == ((), 3)
    check_links(commit.root, one.workspace)


def test_part_that_the_branch_has_already_is_refused() -> None:
    """An empty commit would say that something was reviewed."""
    one = Proposing("write p 2; write d/x 2", other="write p 2")

    with pytest.raises(RefusedError, match="nothing would land"):
        accept(one.workspace, one.id, reviewer=BEN, paths=[b"p"])
    assert find_proposal(one.workspace, one.id) == one.proposal


def test_part_lands_alone_and_the_rest_can_land_later() -> None:
    """The commit has the branch as its only parent, so nothing takes the rest for merged."""
    one = Proposing("write p 2; write d/x 2; rm f; mkdir n; write n/new 1")
    tip = one.tip()[0]

    shown = part(one, b"d", b"n/new")

    assert shown == {
        b"d/x": b"2\n", b"f": b"1\n", b"n/new": b"1\n", b"o": b"2\n", b"p": b"1\n",
    }  # fmt: skip
    _, commit = one.tip()
    assert commit.parents == (tip,)
    assert dict(commit.meta) == {
        "proposal": one.id, "proposed-commit": one.head[0].id.hex(), "reviewed-by": "ben@h",
    }  # fmt: skip
    assert (commit.changes.added, commit.changes.modified) == (2, 1)
    decision = find_proposal(one.workspace, one.id).stated.decision
    assert decision is not None
    assert decision.paths == ("d", "n/new")
    again = make_proposal(one.workspace, one.head, "main", message="the rest", who=CODER)
    accept(one.workspace, again.id, reviewer=ANA)
    assert one.made.show() == {b"d/x": b"2\n", b"n/new": b"1\n", b"o": b"2\n", b"p": b"2\n"}


def test_part_is_merged_with_the_branch() -> None:
    """As any landing: with conflicts in it, and only those in it."""
    one = Proposing("write p 2; write d/x 2", other="write p other")
    assert isinstance(accept(one.workspace, one.id, reviewer=BEN, paths=[b"p"]), Refusal)

    shown = part(one, b"d/x")

    assert (shown[b"p"], shown[b"d/x"]) == (b"other\n", b"2\n")


@pytest.mark.parametrize(
    ("change", "paths", "error", "says"),
    [
        ("mv p d/p", [b"d"], RefusedError, "d/p and p"),
        ("mv p d/p", [b"p"], RefusedError, "p and d/p"),
        ("mv d e; write e/x 2", [b"e/x"], RefusedError, "d"),
        ("mv d e; write e/new 2", [b"e/new"], RefusedError, "e and d"),
        ("ln p d/p", [b"d"], RefusedError, "d/p and p"),
        ("rm p; mkdir p; write p/x 1", [b"p/x"], RefusedError, "p"),
        ("write p 2", [b"f"], NotFoundError, "f"),
        ("write p 2", [b"p", b"nowhere/at/all"], NotFoundError, "nowhere/at/all"),
    ],
)
def test_part_that_cannot_be_taken_apart_is_refused(
    change: str, paths: list[bytes], error: type[WorkspaceError], says: str
) -> None:
    """Renames and links across the border are named; nothing is lost or doubled by them."""
    one = Proposing(change)
    tip = one.tip()[0]

    with pytest.raises(error, match=says) as caught:
        accept(one.workspace, one.id, reviewer=BEN, paths=paths)
    assert caught.value.kind.startswith("selection.")

    assert one.tip()[0] == tip
    assert find_proposal(one.workspace, one.id) == one.proposal


@pytest.mark.parametrize(
    ("change", "paths", "expected"),
    [
        ("mv p d/p", [b"d", b"p"], {b"d/p": b"1\n", b"p": None}),
        ("mv d/x d/y; write p 2", [b"d"], {b"d/y": b"1\n", b"d/x": None, b"p": b"1\n"}),
        ("rm d; write p 2", [b"d"], {b"d/x": None, b"p": b"1\n"}),
        ("rm d; write p 2", [b"d/x"], {b"d/x": None, b"p": b"1\n"}),
        ("rm p; mkdir p; write p/x 1", [b"p"], {b"p": None, b"p/x": b"1\n"}),
        ("mkdir a/b; write a/b/c 1; write a/q 1", [b"a/b/c"], {b"a/b/c": b"1\n", b"a/q": None}),
    ],
)  # fmt: skip
def test_part_has_what_is_at_and_below_its_paths(
    change: str, paths: list[bytes], expected: dict[bytes, bytes | None]
) -> None:
    """Removals, new directories above, other kinds, renames within."""
    shown = part(Proposing(change), *paths)

    assert {path: shown.get(path) for path in expected} == expected


# -- crashes and races ---------------------------------------------------------------------------

Act = Callable[[Workspace, str], object]
PATHS = (b"d",)
ACTS: dict[str, Act] = {
    "accept": lambda w, i: accept(w, i, reviewer=ANA),
    "accept part": lambda w, i: accept(w, i, reviewer=ANA, paths=PATHS),
    "reject": lambda w, i: turn_down(w, i, "reject", by=ANA, reason="no"),
    "withdraw": lambda w, i: turn_down(w, i, "withdraw", by=ANA, reason="no"),
}
TAKE_OVERS: dict[str, Act] = {
    "accept": lambda w, i: accept(w, i, reviewer=BEN, takes_over=True),
    "accept part": lambda w, i: accept(w, i, reviewer=BEN, paths=PATHS, takes_over=True),
    "reject": lambda w, i: turn_down(w, i, "reject", by=BEN, reason="no", takes_over=True),
    "withdraw": lambda w, i: turn_down(w, i, "withdraw", by=BEN, reason="no", takes_over=True),
}


def writes_of(act: Act) -> int:
    """Return how many writes it takes."""
    one = Proposing()
    stepped, workspace = one.through()
    act(workspace, one.id)
    return stepped.writes


@pytest.mark.parametrize("first", ACTS)
@pytest.mark.parametrize("second", TAKE_OVERS)
def test_decision_that_was_cut_off_can_be_finished(first: str, second: str) -> None:
    """Killed before or after any write: the next one to decide finds what has landed, or decides;
    the proposal says what is so.
    """
    for at in range(1, writes_of(ACTS[first]) + 1):
        for is_after in (False, True):
            one = Proposing()
            stepped, workspace = one.through()

            def die(number: int, key: str, at: int = at) -> None:
                if number == at:
                    raise Crash

            setattr(stepped, "after" if is_after else "before", die)
            with pytest.raises(Crash):
                ACTS[first](workspace, one.id)
            review(one.workspace, find_proposal(one.workspace, one.id))
            try:
                TAKE_OVERS[second](one.workspace, one.id)
            except MovedError as exc:
                assert exc.kind == "proposal.decided"

            assert one.state() != "open"
            one.check()


@pytest.mark.parametrize("late", ["accept", "accept part"])
@pytest.mark.parametrize("second", TAKE_OVERS)
def test_slow_reviewer_never_lands_what_others_decided(late: str, second: str) -> None:
    """Somebody decides before any of their writes, taking over: one of the two is told, and what
    the proposal says is so.
    """
    for at in range(1, writes_of(ACTS[late]) + 1):
        check_overtaken(ACTS[late], TAKE_OVERS[second], at)


def check_overtaken(late: Act, second: Act, at: int) -> None:
    one = Proposing()
    stepped, workspace = one.through()
    told: list[str] = []

    def overtake(number: int, key: str) -> None:
        if number == at:
            stepped.before = lambda number, key: None
            try:
                second(one.workspace, one.id)
            except WorkspaceError as exc:
                told.append(str(exc))

    stepped.before = overtake
    try:
        late(workspace, one.id)
    except MovedError as exc:
        told.append(str(exc))

    one.check()
    assert one.state() != "open"
    assert len(told) <= 1
    history = {ref.id for ref, _ in iter_history([one.tip()], one.workspace.store)}
    moves = [op for op in newest_operations(one.workspace, 99) if op.action == "land"]
    assert {op.new for op in moves} <= history


@pytest.mark.parametrize("first", ["accept", "accept part"])
@pytest.mark.parametrize("second", TAKE_OVERS)
def test_landing_that_arrives_late_is_found_or_fails(first: str, second: str) -> None:
    """Sent by a process that is dead, it comes before any write of whoever takes over."""
    for at in range(1, 12):
        one = Proposing()
        stepped, workspace = one.through()
        stepped.before = die_at_branch
        with pytest.raises(Crash):
            ACTS[first](workspace, one.id)
        other, again = one.through()
        other.before = arriving(stepped, at)
        try:
            TAKE_OVERS[second](again, one.id)
        except MovedError as exc:
            assert exc.kind == "proposal.decided"

        assert one.state() != "open"
        one.check()


def die_at_branch(number: int, key: str) -> None:
    if key == "refs/branches/main":
        raise Crash


def arriving(late: SteppedBackend, at: int) -> Callable[[int, str], None]:
    def step(number: int, key: str) -> None:
        if number == at:
            late.under_way()

    return step


@pytest.mark.parametrize("second", ["accept", "reject"])
def test_claimed_proposal_is_not_decided_by_the_way(second: str) -> None:
    """Who has begun is named; nothing happens without saying so."""
    one = Proposing()
    stepped, workspace = one.through()

    stepped.before = die_at_branch
    with pytest.raises(Crash):
        accept(workspace, one.id, reviewer=ANA)

    with pytest.raises(BusyError, match=r"ana@h has begun to accept .* --take-over"):
        ACTS[second](one.workspace, one.id)
    assert one.made.show()[b"p"] == b"1\n"


def test_marking_that_was_missed_is_made_up_with_the_reviewers_name() -> None:
    """Who died between the landing and the mark is still the one who accepted it."""
    one = Proposing()
    stepped, workspace = one.through()

    stepped.after = die_at_branch
    with pytest.raises(Crash):
        accept(workspace, one.id, reviewer=ANA, paths=PATHS)
    found = review(one.workspace, find_proposal(one.workspace, one.id))
    assert found.landed is not None
    assert found.landed[0] == one.tip()[0]

    decided = accepted(accept(one.workspace, one.id, reviewer=BEN))

    assert decided.landed is not None
    assert not decided.landed.is_moved
    decision = decided.proposal.stated.decision
    assert decision is not None
    assert (decision.by, decision.paths) == ("ana@h", ("d",))
    one.check()


@pytest.mark.parametrize(("other", "is_landed"), [("write f 9", True), ("write p 9", False)])
def test_branch_that_moves_meanwhile_is_merged_again(other: str, is_landed: bool) -> None:
    """And what conflicts by then does not land; the claim is given back."""
    one = Proposing(other="")
    stepped, workspace = one.through()
    base = one.tip()[0]

    def land(number: int, key: str) -> None:
        if key == "refs/branches/main":
            stepped.before = lambda number, key: None
            one.land(other, base)

    stepped.before = land

    outcome = accept(workspace, one.id, reviewer=ANA)

    assert isinstance(outcome, Decided) == is_landed
    assert find_proposal(one.workspace, one.id).stated.claim is None
    assert one.made.show()[b"p"] == (b"2\n" if is_landed else b"9\n")
    assert (one.state() == "accepted") == is_landed


# -- as stored, and in the log -------------------------------------------------------------------


def test_proposals_ref_is_read_as_it_was_written() -> None:
    """With a claim, with a decision; a session's ref knows nothing of it."""
    one = Proposing()
    open_record = one.proposal.record
    accept(one.workspace, one.id, reviewer=BEN, message="ok", paths=PATHS)
    decided = find_proposal(one.workspace, one.id).record

    for record in (open_record, decided):
        assert decode_ref(encode_ref(record), key="k") == record
        assert b'"format":4' in encode_ref(record)
    main, _ = one.workspace.refs.get(RefKind.BRANCH, "main")
    assert b"proposal" not in encode_ref(main).replace(b"proposals", b"")


def test_decisions_are_told_and_not_undone(tmp_path: object) -> None:
    """By watch, without the claims; undo names what can be done."""
    one = Proposing()
    accept(one.workspace, one.id, reviewer=BEN)
    feed = Feed(one.workspace, Position(one.workspace.id))

    told = [(event.action, event.by) for event in feed.poll() if event.name == one.id]

    assert told == [("propose", "x@sandbox"), ("accept", "ben@h")]
    newest = next(
        operation
        for operation in newest_operations(one.workspace, 9)
        if operation.kind is RefKind.PROPOSAL
    )
    with pytest.raises(RefusedError, match="stays decided"):
        undo_operation(one.workspace, StateDir(str(tmp_path)), newest, moved_by="me")
