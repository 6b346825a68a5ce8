"""What becomes of two sides' changes: every kind of conflict, and their clean neighbours.

A row says what each side did, what the result shows, and which conflicts there are. Every row is
merged in both directions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from tests.unit.merge_checks import check_nothing_lost, check_tree, facts
from tests.unit.merge_files import Files, do, show
from tests.unit.merge_three import Three
from workspacefs.merge.conflicts import Conflict, ConflictKind, Version
from workspacefs.objects.entry import Entry
from workspacefs.testing.objects import MemoryObjects
from workspacefs.trees.walk import walk

DEFAULT_BASE = "mkdir d; write f 1 2 3 4 5; write d/x 1 2 3 4 5; write d/y y; write g g"
_REGION = re.compile(
    rb"<<<<<<< ours\n(.*?)\|\|\|\|\|\|\| base\n(.*?)=======\n(.*?)>>>>>>> theirs\n", re.DOTALL
)


def shown(root: Entry, store: MemoryObjects) -> str:
    """Return what a tree holds: "PATH=LINE,LINE", conflict regions as {ours|base|theirs}."""
    parts = []
    for path, data in show(root, store).items():
        if data == b"/":
            parts.append(path + b"/")
            continue
        data = _REGION.sub(rb"{\1|\2|\3}\n", data)
        data = data.replace(b"\n|", b"|").replace(b"\n}", b"}").rstrip(b"\n")
        parts.append(path + b"=" + data.replace(b"\n", b",").replace(b"\0", b"NUL"))
    return b" ".join(parts).decode()


@dataclass(frozen=True)
class Row:
    ours: str
    theirs: str
    result: str
    """Paths that stay as they are in the base are left out of this."""
    conflicts: str = ""
    """"KIND PATH" or "KIND PATH+BESIDE", in order."""
    swapped: str = ""
    """The result in the other direction, where it is not the same."""
    swapped_conflicts: str = ""
    base: str = DEFAULT_BASE


ROWS = {
    # -- clean: files ----------------------------------------------------------------------
    "nothing at all": Row("", "", ""),
    "other files": Row("write f A", "write g B", "f=A g=B"),
    "other lines": Row("write f A 2 3 4 5", "write f 1 2 3 4 B", "f=A,2,3,4,B"),
    "the same edit": Row("write f A", "write f A", "f=A"),
    "edited, and touched": Row("write f A", "touch f", "f=A"),
    "edited, and moved": Row("write f A", "mv f e", "e=A -f"),
    "edited, and moved into a directory": Row("write f A", "mv f d/f", "d/f=A -f"),
    "both moved alike": Row("mv f e; write e A 2 3 4 5", "mv f e", "e=A,2,3,4,5 -f"),
    "replaced, and edited": Row("replace f A 2 3 4 5", "write f 1 2 3 4 B", "f=A,2,3,4,B"),
    "replaced by both": Row("replace f A 2 3 4 5", "replace f 1 2 3 4 B", "f=A,2,3,4,B"),
    "replaced, and moved": Row("replace f A", "mv f e", "e=A -f"),
    "removed by both": Row("rm f", "rm f", "-f"),
    "removed": Row("rm f", "write g B", "g=B -f"),
    "removed, and touched": Row("rm f", "touch f", "-f"),
    "removed, and replaced by the same": Row("rm f", "replace f 1 2 3 4 5", "-f"),
    "added by both alike": Row("write n N", "write n N", "n=N"),
    "names swapped, and edited": Row(
        "mv f t; mv g f; mv t g", "write f 1 2 3 4 B", "f=g g=1,2,3,4,B"
    ),
    "moved over another": Row("mv f g", "write f 1 2 3 4 B", "g=1,2,3,4,B -f"),
    "moved away, and a new one": Row("mv f e; write f N", "write f 1 2 3 4 B", "e=1,2,3,4,B f=N"),
    "chmod, and edited": Row("chmod f 600", "write f B", "f=B"),
    "chmod and chown": Row("chmod f 600", "chown f 7", ""),
    "two attributes": Row("xattr f user.a 1", "xattr f user.b 2", ""),
    "empty files": Row("write n", "write n", "n="),
    "emptied, and moved": Row("write f", "mv f e", "e= -f"),
    "other ends of a line": Row("replace f 1 2 3 4 5 6", "touch f", "f=1,2,3,4,5,6"),
    # -- clean: hard links -----------------------------------------------------------------
    "linked, and edited": Row("ln f e", "write f B", "e=B f=B"),
    "linked by both": Row("ln f e", "ln f h", "e=1,2,3,4,5 h=1,2,3,4,5"),
    "linked, and replaced": Row("ln f e", "replace f B", "e=B f=B"),
    "one name removed, and edited": Row(
        "rm h", "write f B", "f=B -h", base="write f 1; ln f h"
    ),
    "each name moved by one": Row(
        "mv f e", "mv h i", "e=1 i=1 -f -h", base="write f 1; ln f h"
    ),
    "both names removed": Row("rm f; rm h", "rm f", "-f -h", base="write f 1; ln f h"),
    # -- clean: directories ----------------------------------------------------------------
    "directory moved, file edited": Row("mv d e", "write d/x B", "e/ e/x=B e/y=y -d -d/x -d/y"),
    "directory moved, file added": Row(
        "mv d e", "write d/n N", "e/ e/n=N e/x=1,2,3,4,5 e/y=y -d -d/x -d/y"
    ),
    "directory moved, file removed": Row("mv d e", "rm d/x", "e/ e/y=y -d -d/x -d/y"),
    "directory moved, file moved out": Row(
        "mv d e", "mv d/x x", "e/ e/y=y x=1,2,3,4,5 -d -d/x -d/y"
    ),
    "directory moved, file moved in": Row(
        "mv d e", "mv f d/f", "e/ e/f=1,2,3,4,5 e/x=1,2,3,4,5 e/y=y -d -d/x -d/y -f"
    ),
    "directory moved, directory added": Row(
        "mv d e", "mkdir d/s; write d/s/n N",
        "e/ e/s/ e/s/n=N e/x=1,2,3,4,5 e/y=y -d -d/x -d/y",
    ),
    "moved into a new directory, edited": Row(
        "mkdir n; mv d n/d", "write d/x B", "n/ n/d/ n/d/x=B n/d/y=y -d -d/x -d/y"
    ),
    "moved into each other's": Row(
        "mv f d/f", "mv d e", "e/ e/f=1,2,3,4,5 e/x=1,2,3,4,5 e/y=y -d -d/x -d/y -f"
    ),
    "directory made afresh, file edited": Row("remake d", "write d/x B", "d/x=B"),
    "directory made afresh, file added": Row("remake d", "write d/n N", "d/n=N"),
    "made afresh by both": Row("remake d; write d/n N", "remake d; rm d/x", "d/n=N -d/x"),
    "directory removed by both": Row("rm d", "rm d", "-d -d/x -d/y"),
    "directory removed": Row("rm d", "write f B", "f=B -d -d/x -d/y"),
    "directory removed, file added": Row("rm d", "write d/n N", "d/n=N -d/x -d/y"),
    "directory removed, file added deep in it": Row(
        "rm d", "mkdir d/s/t; write d/s/t/n N", "d/s/ d/s/t/ d/s/t/n=N -d/x -d/y"
    ),
    "directory removed, file moved in": Row("rm d", "mv f d/f", "d/f=1,2,3,4,5 -d/x -d/y -f"),
    "file moved out, directory removed": Row("mv d/x x; rm d", "write d/x B", "x=B -d -d/x -d/y"),
    "directory made by both": Row(
        "mkdir n; write n/a A", "mkdir n; write n/b B", "n/ n/a=A n/b=B"
    ),
    "directories made by both, two deep": Row(
        "mkdir n/m; write n/m/a A", "mkdir n/m; write n/m/b B", "n/ n/m/ n/m/a=A n/m/b=B"
    ),
    "moved onto a directory that was made": Row(
        "mv d n", "mkdir n; write n/b B", "n/ n/b=B n/x=1,2,3,4,5 n/y=y -d -d/x -d/y"
    ),
    "two moved onto one name": Row(
        "mv d n", "mv e n", "n/ n/x=1,2,3,4,5 n/y=y n/z=z -d -d/x -d/y -e -e/z",
        base=DEFAULT_BASE + "; mkdir e; write e/z z",
    ),
    # -- clean: kinds ----------------------------------------------------------------------
    "file became a directory": Row("rm f; mkdir f; write f/n N", "write g B", "f/ f/n=N g=B -f"),
    "directory became a file": Row("rm d; write d N", "write g B", "d=N g=B -d -d/x -d/y"),
    "file became a link": Row("symlink f t", "write g B", "f=->t g=B"),
    "file became a directory on both": Row(
        "rm f; mkdir f; write f/a A", "rm f; mkdir f; write f/b B", "f/ f/a=A f/b=B -f"
    ),
    "other kinds added": Row("fifo p", "device c 7", "c= p="),
    "link turned, and moved": Row("symlink l u", "mv l m", "m=->u -l", base="symlink l t"),
    # -- content ---------------------------------------------------------------------------
    "content": Row(
        "write f 1 A 3 4 5", "write f 1 B 3 4 5", "f=1,{A|2|B},3,4,5", "content f",
        "f=1,{B|2|A},3,4,5",
    ),
    "content of what one side moved": Row(
        "mv f e; write e A 2 3 4 5", "write f B 2 3 4 5", "e={A|1|B},2,3,4,5 -f", "content e",
        "e={B|1|A},2,3,4,5 -f",
    ),
    "content in a directory that moved": Row(
        "mv d e", "write d/x B; write d/n N", "e/ e/n=N e/x=B e/y=y -d -d/x -d/y"
    ),
    "content with two names": Row(
        "ln f e; write f A", "write f B", "e={A|1,2,3,4,5|B} f={A|1,2,3,4,5|B}", "content e",
        "e={B|1,2,3,4,5|A} f={B|1,2,3,4,5|A}",
    ),
    "content, replaced by both": Row(
        "replace f A", "replace f B", "f={A|1,2,3,4,5|B}", "content f", "f={B|1,2,3,4,5|A}"
    ),
    "content and mode": Row(
        "write f A; chmod f 600", "write f B; chmod f 640", "f={A|1,2,3,4,5|B}",
        "content f; mode f", "f={B|1,2,3,4,5|A}",
    ),
    # -- add/add ---------------------------------------------------------------------------
    "add/add": Row("write n A", "write n B", "n={A||B}", "add/add n", "n={B||A}"),
    "add/add with lines in common": Row(
        "write n 1 A 3", "write n 1 B 3", "n=1,{A||B},3", "add/add n", "n=1,{B||A},3"
    ),
    "add/add in a directory of both": Row(
        "mkdir n; write n/a A", "mkdir n; write n/a B", "n/ n/a={A||B}", "add/add n/a",
        "n/ n/a={B||A}",
    ),
    "add/add of binary files": Row(
        "binary n A", "binary n B", "n=NULA n~theirs=NULB", "add/add n+n~theirs",
        "n=NULB n~theirs=NULA",
    ),
    "add/add of links": Row(
        "symlink n A", "symlink n B", "n=->A n~theirs=->B", "add/add n+n~theirs",
        "n=->B n~theirs=->A",
    ),
    "add/add of devices": Row(
        "device n 1", "device n 2", "n= n~theirs=", "add/add n+n~theirs", "n= n~theirs="
    ),
    "moved onto what was added": Row(
        "mv f n", "write n B", "n={1,2,3,4,5||B} -f", "add/add n", "n={B||1,2,3,4,5} -f"
    ),
    "two moved onto one": Row(
        "mv f n", "mv g n", "n={1,2,3,4,5||g} -f -g", "add/add n", "n={g||1,2,3,4,5} -f -g"
    ),
    "add/add of a file with two names": Row(
        "write n A; ln n m", "write n B", "m=A n=A n~theirs=B", "add/add n+n~theirs",
        "m=A n=B n~theirs=A",
    ),
    "in a directory moved onto one that was made": Row(
        "mv d n", "mkdir n; write n/x B", "n/ n/x={1,2,3,4,5||B} n/y=y -d -d/x -d/y",
        "add/add n/x", "n/ n/x={B||1,2,3,4,5} n/y=y -d -d/x -d/y",
    ),
    # -- modify/delete ---------------------------------------------------------------------
    "modify/delete": Row("rm f", "write f B", "f=B", "modify/delete f", "f=B"),
    "replaced, and removed": Row("rm f", "replace f B", "f=B", "modify/delete f", "f=B"),
    "mode of what was removed": Row(
        "rm f", "chmod f 600", "f=1,2,3,4,5", "modify/delete f", "f=1,2,3,4,5"
    ),
    "modified in a directory that was removed": Row(
        "rm d", "write d/x B", "d/x=B -d/y", "modify/delete d/x", "d/x=B -d/y"
    ),
    "mode of a directory that was removed": Row(
        "rm d", "chmod d 700", "", "modify/delete d", ""
    ),
    "link turned, and removed": Row(
        "rm l", "symlink l u", "l=->u", "modify/delete l", "l=->u", base="symlink l t"
    ),
    "another moved over what was modified": Row(
        "mv f g", "write g B", "g=1,2,3,4,5 g~theirs=B -f", "modify/delete g~theirs",
        "g=B g~theirs=1,2,3,4,5 -f", "modify/delete g",
    ),
    # -- rename/rename ---------------------------------------------------------------------
    "rename/rename": Row(
        "mv f a", "mv f b", "a=1,2,3,4,5 -f", "rename/rename a", "b=1,2,3,4,5 -f",
        "rename/rename b",
    ),
    "rename/rename with edits": Row(
        "mv f a; write a A 2 3 4 5", "mv f d/b; write d/b 1 2 3 4 B", "a=A,2,3,4,B -f",
        "rename/rename a", "d/b=A,2,3,4,B -f", "rename/rename d/b",
    ),
    "rename/rename of a directory": Row(
        "mv d a; write a/x A 2 3 4 5", "mv d b; write b/x 1 2 3 4 B; write b/n N",
        "a/ a/n=N a/x=A,2,3,4,B a/y=y -d -d/x -d/y", "rename/rename a",
        "b/ b/n=N b/x=A,2,3,4,B b/y=y -d -d/x -d/y", "rename/rename b",
    ),
    "directories moved into each other": Row(
        "mv d e/d", "mv e d/e", "e/ e/d/ e/d/x=1,2,3,4,5 e/d/y=y -d -d/x -d/y",
        "rename/rename e; rename/rename e/d", "d/e/ -e",
        "rename/rename d; rename/rename d/e", base=DEFAULT_BASE + "; mkdir e",
    ),
    "moved into each other in a ring of three": Row(
        "mv a b/a", "mv b c/b; mv c a/c", "b/a/ -a",
        "rename/rename b; rename/rename b/a; rename/rename c",
        "a/c/ a/c/b/ -b -c", "rename/rename a; rename/rename a/c; rename/rename a/c/b",
        base="mkdir a; mkdir b; mkdir c",
    ),
    "each removed the other's last name": Row(
        "rm f", "rm h", "h=1 -f", "rename/rename h", "f=1 -h", "rename/rename f",
        base="write f 1; ln f h",
    ),
    # -- rename/delete ---------------------------------------------------------------------
    "rename/delete": Row(
        "rm f", "mv f e", "e=1,2,3,4,5 -f", "rename/delete e", "e=1,2,3,4,5 -f"
    ),
    "rename/delete with edits": Row(
        "rm f", "mv f e; write e B", "e=B -f", "rename/delete e", "e=B -f"
    ),
    "rename/delete of a directory": Row(
        "rm d", "mv d e", "e/ e/x=1,2,3,4,5 e/y=y -d -d/x -d/y", "rename/delete e",
        "e/ e/x=1,2,3,4,5 e/y=y -d -d/x -d/y",
    ),
    "moved out of a directory that was removed": Row(
        "rm d", "mv d/x x", "x=1,2,3,4,5 -d -d/x -d/y", "rename/delete x",
        "x=1,2,3,4,5 -d -d/x -d/y",
    ),
    # -- directory/file --------------------------------------------------------------------
    "directory/file": Row(
        "mkdir n; write n/a A", "write n B", "n/ n/a=A n~theirs=B", "directory/file n+n~theirs",
        "n=B n~theirs/ n~theirs/a=A",
    ),
    "file became a directory, and was edited": Row(
        "rm f; mkdir f; write f/n N", "write f B", "f/ f/n=N f~theirs=B -f",
        "directory/file f+f~theirs", "f=B f~theirs/ f~theirs/n=N",
    ),
    "directory became a file, file added": Row(
        "rm d; write d N", "write d/n B", "d=N d~theirs/ d~theirs/n=B -d -d/x -d/y",
        "directory/file d+d~theirs", "d/n=B d~theirs=N -d/x -d/y",
    ),
    "directory became a file, file edited": Row(
        "rm d; write d N", "write d/x B", "d=N d~theirs/ d~theirs/x=B -d -d/x -d/y",
        "directory/file d+d~theirs; modify/delete d~theirs/x", "d/x=B d~theirs=N -d/y",
        "directory/file d+d~theirs; modify/delete d/x",
    ),
    "directory became a link, directory changed": Row(
        "rm d; symlink d t", "chmod d 700",
        "d=->t d~theirs/ d~theirs/x=1,2,3,4,5 d~theirs/y=y -d -d/x -d/y",
        "directory/file d+d~theirs", "d~theirs=->t",
    ),
    # -- kind ------------------------------------------------------------------------------
    "kind": Row(
        "write n A", "symlink n B", "n=A n~theirs=->B", "kind n+n~theirs", "n=->B n~theirs=A"
    ),
    "file became a link, and was edited": Row(
        "symlink f t", "write f B", "f=->t f~theirs=B", "kind f+f~theirs", "f=B f~theirs=->t"
    ),
    "file became a link, and was moved": Row(
        "symlink f t", "mv f e", "e=1,2,3,4,5 f=->t", "rename/delete e", "e=1,2,3,4,5 f=->t"
    ),
    # -- mode ------------------------------------------------------------------------------
    "mode": Row("chmod f 600", "chmod f 640", "", "mode f"),
    "owner": Row("chown f 1", "chown f 2", "", "mode f"),
    "extended attribute": Row("xattr f user.a 1", "xattr f user.a 2", "", "mode f"),
    "mode of a directory": Row("chmod d 700", "chmod d 711", "", "mode d"),
    "mode of what both added": Row("write n N; chmod n 600", "write n N", "n=N", "mode n"),
    "mode of a directory that both made": Row("mkdir n; chmod n 700", "mkdir n", "n/", "mode n"),
    "mode of a directory that another was moved onto": Row(
        "mv d n", "mkdir n; chmod n 700", "n/ n/x=1,2,3,4,5 n/y=y -d -d/x -d/y", "mode n"
    ),
    # -- symlink, binary -------------------------------------------------------------------
    "symlink": Row("symlink l A", "symlink l B", "l=->A", "symlink l", "l=->B", base="symlink l t"),
    "binary": Row("binary f A", "binary f B", "f=NULA", "binary f", "f=NULB"),
    "binary and text": Row("binary f A", "write f B", "f=NULA", "binary f", "f=B"),
    "binary base": Row("write f A", "write f B", "f=A", "binary f", "f=B", base="binary f 1"),
    "device numbers": Row(
        "rm c; device c 1", "rm c; device c 2", "c=", "kind c", base="device c 0"
    ),
    # -- names that are taken --------------------------------------------------------------
    "name beside is taken": Row(
        "binary n A; write n~theirs 1", "binary n B; write n~theirs~2 2",
        "n=NULA n~theirs=1 n~theirs~2=2 n~theirs~3=NULB", "add/add n+n~theirs~3",
        "n=NULB n~theirs=1 n~theirs~2=2 n~theirs~3=NULA",
    ),
    "name beside is taken in the base": Row(
        "binary n A", "binary n B", "n=NULA n~theirs~2=NULB", "add/add n+n~theirs~2",
        "n=NULB n~theirs~2=NULA", base="write n~theirs 1",
    ),
}  # fmt: skip


def expected(three: Three, result: str) -> str:
    """Return all that a result shows: what a row says, and what it leaves out."""
    base = dict(_split(part) for part in shown(three.roots()[0], three.store).split())
    parts = result.split()
    for part in parts:
        if part.startswith("-"):
            gone = part[1:]
            base.pop(gone, None)
            base.pop(gone + "/", None)
    for part in parts:
        if not part.startswith("-"):
            path, rest = _split(part)
            base[path] = rest
    return " ".join(sorted((path + rest for path, rest in base.items()), key=_walk_order))


def _split(part: str) -> tuple[str, str]:
    path, sign, rest = part.partition("=")
    return path, sign + rest


def _walk_order(part: str) -> list[str]:
    return _split(part)[0].rstrip("/").split("/")


def said(conflicts: tuple[Conflict, ...]) -> str:
    """Return conflicts as rows say them."""
    return "; ".join(
        f"{conflict.kind.value} {conflict.path.decode()}"
        + (f"+{conflict.beside.decode()}" if conflict.beside else "")
        for conflict in conflicts
    )


def of(row: Row) -> Three:
    base = Files()
    do(base, row.base)
    three = Three(base)
    do(three.ours, row.ours)
    do(three.theirs, row.theirs)
    return three


@pytest.mark.parametrize("name", ROWS)
def test_what_becomes_of_it(name: str) -> None:
    """Result and conflicts are as the row says."""
    row = ROWS[name]
    three = of(row)

    merged = three.merge()

    assert shown(merged.root, three.store) == expected(three, row.result)
    assert said(merged.conflicts) == row.conflicts
    check_tree(merged.root, three.store)
    check_nothing_lost(merged, three)


@pytest.mark.parametrize("name", ROWS)
def test_what_becomes_of_it_the_other_way_round(name: str) -> None:
    """With the sides swapped, a clean result is the same, and else the conflicts are mirrored."""
    row = ROWS[name]
    three = of(row)

    merged, swapped = three.merge(), three.merge(swapped=True)

    if merged.is_clean:
        assert (swapped.root, swapped.conflicts) == (merged.root, ())
    result = row.swapped or row.result
    assert shown(swapped.root, three.store) == expected(three, result)
    assert said(swapped.conflicts) == (row.swapped_conflicts or row.conflicts)
    assert sorted(map(repr, map(facts, merged.conflicts))) == sorted(
        repr(facts(conflict.mirrored())) for conflict in swapped.conflicts
    )
    check_tree(swapped.root, three.store)
    check_nothing_lost(swapped, three)


def test_every_kind_is_in_the_table() -> None:
    """And every one in both directions."""
    kinds = {part.split()[0] for row in ROWS.values() for part in row.conflicts.split("; ") if part}

    assert kinds == {kind.value for kind in ConflictKind}


@pytest.mark.parametrize("name", ROWS)
def test_versions_are_those_of_the_trees(name: str) -> None:
    """Each is what its tree has at its path; none is there where the file is not."""
    three = of(ROWS[name])
    trees = [dict(walk(root, three.store)) for root in three.roots()]

    for conflict in three.merge().conflicts:
        versions = (conflict.base, conflict.ours, conflict.theirs)
        for tree, version in zip(trees, versions, strict=True):
            assert version is None or tree[version.path] == version.entry
        assert sum(version is not None for version in versions) >= 2


def versions(row: Row) -> list[tuple[Version | None, Version | None, Version | None]]:
    return [
        (conflict.base, conflict.ours, conflict.theirs) for conflict in of(row).merge().conflicts
    ]


def test_versions_of_a_removed_and_changed_file() -> None:
    """The side that removed it has none."""
    [(base, ours, theirs)] = versions(ROWS["modify/delete"])

    assert base is not None
    assert ours is None
    assert theirs is not None
    assert (base.path, theirs.path) == (b"f", b"f")
    assert theirs.entry.content == b"B\n"


def test_versions_of_a_file_that_became_a_directory() -> None:
    """The base is the file that it was, although its id is gone on one side."""
    [(base, ours, theirs)] = versions(ROWS["file became a directory, and was edited"])

    assert base is not None
    assert ours is not None
    assert theirs is not None
    assert (base.entry.file_id, ours.entry.is_dir) == (theirs.entry.file_id, True)


def test_versions_name_paths_before_and_after_a_move() -> None:
    """Each version has the path of its own tree."""
    [(base, ours, theirs)] = versions(ROWS["rename/rename"])

    assert [version and version.path for version in (base, ours, theirs)] == [b"f", b"a", b"b"]
