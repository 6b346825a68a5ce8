"""Mounting, status, diff and commit in generated workspaces of several sizes."""

from __future__ import annotations

import os
from pathlib import Path

from bench.failures import expect
from bench.measure import Work
from bench.processes import run_tool
from bench.synthetic import SyntheticWorkspace
from bench.systems import WorkspaceFs
from bench.workload import ONLY_WORKSPACEFS, Scale, Stage, Unit, Workload


def size_word(files: int) -> str:
    """Return 10 as "10", 1000 as "1k", 1000000 as "1M"."""
    if files < 1000:
        return str(files)
    return f"{files // 1_000_000}M" if files >= 1_000_000 else f"{files // 1000}k"


class Generated(Workload):
    """Base of all that work in a generated workspace of `files` files."""

    unit = Unit.MILLISECONDS
    shows_percentiles = True

    def __init__(
        self,
        name: str,
        title: str,
        files: int,
        *,
        repeats: int,
        systems: tuple[str, ...],
        aim_ms: float,
    ) -> None:
        super().__init__(
            f"{name}.{size_word(files)}",
            f"{title}, {size_word(files)} files",
            repeats=repeats,
            systems=systems,
            aim_ms=aim_ms,
        )
        self.files = files

    def ensure_generated(self, stage: Stage) -> SyntheticWorkspace:
        """Fill the store, if no workload has. The system is not mounted before and after."""
        tree = stage.fixtures.synthetic(self.files)
        if "generated" not in stage.left:
            if isinstance(stage.system, WorkspaceFs):
                tree.publish(stage.system.store)
            else:
                _write_through_mount(stage, tree)
            stage.left["generated"] = True
        return tree


class Mount(Generated):
    """From the start of the mount command to the answer of the first listing of the root.

    Each repetition begins a session of its own, as a sandbox does.
    """

    def __init__(self, scale: Scale, files: int, *, is_warm: bool) -> None:
        title = "supervisor running" if is_warm else "no supervisor yet"
        is_smallest = files == scale.workspaces[0]
        super().__init__(
            f"mount.{'warm' if is_warm else 'cold'}",
            f"mount to first ls, {title}",
            files,
            repeats=scale.mounts,
            systems=(*ONLY_WORKSPACEFS, "juicefs") if is_smallest and is_warm else ONLY_WORKSPACEFS,
            aim_ms=50 if is_warm else 200,
        )
        self._is_warm = is_warm
        self._names: list[str] = []

    def prepare(self, stage: Stage) -> None:
        self.ensure_generated(stage)
        if self._is_warm:
            stage.system.mount()
            stage.system.unmount()

    def before(self, stage: Stage, repetition: int) -> None:
        system = stage.system
        if isinstance(system, WorkspaceFs):
            system.begin_session(f"{self.name}.{repetition}")
            if not self._is_warm:
                system.stop_supervisor()

    def run(self, stage: Stage, repetition: int) -> Work:
        stage.system.mount()
        self._names = os.listdir(stage.root)
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        tree = stage.fixtures.synthetic(self.files)
        # JuiceFS shows files of its own, whose names begin with a full stop.
        names = {name for name in self._names if not name.startswith(".")}
        expect("names in the root", names, tree.top_names())
        last = tree.files - 1
        content = (stage.root / tree.path(last)).read_bytes()
        expect("content of the last file", content, tree.content(last))

    def after(self, stage: Stage, repetition: int) -> None:
        stage.system.unmount()


class Changes(Generated):
    """A command about changed files, spread over the whole tree: status, diff or commit."""

    def __init__(self, scale: Scale, files: int, verb: str) -> None:
        super().__init__(
            verb,
            f"{verb} of {scale.changes} changed files",
            files,
            repeats=scale.mounts,
            systems=ONLY_WORKSPACEFS,
            aim_ms=50 if verb == "commit" else 100,
        )
        self._verb = verb
        self._answer: dict[str, object] = {}

    def prepare(self, stage: Stage) -> None:
        tree = self.ensure_generated(stage)
        system = workspacefs_of(stage)
        system.begin_session(f"changes.{self._verb}")
        system.mount()
        for index in self._changed(stage):
            content = (stage.root / tree.path(index)).read_bytes()
            expect("content before the change", content, tree.content(index))

    def before(self, stage: Stage, repetition: int) -> None:
        tree = stage.fixtures.synthetic(self.files)
        for index in self._changed(stage):
            (stage.root / tree.path(index)).write_bytes(changed_content(index, repetition))

    def run(self, stage: Stage, repetition: int) -> Work:
        words = ("-m", "changed") if self._verb == "commit" else ()
        self._answer = workspacefs_of(stage).ask(self._verb, str(stage.root), *words)
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        count = stage.scale.changes
        if self._verb == "status":
            rows = self._answer["changes"]
            assert isinstance(rows, list)
            expect("changes", [row["kind"] for row in rows], ["modified"] * count)
        elif self._verb == "diff":
            patch = str(self._answer["patch"])
            expect("files in the patch", patch.count("\n+++ ") + patch.startswith("+++ "), count)
            wanted = changed_content(self._changed(stage)[-1], repetition).decode().splitlines()[0]
            expect("the last change is in the patch", f"+{wanted}" in patch, True)
        else:
            counts = {"added": 0, "modified": count, "removed": 0}
            expect("changes that were committed", self._answer["counts"], counts)
            self._check_stored(stage, repetition)

    def after(self, stage: Stage, repetition: int) -> None:
        if repetition == self.repeats - 1:
            stage.system.unmount()

    def _check_stored(self, stage: Stage, repetition: int) -> None:
        system = workspacefs_of(stage)
        expect("changes left", system.ask("status", str(stage.root))["changes"], [])
        index = self._changed(stage)[-1]
        path = stage.fixtures.synthetic(self.files).path(index)
        stored = system.command("cat", f"{system.store}@{system.session}", path)
        expect(f"committed content of {path}", stored, changed_content(index, repetition))

    def _changed(self, stage: Stage) -> list[int]:
        return changed_indices(self.files, stage.scale.changes)


class StartCommand(Workload):
    """`workspacefs --version`: what every command costs before it does anything."""

    unit = Unit.MILLISECONDS
    shows_percentiles = True

    def __init__(self, scale: Scale) -> None:
        super().__init__(
            "cli.start",
            "workspacefs --version (part of every row with a command)",
            repeats=scale.mounts,
            systems=ONLY_WORKSPACEFS,
        )
        self._answer = ""

    def run(self, stage: Stage, repetition: int) -> Work:
        self._answer = stage.system.version()
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("a version is told", bool(self._answer), True)


def changed_indices(files: int, changes: int) -> list[int]:
    """Return which files change, spread over the whole tree."""
    step = files // changes
    return [number * step + step // 2 for number in range(changes)]


def changed_content(index: int, repetition: int) -> bytes:
    """Return what a changed file holds after a repetition."""
    return b"".join(b"line %d of %d, %d\n" % (line, index, repetition) for line in range(80))


def workspacefs_of(stage: Stage) -> WorkspaceFs:
    """Return the system of a stage, which is ours."""
    assert isinstance(stage.system, WorkspaceFs)
    return stage.system


def _write_through_mount(stage: Stage, tree: SyntheticWorkspace) -> None:
    stage.system.mount()
    for index in range(tree.files):
        path: Path = stage.root / tree.path(index)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tree.content(index))
    run_tool(["sync", "-f", stage.root])
    stage.system.unmount()
