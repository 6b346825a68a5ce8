"""Branches and tags are made, deleted and renamed; all can be undone, and races lose nothing."""

from __future__ import annotations

import secrets
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from workspacefs.backend.contract import Version
from workspacefs.backend.memory import MemoryBackend
from workspacefs.clock import SystemClock
from workspacefs.errors import (
    BusyError,
    MovedError,
    NotFoundError,
    RefusedError,
    UsageError,
    WorkspaceError,
)
from workspacefs.ids import FileId
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.refs import Moved, RefKind, RefRecord
from workspacefs.statedir import StateDir, ensure_state_dir
from workspacefs.workspace.branch_renaming import rename_branch
from workspacefs.workspace.branches import create_ref, delete_ref, list_refs, record_of
from workspacefs.workspace.land import land_commit
from workspacefs.workspace.operations import (
    find_operation,
    newest_operations,
    undo_operation,
)
from workspacefs.workspace.publish import seal_commit
from workspacefs.workspace.session_deletion import delete_session
from workspacefs.workspace.sessions import open_session
from workspacefs.workspace.workspace import Workspace

BRANCH, TAG, SESSION = RefKind.BRANCH, RefKind.TAG, RefKind.SESSION
ROOT = Entry(b"", stat.S_IFDIR | 0o755, 0, 0, 0, 1, 2, FileId(1), 2, Subtree())


class RacingBackend(MemoryBackend):
    """Lets somebody else in just before a value is replaced or begun."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.races: dict[str, Callable[[], object]] = {}
        """What happens once, by key."""

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        self.races.pop(key, lambda: None)()
        return super().put_if_absent(key, data)

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        self.races.pop(key, lambda: None)()
        return super().put_if_version(key, data, version)


class Store:
    """A workspace, with the least that makes commits in it."""

    def __init__(self, directory: Path) -> None:
        self.backend = RacingBackend(secrets.token_hex(8))
        self.workspace = Workspace.create(self.backend)
        self.state = StateDir(str(directory / "state"))
        ensure_state_dir(self.state)
        self.one = self.commit("one")
        self.two = self.commit("two", self.one)
        self.land("main", self.two)

    def commit(self, message: str, *parents: Ref) -> Ref:
        """Store a commit that no ref leads to."""
        made = Commit(root=ROOT, parents=parents, message=message, time_ns=SystemClock().now_ns())
        return seal_commit(self.workspace.new_writer(is_small=True), made).ref

    def land(self, branch: str, ref: Ref) -> None:
        """Move a branch forward."""
        land_commit(self.workspace, ref, branch, moved_by="them")

    def create(self, kind: RefKind, name: str, ref: Ref) -> bool:
        """Make a branch or tag; tell whether it is new."""
        return create_ref(self.workspace, kind, name, ref, created_by="me").is_new

    def delete(self, kind: RefKind, name: str, *, is_forced: bool = False) -> RefRecord:
        """Delete one."""
        return delete_ref(self.workspace, kind, name, deleted_by="me", is_forced=is_forced)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a branch."""
        rename_branch(self.workspace, name, new_name, renamed_by="me")

    def undo(self, number: int = 0) -> RefRecord:
        """Undo the newest operation, or the one before."""
        operation = newest_operations(self.workspace, 100)[number]
        return undo_operation(self.workspace, self.state, operation, moved_by="me")

    def names(self, kind: RefKind = BRANCH) -> dict[str, Ref]:
        """Return what there is, as another process reads it."""
        found = list_refs(Workspace.open(self.backend), kind)
        return {name: Ref(record.commit_id or b"") for name, record in found}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A workspace with commits one and two on main."""
    return Store(tmp_path)


def test_branch_is_made_listed_and_found(store: Store) -> None:
    """At any commit; the operation log tells who did it."""
    store.create(BRANCH, "release/1", store.one)

    assert store.names() == {"main": store.two, "release/1": store.one}
    assert store.workspace.resolve("release/1")[0] == store.one
    (operation,) = newest_operations(store.workspace, 1)
    assert (operation.action, operation.name, operation.old, operation.new, operation.by) == (
        "create", "release/1", None, store.one.id, "me",
    )  # fmt: skip
    record, _ = store.workspace.refs.get(BRANCH, "release/1")
    assert record.write_id == operation.id
    assert record.commit().message == "one"


@pytest.mark.parametrize("name", ["a..b", "", "-x", "a b", "a/", "x" * 201])
def test_names_are_checked(store: Store, name: str) -> None:
    """Before anything is written, and by all that takes one."""
    for call in (
        lambda: store.create(BRANCH, name, store.one),
        lambda: store.delete(BRANCH, name),
        lambda: store.rename("main", name),
    ):
        with pytest.raises(UsageError):
            call()
    assert len(newest_operations(store.workspace, 9)) == 1


def test_taken_names_are_refused(store: Store) -> None:
    """A branch that is there; a tag and a branch of one name, whichever came first."""
    store.create(TAG, "v1", store.one)

    for kind, name, error in (
        (BRANCH, "main", "branch.exists"),
        (BRANCH, "v1", "ref.hidden"),
        (TAG, "main", "ref.hidden"),
    ):
        with pytest.raises(BusyError) as caught:
            store.create(kind, name, store.two)
        assert caught.value.kind == error
    store.create(BRANCH, "side", store.one)
    for new_name, error in (("v1", "ref.hidden"), ("main", "branch.exists")):
        with pytest.raises(BusyError) as caught:
            store.rename("side", new_name)
        assert caught.value.kind == error
    assert store.names() == {"main": store.two, "side": store.one}


def test_tag_never_moves(store: Store) -> None:
    """Making it again is refused, unless it is on that commit; then nothing is written."""
    assert store.create(TAG, "v1", store.one)
    record, version = store.workspace.refs.get(TAG, "v1")

    assert not store.create(TAG, "v1", store.one)
    with pytest.raises(BusyError, match="tags never move") as caught:
        store.create(TAG, "v1", store.two)

    assert caught.value.kind == "tag.exists"
    assert store.workspace.refs.get(TAG, "v1") == (record, version)
    assert len(newest_operations(store.workspace, 9)) == 2


def test_session_of_the_same_name_is_told(store: Store) -> None:
    """Such a branch is allowed, since sessions land on branches of their names."""
    open_session(store.workspace, "fix", branch="main", owner="me")

    assert create_ref(store.workspace, BRANCH, "fix", store.one, created_by="me").is_session
    assert not create_ref(store.workspace, BRANCH, "mend", store.one, created_by="me").is_session
    assert store.workspace.resolve("fix")[0] == store.one


@pytest.mark.parametrize("kind", [BRANCH, TAG])
def test_deleted_is_gone_for_everybody(store: Store, kind: RefKind) -> None:
    """It is neither listed, nor found, nor guessed; its name can be given again."""
    store.create(kind, "old", store.one)

    was = store.delete(kind, "old")

    assert was.commit_id == store.one.id
    assert "old" not in store.names(kind)
    assert "old" not in list(store.workspace.refs.iter_names(kind))
    assert [name for _, name, _, _ in store.workspace.iter_heads()] == ["main"]
    with pytest.raises(NotFoundError) as caught:
        store.workspace.resolve("old")
    assert caught.value.kind == "rev.absent"
    with pytest.raises(NotFoundError) as caught:
        store.delete(kind, "old")
    assert caught.value.kind == f"{kind.value}.absent"
    if kind is BRANCH:
        with pytest.raises(NotFoundError):
            open_session(store.workspace, "s", branch="old", owner="me")
    assert store.create(kind, "old", store.two)
    assert store.names(kind)["old"] == store.two


def test_deleted_branch_can_be_landed_on(store: Store) -> None:
    """As one that never was."""
    store.create(BRANCH, "old", store.two)
    store.delete(BRANCH, "old")

    store.land("old", store.one)

    assert store.names()["old"] == store.one


def test_tag_behind_a_deleted_branch_is_found(store: Store) -> None:
    """What was deleted hides nothing that is looked for after it."""
    store.create(BRANCH, "x", store.one)
    store.delete(BRANCH, "x")

    store.create(TAG, "x", store.two)

    assert store.workspace.resolve("x")[0] == store.two


def test_last_way_to_commits_is_kept_unless_forced(store: Store) -> None:
    """Any other branch, tag or session that has the commits will do; a deleted one will not."""
    three = store.commit("three", store.two)
    store.land("side", three)

    def is_refused() -> bool:
        try:
            store.delete(BRANCH, "side")
        except RefusedError as exc:
            assert exc.kind == "ref.last"
            return True
        store.undo()
        return False

    assert is_refused()
    store.create(TAG, "keeper", three)
    assert not is_refused()
    store.delete(TAG, "keeper")
    assert is_refused()
    open_session(store.workspace, "s", branch="side", owner="me")
    assert not is_refused()
    delete_session(store.workspace, store.state, "s", deleted_by="me", is_forced=False)
    assert is_refused()
    store.land("other", store.commit("four", three))
    assert not is_refused()
    store.delete(BRANCH, "other", is_forced=True)
    store.delete(BRANCH, "side", is_forced=True)
    assert store.names() == {"main": store.two}


def test_forced_deletion_is_undone_though_nothing_else_leads_there(store: Store) -> None:
    """What was deleted says where its commit lies; undoing can be undone, and that again."""
    three = store.commit("three", store.two)
    store.land("side", three)
    store.delete(BRANCH, "side", is_forced=True)

    store.undo()
    assert store.names()["side"] == three
    assert Workspace.open(store.backend).resolve("side~1")[0] == store.two
    store.undo()
    assert "side" not in store.names()
    assert store.undo().commit_id == three.id


@pytest.mark.parametrize("kind", [BRANCH, TAG])
def test_making_is_undone_and_done_again(store: Store, kind: RefKind) -> None:
    """Also of a name that was used before, and when nothing else has its commit."""
    three = store.commit("three", store.two)
    store.create(kind, "x", store.one)
    store.delete(kind, "x")
    store.create(kind, "x", three)

    assert store.undo().commit_id is None
    assert "x" not in store.names(kind)
    assert store.undo().commit_id == three.id
    assert store.names(kind)["x"] == three


def test_landing_is_taken_back_and_redone_though_nothing_else_has_it(store: Store) -> None:
    """Undoing the undoing finds a commit that no ref leads to any more."""
    three = store.commit("three", store.two)
    store.land("main", three)
    store.undo()
    assert store.names()["main"] == store.two

    store.undo()

    assert store.names()["main"] == three


def test_only_the_latest_is_undone(store: Store) -> None:
    """A branch that was made again since is not what was deleted."""
    store.create(BRANCH, "x", store.one)
    store.delete(BRANCH, "x")
    store.create(BRANCH, "x", store.two)

    with pytest.raises(MovedError):
        store.undo(1)

    assert store.names()["x"] == store.two


@pytest.mark.parametrize("half", [0, 1])
def test_renaming_is_undone_by_either_half(store: Store, half: int) -> None:
    """Both names go back; undoing that renames again."""
    store.create(BRANCH, "old", store.one)

    store.rename("old", "new")
    assert store.names() == {"main": store.two, "new": store.one}
    assert [one.action for one in newest_operations(store.workspace, 2)] == ["rename", "rename"]
    store.undo(half)
    assert store.names() == {"main": store.two, "old": store.one}
    store.undo(half)
    assert store.names() == {"main": store.two, "new": store.one}


def test_renaming_is_not_undone_after_either_moved(store: Store) -> None:
    """Neither what landed on the new name nor a new branch of the old name is lost."""
    store.create(BRANCH, "old", store.one)
    store.rename("old", "new")
    ids = [one.id for one in newest_operations(store.workspace, 2)]

    def undo_each() -> None:
        for operation_id in ids:
            with pytest.raises(MovedError):
                undo_operation(
                    store.workspace,
                    store.state,
                    find_operation(store.workspace, operation_id),
                    moved_by="me",
                )

    store.create(BRANCH, "old", store.two)
    undo_each()
    store.delete(BRANCH, "old")
    undo_each()
    store.land("new", store.two)
    undo_each()
    assert store.names() == {"main": store.two, "new": store.two}


def test_only_the_latest_renaming_is_undone(store: Store) -> None:
    """An earlier one of the same two names is not what brought them there."""
    store.create(BRANCH, "old", store.one)
    store.rename("old", "new")
    store.undo()
    store.rename("old", "new")

    for number in (2, 3, 4, 5):
        with pytest.raises(MovedError):
            store.undo(number)

    assert store.names() == {"main": store.two, "new": store.one}


def test_renaming_what_is_not_there_is_told(store: Store) -> None:
    """With a name that was meant, perhaps."""
    with pytest.raises(NotFoundError, match="did you mean main"):
        store.rename("mian", "x")
    with pytest.raises(UsageError):
        store.rename("main", "main")


def test_cut_off_renaming_says_how_to_go_on(store: Store) -> None:
    """Both names are there, on one commit; the old one is then deleted without force."""
    store.create(BRANCH, "old", store.commit("three", store.two))
    store.create(BRANCH, "new", store.workspace.resolve("old")[0])

    with pytest.raises(BusyError, match="branch delete old"):
        store.rename("old", "new")

    store.delete(BRANCH, "old")


def raced(store: Store, key: str, call: Callable[[], object]) -> None:
    """Have `call` happen just before the next write of a key."""
    store.backend.races[key] = call


def test_branch_that_someone_else_makes_first_is_theirs(store: Store) -> None:
    """Creation is a compare-and-swap: nobody's branch is overwritten."""
    raced(store, "refs/branches/x", lambda: store.create(BRANCH, "x", store.two))

    with pytest.raises(BusyError):
        store.create(BRANCH, "x", store.one)

    assert store.names()["x"] == store.two


def test_tag_that_someone_else_makes_alike_is_fine(store: Store) -> None:
    """Two that make the same tag both have it."""
    raced(store, "refs/tags/x", lambda: store.create(TAG, "x", store.one))

    assert not store.create(TAG, "x", store.one)


def test_branch_that_moves_meanwhile_is_not_deleted(store: Store) -> None:
    """What landed on it just now is not lost."""
    store.create(BRANCH, "x", store.one)
    raced(store, "refs/branches/x", lambda: store.land("x", store.two))

    with pytest.raises(MovedError):
        store.delete(BRANCH, "x")

    assert store.names()["x"] == store.two


def test_branch_that_moves_meanwhile_keeps_its_name(store: Store) -> None:
    """A renaming that loses its race leaves nothing of the new name."""
    store.create(BRANCH, "x", store.one)
    raced(store, "refs/branches/x", lambda: store.land("x", store.two))

    with pytest.raises(MovedError):
        store.rename("x", "y")

    assert store.names() == {"main": store.two, "x": store.two}


def test_new_name_that_is_taken_meanwhile_is_theirs(store: Store) -> None:
    """The old one stays."""
    raced(store, "refs/branches/y", lambda: store.create(BRANCH, "y", store.one))

    with pytest.raises(MovedError):
        store.rename("main", "y")

    assert store.names() == {"main": store.two, "y": store.one}


def test_damaged_ref_is_listed_not_hidden(store: Store) -> None:
    """A value that cannot be read is no deleted branch."""
    store.backend.put_if_absent("refs/branches/broken", b"{}")

    assert "broken" in list(store.workspace.refs.iter_names(BRANCH))
    with pytest.raises(WorkspaceError):
        list_refs(store.workspace, BRANCH)


def test_live_branch_with_a_short_value_is_listed(store: Store) -> None:
    """Size only says which values are read; long ones of deleted branches are told apart too."""
    long_name = "m" * 2000
    empty = RefRecord(moved_by=long_name)
    assert isinstance(
        store.workspace.refs.compare_and_swap(BRANCH, "gone", expected=None, new=empty), Moved
    )
    tiny = replace(record_of(store.workspace, store.one), locator=None, commit_locators=())
    store.workspace.refs.compare_and_swap(BRANCH, "tiny", expected=None, new=tiny)

    assert store.names() == {"main": store.two, "tiny": store.one}
