"""Changes between two trees, as kinds and as text; looking into trees."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from workspacefs.errors import NotFoundError, UsageError
from workspacefs.ids import FileId
from workspacefs.objects.entry import Entry
from workspacefs.testing.nodes import MemoryNodes
from workspacefs.trees.build import build_directory
from workspacefs.trees.parameters import TreeParameters
from workspacefs.workspace.changes import ChangeKind, PathChange, changes_between
from workspacefs.workspace.difftext import count_lines, iter_patch, iter_stat, quote_path
from workspacefs.workspace.landing import import_directory
from workspacefs.workspace.listing import list_path, read_file, stream_file
from workspacefs.workspace.workspace import Workspace


class Trees:
    """Two states of one directory, imported one after the other."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "tree"
        self.path.mkdir()
        self.workspace = Workspace.create(str(tmp_path / "store"))
        self.store = self.workspace.store
        self.roots: list[Entry] = []

    def snap(self) -> Entry:
        root = import_directory(self.workspace, self.path, message="m").commit.root
        self.roots.append(root)
        return root

    def changes(self) -> list[PathChange]:
        return changes_between(self.roots[-2], self.roots[-1], self.store)

    def patch(self) -> str:
        return "".join(iter_patch(self.changes(), self.store))


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


def kinds(changes: list[PathChange]) -> list[tuple[str, bytes]]:
    return [(change.kind.value, change.path) for change in changes]


def test_each_kind_of_change_has_its_letter(trees: Trees) -> None:
    """Added, modified, removed, attributes, type; a mere touch is no change."""
    path = trees.path
    for name in ("edit", "gone", "mode", "kind", "touch"):
        (path / name).write_text(name)
    (path / "dir").mkdir()
    trees.snap()
    (path / "edit").write_text("edited")
    (path / "gone").unlink()
    (path / "mode").chmod(0o755)
    (path / "kind").unlink()
    (path / "kind").symlink_to("edit")
    os.utime(path / "touch", ns=(5, 5))
    (path / "new").write_text("new")
    (path / "dir" / "in").write_text("in")
    trees.snap()

    assert kinds(trees.changes()) == [
        ("A", b"dir/in"),
        ("M", b"edit"),
        ("D", b"gone"),
        ("T", b"kind"),
        ("m", b"mode"),
        ("A", b"new"),
    ]


def test_rename_is_told_by_file_id() -> None:
    """One file id under two paths is a rename; what moved with its directory is not repeated."""
    nodes = MemoryNodes()

    def file(name: bytes, file_id: int, data: bytes = b"x") -> Entry:
        mode = stat.S_IFREG | 0o644
        return Entry(name, mode, 0, 0, len(data), 1, 2, FileId(file_id), 1, data)

    def directory(name: bytes, file_id: int, *entries: Entry) -> Entry:
        below = build_directory(sorted(entries), nodes, TreeParameters(seed=1))
        return Entry(name, stat.S_IFDIR | 0o755, 0, 0, 0, 1, 2, FileId(file_id), 2, below)

    old = directory(
        b"",
        1,
        file(b"a", 2),
        directory(b"d", 3, file(b"x", 4), file(b"y", 5)),
        file(b"swap1", 6),
        file(b"swap2", 7, b"other"),
    )
    new = directory(
        b"",
        1,
        file(b"b", 2, b"and edited"),
        directory(b"e", 3, file(b"x", 4), file(b"y", 5, b"edited")),
        file(b"swap1", 7, b"other"),
        file(b"swap2", 6),
    )

    changes = changes_between(old, new, nodes)

    assert [(c.kind.value, c.old_path, c.path) for c in changes] == [
        ("R", b"a", b"b"),
        ("R", b"d", b"e"),
        ("R", b"d/y", b"e/y"),
        ("M", None, b"swap1"),
        ("M", None, b"swap2"),
    ]


def test_patch_of_attributes_tells_the_mode_or_nothing(trees: Trees) -> None:
    """A header alone says nothing, and some programs refuse it."""
    file = trees.path / "file"
    file.write_text("x\n")
    trees.snap()
    try:
        os.setxattr(file, "user.k", b"v")
    except OSError:
        pytest.skip("no extended attributes here")
    trees.snap()
    assert kinds(trees.changes()) == [("m", b"file")]
    assert trees.patch() == ""
    file.chmod(0o755)
    trees.snap()
    assert trees.patch() == ("diff --git a/file b/file\nold mode 100644\nnew mode 100755\n")


def test_patch_applies_with_git(trees: Trees, tmp_path: Path) -> None:
    """`git apply` turns the old tree into the new one, odd names and missing newlines included."""
    path = trees.path
    (path / "a").write_text("".join(f"line {n}\n" for n in range(100)))
    (path / "no newline").write_text("one\ntwo")
    (path / "gone").write_text("x\n")
    (path / "tab\tname\xe9").write_text("odd\n")
    (path / "mode").write_text("same\n")
    (path / "empty").touch()
    (path / "kind").write_text("was a file\n")
    trees.snap()
    subprocess.run(["cp", "-r", path, tmp_path / "old"], check=True)
    text = (path / "a").read_text()
    (path / "a").write_text("first\n" + text.replace("line 50\n", "fifty\n").rstrip("\n"))
    (path / "no newline").write_text("one\n2\n")
    (path / "gone").unlink()
    (path / "tab\tname\xe9").write_text("odder\n")
    (path / "mode").chmod(0o755)
    (path / "empty").write_text("now full\n")
    (path / "new").write_text("new\nfile\n")
    (path / "link").symlink_to("a")
    (path / "kind").unlink()
    (path / "kind").symlink_to("b")
    trees.snap()

    patch = os.fsencode(trees.patch())

    subprocess.run(["git", "apply", "-"], input=patch, cwd=tmp_path / "old", check=True)
    subprocess.run(["diff", "-r", "--no-dereference", tmp_path / "old", path], check=True)
    assert os.access(tmp_path / "old" / "mode", os.X_OK)


def test_patch_reads_like_git(trees: Trees) -> None:
    """The text is the familiar one."""
    (trees.path / "f").write_text("one\ntwo\nthree\n")
    trees.snap()
    (trees.path / "f").write_text("one\n2\nthree\n")
    trees.snap()

    assert trees.patch() == (
        "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    )


def test_binary_files_are_told_not_shown(trees: Trees) -> None:
    """NUL near the beginning makes a file binary."""
    (trees.path / "f").write_bytes(b"\0\1")
    trees.snap()
    (trees.path / "f").write_bytes(b"\0\2")
    trees.snap()

    assert trees.patch().endswith("Binary files a/f and b/f differ\n")
    assert count_lines(trees.changes()[0], trees.store) is None
    assert next(iter_stat(trees.changes(), trees.store)) == " f | binary\n"


def test_stat_counts_lines(trees: Trees) -> None:
    """One row a file and a sum."""
    (trees.path / "a").write_text("1\n2\n")
    (trees.path / "long name").write_text("x\n")
    trees.snap()
    (trees.path / "a").write_text("1\n3\n4\n")
    (trees.path / "long name").unlink()
    trees.snap()

    assert list(iter_stat(trees.changes(), trees.store)) == [
        " a         |     3 ++-\n",
        " long name |     1 -\n",
        " 2 files changed, 2 insertions(+), 2 deletions(-)\n",
    ]


def test_paths_are_quoted_as_git_does() -> None:
    """Printable names stay; control and undecodable bytes are escaped."""
    assert quote_path("caf\xe9 au lait".encode()) == "caf\xe9 au lait"
    assert quote_path(b'a"b\\c\n\xff') == '"a\\"b\\\\c\\n\\377"'


def test_listing_and_reading(trees: Trees) -> None:
    """ls of a directory, of a file, of everything; cat by range and as a stream."""
    (trees.path / "d" / "e").mkdir(parents=True)
    (trees.path / "d" / "f").write_bytes(b"0123456789" * 40_000)
    root = trees.snap()

    def paths(path: bytes, **options: bool) -> list[bytes]:
        return [found for found, _ in list_path(root, path, trees.store, **options)]

    assert paths(b"") == [b"d"]
    assert paths(b"/d/") == [b"d/e", b"d/f"]
    assert paths(b"d/f") == [b"d/f"]
    assert paths(b"", recursive=True) == [b"d", b"d/e", b"d/f"]
    assert read_file(root, b"d/f", trees.store, offset=131_070, length=12) == b"012345678901"
    assert read_file(root, b"d/f", trees.store, offset=399_995) == b"56789"
    assert b"".join(stream_file(root, b"d/f", trees.store)) == b"0123456789" * 40_000


def test_wrong_paths_are_explained(trees: Trees) -> None:
    """Near names for a typo; the kind for something that is no file."""
    (trees.path / "src").mkdir()
    (trees.path / "src" / "module.py").touch()
    root = trees.snap()

    with pytest.raises(NotFoundError, match=r"did you mean src/module\.py"):
        read_file(root, b"src/modul.py", trees.store)
    with pytest.raises(UsageError, match="src is a directory"):
        read_file(root, b"src", trees.store)
    with pytest.raises(NotFoundError, match="not a directory"):
        read_file(root, b"src/module.py/x", trees.store)
    assert ChangeKind("R") is ChangeKind.RENAMED
