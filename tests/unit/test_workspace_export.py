"""Exporting trees that somebody hostile made, to places where somebody hostile writes."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from workspacefs.backend.memory import MemoryBackend
from workspacefs.errors import BusyError, IntegrityError, NoSpaceError, WorkspaceError
from workspacefs.ids import FileId
from workspacefs.objects.entry import Content, Device, Entry, Subtree
from workspacefs.trees.build import build_directory
from workspacefs.workspace.export import export_tree
from workspacefs.workspace.workspace import Workspace


class Maker:
    """Writes trees entry by entry into a store of its own."""

    def __init__(self, name: str) -> None:
        self.workspace = Workspace.create(MemoryBackend(name))
        self._writer = self.workspace.new_writer()
        self._file_id = 1

    def entry(self, name: bytes, mode: int, content: Content, **more: int) -> Entry:
        self._file_id += 1
        size = len(content) if isinstance(content, bytes) else 0
        entry = Entry(
            name, mode, os.geteuid(), os.getegid(), size, 1, 2, FileId(self._file_id), 1, content
        )
        return entry._replace(**more)  # type: ignore[arg-type]

    def file(self, name: bytes, data: bytes = b"x", mode: int = 0o644, **more: int) -> Entry:
        return self.entry(name, stat.S_IFREG | mode, data or None, **more)

    def link(self, name: bytes, target: bytes) -> Entry:
        return self.entry(name, stat.S_IFLNK | 0o777, target)

    def directory(self, name: bytes, *entries: Entry) -> Entry:
        params = self.workspace.tree_params
        below = build_directory(sorted(entries), self._writer, params)
        return self.entry(name, stat.S_IFDIR | 0o755, below)

    def root(self, *entries: Entry) -> Entry:
        root = self.directory(b"", *entries)
        self._writer.finish()
        return root


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Maker]:
    yield Maker(tmp_path.name + "-export")


def test_set_id_bits_and_devices_are_dropped_and_counted(make: Maker, tmp_path: Path) -> None:
    """Rights are not handed out by importing a tree; each loss is listed."""
    root = make.root(
        make.file(b"suid", mode=0o4755),
        make.file(b"sgid", mode=0o2755),
        make.entry(b"tty", stat.S_IFCHR | 0o666, Device(os.makedev(5, 0))),
    )

    result = export_tree(root, make.workspace.store, tmp_path / "out")

    assert stat.S_IMODE(os.stat(tmp_path / "out" / "suid").st_mode) == 0o755
    assert stat.S_IMODE(os.stat(tmp_path / "out" / "sgid").st_mode) == 0o755
    assert not (tmp_path / "out" / "tty").exists()
    assert result.dropped == [
        (b"sgid", "set-id bits"),
        (b"suid", "set-id bits"),
        (b"tty", "device"),
    ]
    assert result.files == 2


@pytest.mark.parametrize("free_blocks", [0, 1 << 20])
def test_attribute_too_large_for_the_target_is_no_full_disk(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_blocks: int
) -> None:
    """ENOSPC of an attribute means either: dropped and named, or an error."""
    root = make.root(make.file(b"f")._replace(xattrs=((b"user.big", b"x" * 60_000),)))
    status = os.statvfs(tmp_path)

    def setxattr(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def statvfs(_: int) -> os.statvfs_result:
        fields = list(status)
        fields[0:2] = [4096, 4096]
        fields[3:5] = [free_blocks, free_blocks]
        return os.statvfs_result(fields)

    monkeypatch.setattr(os, "setxattr", setxattr)
    monkeypatch.setattr(os, "statvfs", statvfs)
    if not free_blocks:
        with pytest.raises(NoSpaceError, match="no space to write f"):
            export_tree(root, make.workspace.store, tmp_path / "out")
        return
    result = export_tree(root, make.workspace.store, tmp_path / "out")

    reason = "attribute user.big (the target cannot hold its 60,000 bytes)"
    assert result.dropped == [(b"f", reason)]
    assert (tmp_path / "out" / "f").read_bytes() == b"x"


def test_special_bits_are_kept_on_demand(make: Maker, tmp_path: Path) -> None:
    """keep_special keeps them."""
    root = make.root(make.file(b"suid", mode=0o4755))

    result = export_tree(root, make.workspace.store, tmp_path / "out", keep_special=True)

    assert stat.S_IMODE(os.stat(tmp_path / "out" / "suid").st_mode) == 0o4755
    assert result.dropped == []


def test_links_in_the_tree_are_never_followed(make: Maker, tmp_path: Path) -> None:
    """Links that lead outside are made as they are, and nothing is written through them."""
    outside = tmp_path / "outside"
    outside.mkdir()
    root = make.root(
        make.link(b"a", os.fsencode(outside)),
        make.directory(b"d", make.link(b"up", b"../../outside"), make.file(b"x")),
        make.link(b"etc", b"/etc/passwd"),
    )

    export_tree(root, make.workspace.store, tmp_path / "out")

    assert list(outside.iterdir()) == []
    assert os.readlink(tmp_path / "out" / "a") == str(outside)
    assert stat.S_ISLNK(os.lstat(tmp_path / "out" / "etc").st_mode)


class Planter:
    """A store whose owner changes the target between two writes."""

    def __init__(self, make: Maker, plant: object) -> None:
        self._store = make.workspace.store
        self._plant = plant

    def __getattr__(self, name: str) -> object:
        if name == "load_node" and callable(self._plant):
            self._plant()
        return getattr(self._store, name)


def test_directory_swapped_for_a_link_leads_nowhere(make: Maker, tmp_path: Path) -> None:
    """Whoever replaces a directory by a link while we write gains nothing outside."""
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    root = make.root(make.directory(b"d", make.directory(b"e", make.file(b"f"))))

    def plant() -> None:
        if (out / "d" / "e").is_dir() and not (out / "d").is_symlink():
            (out / "d").rename(out / "moved")
            (out / "d").symlink_to(outside)

    export_tree(root, Planter(make, plant), out)  # type: ignore[arg-type]

    assert list(outside.iterdir()) == []
    assert (out / "moved" / "e" / "f").read_bytes() == b"x"


def test_planted_file_is_not_overwritten(make: Maker, tmp_path: Path) -> None:
    """A name that appears in the target meanwhile is reported, not written through."""
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("safe")
    root = make.root(make.directory(b"d", make.file(b"f", b"evil")))

    def plant() -> None:
        if (out / "d").is_dir() and not (out / "d" / "f").is_symlink():
            (out / "d" / "f").symlink_to(victim)

    result = export_tree(root, Planter(make, plant), out)  # type: ignore[arg-type]

    assert victim.read_text() == "safe"
    assert result.collisions == [b"d/f"]


def test_first_name_swapped_for_another_file_is_not_linked(make: Maker, tmp_path: Path) -> None:
    """A hard link is made to the file that we wrote or not at all."""
    victim, out = tmp_path / "victim", tmp_path / "out"
    victim.write_text("secret")
    first = make.file(b"a", b"data", nlink=2)
    again = first._replace(name=b"b")
    root = make.root(make.directory(b"d", first), make.directory(b"e", again))

    def plant() -> None:
        if (out / "e").is_dir() and (out / "d" / "a").stat().st_ino != victim.stat().st_ino:
            (out / "d" / "a").unlink()
            os.link(victim, out / "d" / "a")

    with pytest.raises(WorkspaceError, match=r"e/b.*replaced"):
        export_tree(root, Planter(make, plant), out)  # type: ignore[arg-type]

    assert not (out / "e" / "b").exists()


def test_same_file_id_with_other_content_is_another_file(make: Maker, tmp_path: Path) -> None:
    """A tree that lies about hard links does not get content mixed up."""
    first = make.file(b"a", b"one", nlink=2)
    liar = make.file(b"b", b"two", nlink=2)._replace(file_id=first.file_id)
    root = make.root(first, liar)

    export_tree(root, make.workspace.store, tmp_path / "out")

    assert (tmp_path / "out" / "a").read_bytes() == b"one"
    assert (tmp_path / "out" / "b").read_bytes() == b"two"


@pytest.mark.parametrize("name", [b"..", b"a/b", b"", b".", b"x\0y"])
def test_hostile_name_stops_the_export(
    make: Maker, tmp_path: Path, name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stored tree with such a name is damage; nothing is written outside."""
    monkeypatch.setattr("workspacefs.trees.build.are_file_names_in_order", lambda _names: True)
    root = make.root(make.file(name, b"evil"))

    with pytest.raises(IntegrityError):
        export_tree(root, make.workspace.store, tmp_path / "out")

    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert list((tmp_path / "out").iterdir()) == []


def test_target_must_be_empty_or_absent(make: Maker, tmp_path: Path) -> None:
    """An existing tree is never mixed with; a file is no target; an empty directory is."""
    root = make.root(make.file(b"f"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()

    with pytest.raises(BusyError, match="not empty"):
        export_tree(root, make.workspace.store, tmp_path / "full")
    with pytest.raises(WorkspaceError, match=r"cannot export to .*file"):
        export_tree(root, make.workspace.store, tmp_path / "file")
    with pytest.raises(WorkspaceError, match=r"cannot export to .*sub"):
        export_tree(root, make.workspace.store, tmp_path / "none" / "sub")
    assert export_tree(root, make.workspace.store, tmp_path / "empty").files == 1


def test_directory_without_write_permission_is_filled(make: Maker, tmp_path: Path) -> None:
    """Modes are set after the content, so read-only directories are no obstacle."""
    inner = make.directory(b"ro", make.file(b"f"))._replace(mode=stat.S_IFDIR | 0o555)
    root = make.root(inner)

    export_tree(root, make.workspace.store, tmp_path / "out")

    assert stat.S_IMODE(os.stat(tmp_path / "out" / "ro").st_mode) == 0o555
    assert os.stat(tmp_path / "out" / "ro").st_mtime_ns == 1


def test_missing_chunk_is_damage_never_a_short_file(make: Maker, tmp_path: Path) -> None:
    """The export stops with IntegrityError."""
    root = make.root(make.directory(b"d", make.file(b"f")))
    lost = make.workspace
    for info in list(lost.backend.iter_keys("packs/")):
        lost.backend.delete(info.key)

    with pytest.raises(IntegrityError):
        export_tree(root, Workspace.open(lost.backend).store, tmp_path / "out")

    assert isinstance(root.content, Subtree)
