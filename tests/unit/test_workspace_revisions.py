"""Creating and opening workspaces, revisions, history, and moves of refs."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from workspacefs.backend.contract import Backend
from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import (
    BusyError,
    IntegrityError,
    NotFoundError,
    RefusedError,
    UsageError,
)
from workspacefs.ids import FileId
from workspacefs.objects.commits import Commit
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.refs import Moved, RefKind, Stale
from workspacefs.workspace.file_ids import FileIdAllocator
from workspacefs.workspace.history import iter_history
from workspacefs.workspace.manifest import MANIFEST_KEY, Manifest, decode_manifest, encode_manifest
from workspacefs.workspace.publish import RefMove, publish_commit, seal_commit
from workspacefs.workspace.workspace import Workspace

ROOT = Entry(b"", stat.S_IFDIR | 0o755, 0, 0, 0, 1, 2, FileId(1), 2, Subtree())


class SteppingClock:
    """Each look at it is a second later."""

    def __init__(self) -> None:
        self._now = 1_700_000_000

    def now_ns(self) -> int:
        self._now += 1
        return self._now * 10**9


@pytest.fixture
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return MemoryBackend(tmp_path.name)


@pytest.fixture
def workspace(backend: Backend) -> Workspace:
    return Workspace.create(backend, clock=SteppingClock())


def commit(
    workspace: Workspace,
    message: str,
    *parents: Ref,
    kind: RefKind = RefKind.BRANCH,
    name: str = "main",
) -> Ref:
    found = workspace.refs.find(kind, name)
    made = Commit(root=ROOT, parents=parents, message=message, time_ns=workspace.clock.now_ns())
    move = RefMove(
        kind=kind,
        name=name,
        expected=found[1] if found else None,
        previous=found[0] if found else None,
        action="commit",
        moved_by="test",
    )
    answer, sealed = publish_commit(workspace, workspace.new_writer(), made, move)
    assert isinstance(answer, Moved)
    return sealed.ref


def test_opened_workspace_is_the_created_one(backend: Backend, workspace: Workspace) -> None:
    """Identity and parameters are read back."""
    again = Workspace.open(backend)

    assert again.manifest == workspace.manifest
    assert again.id == workspace.id


def test_second_create_is_refused(backend: Backend, workspace: Workspace) -> None:
    """Nobody's workspace is overwritten."""
    with pytest.raises(BusyError, match="already"):
        Workspace.create(backend)


def test_absent_workspace_says_how_to_make_one(tmp_path: Path) -> None:
    """Open names the URL and the command."""
    with pytest.raises(NotFoundError, match="workspacefs init") as caught:
        Workspace.open(str(tmp_path / "none"))

    assert caught.value.kind == "workspace.absent"


def test_newer_format_is_refused_by_name() -> None:
    """Both versions are in the message, whatever else changed in the newer format."""
    with pytest.raises(RefusedError, match="version 2, this program knows 1") as caught:
        decode_manifest(b'{"format":2,"what":"ever"}', url="x")

    assert caught.value.kind == "format.newer"


def test_any_flipped_or_cut_byte_of_the_manifest_is_found() -> None:
    """Each single-bit flip and each truncation is damage, never another value."""
    value = encode_manifest(Manifest.new(created_ns=5))

    for at in range(len(value)):
        for bad in (value[:at], value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]):
            with pytest.raises((IntegrityError, RefusedError)):
                decode_manifest(bad, url="x")


def test_manifest_with_odd_members_is_damage() -> None:
    """A right checksum over nonsense is still nonsense."""
    for document in ([], {"format": 1}, 5, {"format": "1"}):
        with pytest.raises(IntegrityError):
            decode_manifest(json.dumps(document).encode(), url="x")
    assert MANIFEST_KEY == "workspace.json"


def test_names_come_before_ids_and_steps_go_back(workspace: Workspace) -> None:
    """Branches, tags, sessions, ids and their ancestors all resolve."""
    first = commit(workspace, "one")
    second = commit(workspace, "two", first)
    third = commit(workspace, "three", second)
    tag = commit(workspace, "tagged", first, kind=RefKind.TAG, name="v1")
    session = commit(workspace, "in session", first, kind=RefKind.SESSION, name="s/1")

    def message(rev: str) -> str:
        return workspace.resolve(rev)[1].message

    assert message("main") == "three"
    assert message("main~1") == message("main^") == message("main~") == "two"
    assert message("main~2") == message("main^^") == message("main^~") == "one"
    assert message("v1") == "tagged"
    assert message("s/1") == "in session"
    assert message(third.id.hex()) == "three"
    with pytest.raises(NotFoundError, match=r"main\^~9 goes .*: main has 3 commits$"):
        workspace.resolve("main^~9")
    assert message(second.id.hex()[:6].upper()) == "two"
    assert message(session.id.hex()[:10] + "~1") == "one"
    assert workspace.resolve(tag.id.hex())[0] == tag


@pytest.mark.parametrize(
    ("rev", "message"),
    [
        ("mian", "did you mean main"),
        ("zzz", "there are main"),
        ("abcdef", "no branch, tag, session or commit is called abcdef"),
        ("", "is called "),
        ("a b", "is called a b"),
        ("main~5", "main~5 goes further back than the history: main has 1 commit$"),
        ("main~99999999", "main has 1 commit$"),
    ],
)
def test_unknown_revision_lists_near_names(workspace: Workspace, rev: str, message: str) -> None:
    """NotFoundError helps."""
    commit(workspace, "one")

    with pytest.raises(NotFoundError, match=message):
        workspace.resolve(rev)


def test_empty_workspace_says_so(workspace: Workspace) -> None:
    """Before the first commit there is nothing to resolve."""
    with pytest.raises(NotFoundError, match="no commits yet"):
        workspace.resolve("main")


def test_ambiguous_prefix_is_refused(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commits with the same beginning: give more digits."""
    refs = [Ref(b"\xab\xcd\xef" + bytes([n]) * 29) for n in range(2)]
    made = Commit(root=ROOT, parents=(), message="m", time_ns=1)
    monkeypatch.setattr(
        workspace, "iter_heads", lambda: ((RefKind.BRANCH, "x", ref, made) for ref in refs)
    )

    with pytest.raises(UsageError, match="2 commit ids"):
        workspace.resolve("abcdef")


def test_stale_move_leaves_the_ref_and_no_log_entry(workspace: Workspace) -> None:
    """Who loses the race gets Stale with the winner's record, and the log tells only what was."""
    first = commit(workspace, "one")
    record, version = workspace.refs.get(RefKind.BRANCH, "main")
    commit(workspace, "winner", first)

    answer, sealed = publish_commit(
        workspace,
        workspace.new_writer(),
        Commit(root=ROOT, parents=(first,), message="loser", time_ns=9),
        RefMove(
            kind=RefKind.BRANCH,
            name="main",
            expected=version,
            previous=record,
            action="commit",
            moved_by="test",
        ),
    )

    assert isinstance(answer, Stale)
    assert answer.current is not None
    assert answer.current.commit().message == "winner"
    assert workspace.resolve("main")[1].message == "winner"
    assert workspace.store.load_commit(sealed.ref).message == "loser"
    assert len(list(workspace.backend.iter_keys("ops/"))) == 2


def test_operation_log_chains_by_write_ids(workspace: Workspace) -> None:
    """Every entry names the write before it, so that true moves can be told from planned ones."""
    first = commit(workspace, "one")
    second = commit(workspace, "two", first)

    entries = [
        json.loads(workspace.backend.get(info.key)) for info in workspace.backend.iter_keys("ops/")
    ]

    record, _ = workspace.refs.get(RefKind.BRANCH, "main")
    assert [entry["new"] for entry in entries] == [first.id.hex(), second.id.hex()]
    assert [entry["old"] for entry in entries] == [None, first.id.hex()]
    assert entries[1]["previous_write_id"] == entries[0]["write_id"]
    assert entries[1]["write_id"] == record.write_id


def test_sealed_commit_is_readable_before_any_ref_names_it(workspace: Workspace) -> None:
    """Data is durable first."""
    made = Commit(root=ROOT, parents=(), message="sealed", time_ns=1)

    sealed = seal_commit(workspace.new_writer(), made)

    assert Workspace.open(workspace.backend).store.load_commit(sealed.ref) == made


def test_history_visits_each_commit_once_newest_first(workspace: Workspace) -> None:
    """A merge's both sides appear, in order of time; first_parent hides the side branch."""
    base = commit(workspace, "base")
    left = commit(workspace, "left", base)
    right = commit(workspace, "right", base, name="side")
    merge = commit(workspace, "merge", left, right)
    head = [(merge, workspace.store.load_commit(merge))]

    everything = [c.message for _, c in iter_history(head, workspace.store)]
    straight = [c.message for _, c in iter_history(head, workspace.store, first_parent=True)]

    assert everything == ["merge", "right", "left", "base"]
    assert straight == ["merge", "left", "base"]


def test_file_ids_are_unique_between_allocators(workspace: Workspace) -> None:
    """Two allocators claim different epochs; ids fit 63 bits and are never the root's."""
    one, two = workspace.new_file_ids(), workspace.new_file_ids()

    ids = [allocator.allocate() for allocator in (one, two) for _ in range(100)]

    assert len(set(ids)) == 200
    assert all(1 << 24 <= file_id < 1 << 63 for file_id in ids)
    assert one.epochs != two.epochs
    assert isinstance(one, FileIdAllocator)
    assert workspace.allocate_epoch() not in (*one.epochs, *two.epochs)
