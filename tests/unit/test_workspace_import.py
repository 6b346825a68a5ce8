"""Importing real directories, and exporting them again."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from workspacefs.backend.memory import MemoryBackend
from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.errors import BusyError, MovedError, NotFoundError, UsageError, WorkspaceError
from workspacefs.ids import chunk_id_of, chunk_list_id_of
from workspacefs.objects.entry import Chunks, Entry
from workspacefs.objects.refs import ChunkRef, Ref
from workspacefs.refs import RefKind
from workspacefs.testing.disk import make_zoo, snapshot
from workspacefs.trees.walk import resolve_path, walk
from workspacefs.workspace.content import read_content
from workspacefs.workspace.export import export_tree
from workspacefs.workspace.imported import ImportOptions
from workspacefs.workspace.landing import ImportResult, import_directory
from workspacefs.workspace.readahead import ReadAhead
from workspacefs.workspace.source_files import SourceFile, read_source_file
from workspacefs.workspace.tar import export_tar
from workspacefs.workspace.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.create(str(tmp_path / "store"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.mkdir()
    return path


def load(workspace: Workspace, source: Path, **options: object) -> ImportResult:
    return import_directory(workspace, source, message="m", options=ImportOptions(**options))  # type: ignore[arg-type]


def names(workspace: Workspace, root: Entry) -> list[bytes]:
    return [path for path, _ in walk(root, workspace.store)]


def test_every_kind_survives_import_and_export(
    workspace: Workspace, source: Path, tmp_path: Path
) -> None:
    """Kinds, names, modes, times, links, xattrs and bytes come out as they went in."""
    make_zoo(source)

    result = load(workspace, source)
    root = Workspace.open(workspace.url).resolve("main")[1].root
    exported = export_tree(root, workspace.store, tmp_path / "out")

    assert snapshot(tmp_path / "out") == snapshot(source)
    assert exported.dropped == []
    assert exported.collisions == []
    assert (exported.files, exported.dirs) == (result.tree.files, result.tree.dirs)
    assert os.stat(tmp_path / "out" / "sparse").st_blocks * 512 < 1 << 20
    assert os.stat(tmp_path / "out").st_mtime_ns == os.stat(source).st_mtime_ns


def test_every_kind_but_sockets_survives_tar(
    workspace: Workspace, source: Path, tmp_path: Path
) -> None:
    """GNU tar unpacks what we pack, nanoseconds and hard links included."""
    make_zoo(source)
    os.utime(source / "empty", ns=(0, 0))  # GNU tar rounds times before 1970
    load(workspace, source)
    root = workspace.resolve("main")[1].root
    with open(tmp_path / "out.tar", "wb") as file:
        result = export_tar(root, workspace.store, file)
    (tmp_path / "out").mkdir()

    subprocess.run(
        ["tar", "--xattrs", "-C", tmp_path / "out", "-xpf", tmp_path / "out.tar"], check=True
    )

    expected = snapshot(source)
    del expected[b"sock"]
    assert snapshot(tmp_path / "out") == expected
    assert result.dropped == [(b"sock", "socket")]


def test_links_within_the_import_are_counted(workspace: Workspace, source: Path) -> None:
    """nlink is the number of names in the tree; one file id stands for all of them."""
    (source / "a").write_bytes(b"x" * 500)
    os.link(source / "a", source / "b")
    (source / "only").write_bytes(b"y")
    os.link(source / "only", source.parent / "outside")
    (source / "d").mkdir()
    (source / "d" / "sub").mkdir()

    root = load(workspace, source).commit.root

    a, b, only, d = (resolve_path(root, n, workspace.store) for n in (b"a", b"b", b"only", b"d"))
    assert a.file_id == b.file_id
    assert (a.nlink, b.nlink, only.nlink, d.nlink, root.nlink) == (2, 2, 1, 3, 3)
    assert a.ctime_ns == os.stat(source / "a").st_ctime_ns
    assert root.subtree.totals.hardlinked == 2


def test_unchanged_tree_imported_again_makes_no_commit(workspace: Workspace, source: Path) -> None:
    """Nothing is stored; the answer is the head."""
    make_zoo(source)
    first = load(workspace, source)
    keys = [info.key for info in workspace.backend.iter_keys("")]
    (source / "brief").touch()
    (source / "brief").unlink()  # a new time of the root is no change either

    second = load(workspace, source)

    assert (first.is_new, second.is_new) == (True, False)
    assert (second.ref, second.commit) == (first.ref, first.commit)
    assert [info.key for info in workspace.backend.iter_keys("")] == keys
    source.chmod(0o711)
    assert load(workspace, source).is_new


def test_changed_tree_keeps_ids_of_what_is_still_there(workspace: Workspace, source: Path) -> None:
    """File ids follow paths; a new kind at an old path is a new file; changes are counted."""
    for name in ("keep", "edit", "gone", "kind"):
        (source / name).write_text(name)
    (source / "dir").mkdir()
    (source / "dir" / "x").write_text("x")
    old = load(workspace, source).commit.root
    (source / "edit").write_text("edited")
    (source / "gone").unlink()
    (source / "kind").unlink()
    (source / "kind").mkdir()
    (source / "dir" / "new").write_text("new")

    result = load(workspace, source)

    new = result.commit.root

    def ids(root: Entry) -> dict[bytes, int]:
        return {path: entry.file_id for path, entry in walk(root, workspace.store)}

    for path in (b"keep", b"edit", b"dir", b"dir/x"):
        assert ids(new)[path] == ids(old)[path]
    assert ids(new)[b"kind"] != ids(old)[b"kind"]
    assert len(set(ids(new).values())) == len(ids(new))
    assert (result.tree.changes.added, result.tree.changes.removed) == (1, 1)
    assert result.tree.changes.modified == 3  # edit, kind, and the time of dir


def test_broken_hard_link_gets_two_ids(workspace: Workspace, source: Path) -> None:
    """Names that shared a file and no longer do never share an id."""
    (source / "a").write_text("one")
    os.link(source / "a", source / "b")
    load(workspace, source)
    (source / "b").unlink()
    (source / "b").write_text("two")

    root = load(workspace, source).commit.root

    a, b = (resolve_path(root, name, workspace.store) for name in (b"a", b"b"))
    assert a.file_id != b.file_id
    assert (a.nlink, b.nlink) == (1, 1)


def test_content_is_read_even_if_size_and_time_agree(workspace: Workspace, source: Path) -> None:
    """Only trust_mtime believes the clock."""
    (source / "f").write_text("old")
    status = os.stat(source / "f")
    load(workspace, source)
    (source / "f").write_text("new")
    os.utime(source / "f", ns=(status.st_mtime_ns, status.st_mtime_ns))

    trusting = load(workspace, source, trust_mtime=True).commit.root
    reading = load(workspace, source).commit.root

    assert resolve_path(trusting, b"f", workspace.store).content == b"old"
    assert resolve_path(reading, b"f", workspace.store).content == b"new"


def test_patterns_and_ignore_files_leave_paths_out(workspace: Workspace, source: Path) -> None:
    """Caller's patterns beat ignore files, deeper files beat shallower, directories are pruned."""
    (source / ".workspacefsignore").write_text("*.log\n/build/\n# comment\n")
    (source / "sub").mkdir()
    (source / "sub" / ".workspacefsignore").write_text("!keep.log\nhere\n")
    (source / "build").mkdir()
    for name in ("a.log", "b.txt", "build/x", "sub/keep.log", "sub/c.log", "sub/here", "here"):
        (source / name).write_text(name)
    (source / "vip.log").write_text("caller wins")

    result = load(workspace, source, exclude=("*.txt", "!vip.log"))

    assert names(workspace, result.commit.root) == [
        b".workspacefsignore",
        b"here",
        b"sub",
        b"sub/.workspacefsignore",
        b"sub/keep.log",
        b"vip.log",
    ]
    assert result.tree.excluded == 5


def test_malformed_pattern_is_a_usage_error(workspace: Workspace, source: Path) -> None:
    """The message says which."""
    with pytest.raises(UsageError, match="--exclude"):
        load(workspace, source, exclude=("!",))


def test_store_inside_the_source_is_left_out(source: Path) -> None:
    """Importing a directory that holds the store does not import the store."""
    workspace = Workspace.create(str(source / "deep-store"))
    (source / "f").write_text("f")

    result = load(workspace, source)

    assert names(workspace, result.commit.root) == [b"f"]
    with pytest.raises(UsageError, match="into itself"):
        load(workspace, source / "deep-store")


class MeddlingSink:
    """Forwards chunks; does something to the source after each."""

    def __init__(self, meddle: Callable[[], None]) -> None:
        self._meddle = meddle
        self.chunks: list[bytes] = []

    def add_chunk(self, plain: bytes | memoryview) -> ChunkRef:
        self.chunks.append(bytes(plain))
        self._meddle()
        return ChunkRef(chunk_id_of(plain), len(plain))

    def add_chunk_list(self, body: bytes, children: Sequence[Ref]) -> Ref:
        return Ref(chunk_list_id_of(body))


def read_while(path: Path, meddle: Callable[[], None]) -> tuple[SourceFile, MeddlingSink]:
    sink = MeddlingSink(meddle)
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_source_file(fd, os.fstat(fd), sink, ChunkParameters()), sink
    finally:
        os.close(fd)


def test_file_that_changes_once_is_read_again(source: Path) -> None:
    """What is stored is one state of the file, with the attributes of that state."""
    path = source / "f"
    path.write_bytes(b"a" * 500)
    changes = iter([b"b" * 700])

    def meddle() -> None:
        for data in changes:
            path.write_bytes(data)

    got, sink = read_while(path, meddle)

    assert (got.size_bytes, got.is_unsteady) == (700, False)
    assert got.status.st_size == 700
    assert sink.chunks[-1] == b"b" * 700


def test_file_that_never_rests_is_stored_as_read_and_listed(source: Path) -> None:
    """Size and content agree with each other whatever the file does."""
    path = source / "log"
    path.write_bytes(b"x" * 500)

    def meddle() -> None:
        with open(path, "ab") as file:
            file.write(b"x" * 10)

    got, sink = read_while(path, meddle)

    assert got.is_unsteady
    assert got.content == Chunks((ChunkRef(chunk_id_of(sink.chunks[-1]), got.size_bytes),))
    assert got.size_bytes == len(sink.chunks[-1])


def test_file_that_shrinks_is_as_long_as_it_was_read(source: Path) -> None:
    """No zeros are made up for what is gone."""
    path = source / "big"
    path.write_bytes(os.urandom(6 << 20))

    got, sink = read_while(path, lambda: os.truncate(path, 300))

    assert got.size_bytes == 300
    assert sink.chunks[-1] == path.read_bytes()


@pytest.fixture
def without_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """File modes hold for this thread, even when root runs the tests.

    Source: setfsuid(2): leaving 0 drops CAP_DAC_OVERRIDE and its like from the effective set.
    """
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None)
    for path in (tmp_path, *tmp_path.iterdir()):
        os.chown(path, 12345, 12345)
    monkeypatch.chdir(tmp_path)  # what lies above it cannot be passed any more
    libc.setfsuid(12345)
    try:
        yield
    finally:
        libc.setfsuid(0)


@pytest.fixture
def with_bad_ones(source: Path, without_override: None) -> Workspace:
    inside = Path(source.name) if os.geteuid() == 0 else source
    (inside / "good").write_text("good")
    (inside / "bad").write_text("bad")
    (inside / "bad").chmod(0)
    (inside / "bad dir").mkdir(mode=0)
    return Workspace.create(MemoryBackend(source.parent.name))


def test_unreadable_file_is_named(
    with_bad_ones: Workspace, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import fails, says which file, and lands nothing."""
    monkeypatch.chdir(source.parent if os.geteuid() else ".")

    with pytest.raises(WorkspaceError, match=r"cannot read bad: .*--skip-unreadable") as caught:
        load(with_bad_ones, Path(source.name), exclude=("bad dir",))

    assert caught.value.kind == "import.unreadable"
    with pytest.raises(NotFoundError):
        with_bad_ones.resolve("main")
    assert list(with_bad_ones.backend.iter_keys("packs/")) == []


def test_unreadable_files_are_skipped_and_listed(
    with_bad_ones: Workspace, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With skip_unreadable the rest is imported."""
    monkeypatch.chdir(source.parent if os.geteuid() else ".")

    result = load(with_bad_ones, Path(source.name), skip_unreadable=True)

    assert [path for path, _ in result.tree.skipped] == [b"bad", b"bad dir"]
    assert names(with_bad_ones, result.commit.root) == [b"good"]


def test_branch_that_moves_meanwhile_stops_the_import(workspace: Workspace, source: Path) -> None:
    """Another import that lands first is never overwritten."""
    (source / "f").write_text("f")
    other = source.parent / "other"
    other.mkdir()
    load(workspace, other)

    def land_another(_files: int, _bytes: int, _total: int | None) -> None:
        (other / "new").touch()
        load(Workspace.open(workspace.url), other)

    with pytest.raises(MovedError, match="main moved"):
        import_directory(workspace, source, message="late", progress=land_another)

    assert workspace.resolve("main")[1].message == "m"
    assert len(list(workspace.backend.iter_keys("ops/"))) == 2


def test_progress_ends_with_all(workspace: Workspace, source: Path) -> None:
    """The last call has the final figures and the total from the start."""
    make_zoo(source)
    seen: list[tuple[int, int, int | None]] = []

    result = import_directory(
        workspace, source, message="m", progress=lambda *figures: seen.append(figures)
    )

    assert seen[-1] == (result.tree.files, result.tree.size_bytes, result.tree.files)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_import_and_export_leave_no_descriptor_open(source: Path, tmp_path: Path) -> None:
    """Not after success, nor after failure."""
    workspace = Workspace.create(MemoryBackend(tmp_path.name))
    make_zoo(source)
    before = open_descriptors()

    root = load(workspace, source).commit.root
    export_tree(root, workspace.store, tmp_path / "out")
    with pytest.raises(BusyError):
        export_tree(root, workspace.store, tmp_path / "out")
    with pytest.raises(WorkspaceError):
        load(workspace, tmp_path / "nowhere")

    assert open_descriptors() == before


def test_reading_ahead_is_wanted_when_files_are_slow_and_harms_nothing(source: Path) -> None:
    """Names that are gone or no files are passed over; all descriptors are closed."""
    make_zoo(source)
    before = open_descriptors()
    fd = os.open(source, os.O_RDONLY)

    with ReadAhead() as read_ahead:
        wanted = [read_ahead.is_wanted]
        for _ in range(300):
            read_ahead.note(0.001)
        wanted.append(read_ahead.is_wanted)
        for _ in range(200):
            read_ahead.files(fd, [b"inline", b"gone", b"fifo", b"dangling", b"deep"])
            read_ahead.directories(fd, [b"deep", b"gone", b"inline"])
    os.close(fd)

    assert wanted == [False, True]
    assert open_descriptors() == before


def test_missing_source_is_named(workspace: Workspace, tmp_path: Path) -> None:
    """No such directory: a clear message."""
    with pytest.raises(WorkspaceError, match=r"cannot import .*nowhere"):
        load(workspace, tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"file: it is no directory; name a directory"):
        load(workspace, tmp_path / "file")


def test_tree_deeper_than_a_path_may_be_long(workspace: Workspace, source: Path) -> None:
    """2,000 levels go in and out, though no path could name the deepest file."""
    depth = 2000
    fd = os.open(source, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("level", dir_fd=fd)
        below = os.open("level", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)

    root = load(workspace, source).commit.root
    result = export_tree(root, workspace.store, source.parent / "out")

    assert root.subtree.totals.dirs == result.dirs == depth
    assert result.files == 1
    for path in (source, source.parent / "out"):
        subprocess.run(["rm", "-rf", path], check=True)


def test_large_sparse_file_is_read_back(workspace: Workspace, source: Path) -> None:
    """20 GiB with two islands takes moments, and every range reads right."""
    with open(source / "huge", "wb") as file:
        file.truncate(20 << 30)
        file.seek(5 << 30)
        file.write(b"one")
        file.seek((20 << 30) - 3)
        file.write(b"two")
    if os.stat(source / "huge").st_blocks * 512 > 1 << 30:
        pytest.skip("this file system has no sparse files")

    root = load(workspace, source).commit.root

    entry = resolve_path(root, b"huge", workspace.store)
    store = workspace.store
    assert entry.size_bytes == 20 << 30
    assert read_content(entry, store, (5 << 30) - 2, 7) == b"\0\0one\0\0"
    assert read_content(entry, store, (20 << 30) - 4, 100) == b"\0two"
    assert read_content(entry, store, 20 << 30, 5) == b""


def test_special_bits_of_the_root_directory_are_kept(workspace: Workspace, source: Path) -> None:
    """The root's own mode and time are part of the commit; its file id is 1."""
    source.chmod(0o711)

    root = load(workspace, source).commit.root

    assert (root.name, root.file_id, stat.S_IMODE(root.mode)) == (b"", 1, 0o711)
    assert root.mtime_ns == os.stat(source).st_mtime_ns


def test_ref_value_holds_the_commit(workspace: Workspace, source: Path) -> None:
    """A mount needs one read to know the root."""
    result = load(workspace, source)

    record, _ = workspace.refs.get(RefKind.BRANCH, "main")

    assert record.commit() == result.commit
    assert record.ref() == result.ref
