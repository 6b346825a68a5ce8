"""Ordinary tools on a source-like tree: unpack, look around, search, copy, remove."""

from __future__ import annotations

from pathlib import Path

from bench.failures import expect
from bench.machine import remove_tree
from bench.measure import Work
from bench.processes import run_tool
from bench.systems import WorkspaceFs
from bench.trees import NEEDLE, SourceTree
from bench.workload import ONLY_WORKSPACEFS, Scale, Stage, Unit, Workload


def ensure_tree(stage: Stage) -> SourceTree:
    """Return the tree that lies in the mount; unpack it if no workload has."""
    tree = stage.fixtures.tree()
    if "tree" not in stage.left:
        run_tool(["tar", "-xf", tree.tar, "-C", stage.root])
        stage.left["tree"] = True
    return tree


class Untar(Workload):
    """Unpack the tree from a tar file of the local disk."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(
            "untar",
            f"untar of {scale.tree_files:,} files",
            repeats=1,
            aim_ext4=4.0,
            aim_juicefs=4.0,
        )

    def prepare(self, stage: Stage) -> None:
        # It is in the page cache then, whoever comes first.
        with open(stage.fixtures.tree().tar, "rb") as file:
            while file.read(1 << 20):
                pass

    def run(self, stage: Stage, repetition: int) -> Work:
        tree = stage.fixtures.tree()
        run_tool(["tar", "-xf", tree.tar, "-C", stage.root])
        return Work(tree.files, tree.size_bytes)

    def verify(self, stage: Stage, repetition: int) -> None:
        stage.left["tree"] = True
        stage.fixtures.tree().check(stage.root)


class Settle(Workload):
    """Bring the tree to the store: sync; on workspacefs the commit of the whole tree."""

    is_comparable = False
    shows_stored = True

    def __init__(self, scale: Scale) -> None:
        super().__init__(
            "settle", "commit of that tree (others: sync); bytes stored after it", repeats=1
        )

    def prepare(self, stage: Stage) -> None:
        ensure_tree(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        stage.system.settle()
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        stage.fixtures.tree().check(stage.root)


class _TreeTool(Workload):
    """Base of tools that read the tree, warm, cold, or warm again when it has been committed."""

    def __init__(
        self,
        name: str,
        title: str,
        scale: Scale,
        *,
        is_cold: bool = False,
    ) -> None:
        suffix = "cold" if is_cold else "warm"
        super().__init__(
            f"{name}.{suffix}",
            f"{title}, {suffix}",
            repeats=scale.cold_repeats,
        )
        self._is_cold = is_cold
        self._answer = b""

    def prepare(self, stage: Stage) -> None:
        ensure_tree(stage)
        if self._is_cold:
            stage.system.settle()

    def before(self, stage: Stage, repetition: int) -> None:
        if self._is_cold:
            stage.system.go_cold()
        else:
            self.run(stage, repetition)


class Find(_TreeTool):
    """find with a look at every inode."""

    def __init__(self, scale: Scale, *, is_cold: bool) -> None:
        super().__init__("find", "find -size", scale, is_cold=is_cold)

    def run(self, stage: Stage, repetition: int) -> Work:
        words = ("-size", "-1000000", "-printf", ".")
        self._answer = run_tool(["find", "tree", *words], cwd=stage.root)
        return Work(len(self._answer))

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("names found", len(self._answer), stage.fixtures.tree().names)


class DiskUsage(_TreeTool):
    """du of the tree."""

    def __init__(self, scale: Scale) -> None:
        super().__init__("du", "du -s", scale)

    def run(self, stage: Stage, repetition: int) -> Work:
        words = ("--apparent-size", "--block-size=1", "-s")
        self._answer = run_tool(["du", *words, "tree"], cwd=stage.root)
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        # Sizes of directories differ between file systems; files must all be in it.
        size_bytes = int(self._answer.split()[0])
        expect("du counts all files", size_bytes >= stage.fixtures.tree().size_bytes, True)


class ListAll(_TreeTool):
    """ls -lR of the tree."""

    def __init__(self, scale: Scale, *, is_cold: bool) -> None:
        super().__init__("ls-lR", "ls -lR", scale, is_cold=is_cold)

    def run(self, stage: Stage, repetition: int) -> Work:
        self._answer = run_tool(["ls", "-lR", "tree"], cwd=stage.root)
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        rows = sum(line[:1] in (b"-", b"d", b"l") for line in self._answer.splitlines())
        expect("rows listed", rows, stage.fixtures.tree().names - 1)


class Search(_TreeTool):
    """rg for a string that stands in a known number of files."""

    def __init__(self, scale: Scale, *, is_cold: bool) -> None:
        super().__init__("rg", "rg", scale, is_cold=is_cold)

    def run(self, stage: Stage, repetition: int) -> Work:
        self._answer = run_tool(["rg", "--files-with-matches", NEEDLE, "tree"], cwd=stage.root)
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("files that match", len(self._answer.splitlines()), stage.fixtures.tree().needles)


class SearchAgain(Search):
    """The same, warm, once the tree has been committed and mounted anew."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(scale, is_cold=False)
        self.name = "rg.again"
        self.title = "rg, warm, in the tree as mounted anew"


class CopyTree(Workload):
    """cp -r of the tree, within the mount."""

    def __init__(self, scale: Scale) -> None:
        super().__init__("cp-r", "cp -r", repeats=1, aim_ext4=4.0, aim_juicefs=4.0)

    def prepare(self, stage: Stage) -> None:
        ensure_tree(stage)

    def before(self, stage: Stage, repetition: int) -> None:
        stage.root.joinpath("copy").mkdir()

    def run(self, stage: Stage, repetition: int) -> Work:
        run_tool(["cp", "-r", "tree", "copy/"], cwd=stage.root)
        return Work(stage.fixtures.tree().files, stage.fixtures.tree().size_bytes)

    def verify(self, stage: Stage, repetition: int) -> None:
        stage.left["copy"] = True
        stage.fixtures.tree().check(stage.root / "copy")


class RemoveTree(Workload):
    """rm -rf of that copy."""

    def __init__(self, scale: Scale) -> None:
        super().__init__("rm-rf", "rm -rf of the copy", repeats=1)

    def prepare(self, stage: Stage) -> None:
        ensure_tree(stage)
        if "copy" not in stage.left:
            stage.root.joinpath("copy").mkdir()
            run_tool(["cp", "-r", "tree", "copy/"], cwd=stage.root)

    def run(self, stage: Stage, repetition: int) -> Work:
        run_tool(["rm", "-rf", "copy"], cwd=stage.root)
        return Work(stage.fixtures.tree().files)

    def verify(self, stage: Stage, repetition: int) -> None:
        stage.left.pop("copy", None)
        expect("the copy is there", stage.root.joinpath("copy").exists(), False)
        expect("the original is there", stage.root.joinpath("tree").is_dir(), True)


class Import(Workload):
    """`workspacefs import` of a directory of the local disk into a new workspace."""

    unit = Unit.MB_PER_S
    shows_stored = True

    def __init__(self, scale: Scale, *, is_large: bool) -> None:
        title = (
            f"import of {scale.import_files} files of {scale.import_blocks} MiB"
            if is_large
            else f"import of {scale.tree_files:,} files"
        )
        name = "import.large" if is_large else "import.tree"
        super().__init__(name, title, repeats=1, systems=ONLY_WORKSPACEFS)
        self._is_large = is_large
        self._answer: dict[str, object] = {}

    def prepare(self, stage: Stage) -> None:
        source = self._source(stage)
        if self._is_large and "import.large" not in stage.left:
            source.mkdir()
            count = stage.scale.import_blocks
            for number in range(stage.scale.import_files):
                blocks = stage.fixtures.blocks()
                blocks.write_file(source / f"{number}.bin", first=number * count, blocks=count)
            stage.left["import.large"] = True
        run_tool(["grep", "-rc", "no such text", source], ok=(0, 1))  # into the page cache

    def run(self, stage: Stage, repetition: int) -> Work:
        system = stage.system
        assert isinstance(system, WorkspaceFs)
        self._answer = system.ask("import", str(system.store), str(self._source(stage)), "-m", "b")
        files, size_bytes = self._answer["files"], self._answer["size_bytes"]
        assert isinstance(files, int)
        assert isinstance(size_bytes, int)
        return Work(files, size_bytes)

    def verify(self, stage: Stage, repetition: int) -> None:
        system = stage.system
        assert isinstance(system, WorkspaceFs)
        if self._is_large:
            count, blocks = stage.scale.import_blocks, stage.fixtures.blocks()
            expect("files imported", self._answer["files"], stage.scale.import_files)
            content = system.command("cat", str(system.store), "1.bin")
            for number in range(count):
                at = number * blocks.SIZE_BYTES
                is_same = content[at : at + blocks.SIZE_BYTES] == blocks.block(count + number)
                expect(f"block {number} of 1.bin is as imported", is_same, True)
        else:
            tree = stage.fixtures.tree()
            expect("files imported", self._answer["files"], tree.files + tree.links)
            target = stage.system.home / "exported"
            system.command("export", str(system.store), str(target))
            tree.check(target)
            remove_tree(target)

    def _source(self, stage: Stage) -> Path:
        if self._is_large:
            return stage.system.home / "large"
        return stage.fixtures.unpacked_tree()
