"""Merging what others changed, and landing beside others."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from pathlib import Path

from bench.failures import expect
from bench.git_tool import run_git
from bench.histories import (
    Generated,
    changed_content,
    changed_indices,
    size_word,
    workspacefs_of,
)
from bench.measure import Work
from bench.systems import WorkspaceFs
from bench.workload import ONLY_WORKSPACEFS, Scale, Stage, Unit, Workload
from workspacefs.testing.crowd import plant, run_crowd
from workspacefs.workspace.history import iter_history
from workspacefs.workspace.workspace import Workspace

_THEIRS = "theirs"
_GIT_MAX_FILES = 100_000
"""A repository of more takes minutes to make."""


class Merge(Generated):
    """The merge command: 100 files were changed and committed here, 100 others there.

    On a plain directory, `git merge` of the same tree with the same changes.
    """

    def __init__(self, scale: Scale, files: int) -> None:
        systems = ("ext4", *ONLY_WORKSPACEFS) if files <= _GIT_MAX_FILES else ONLY_WORKSPACEFS
        super().__init__(
            "merge",
            f"merge of {scale.changes} changes with {scale.changes} others",
            files,
            repeats=scale.mounts,
            systems=systems,
            aim_ms=100,
        )

    def prepare(self, stage: Stage) -> None:
        self.ensure_generated(stage)
        system = stage.system
        if isinstance(system, WorkspaceFs):
            system.begin_session(_THEIRS)
            system.mount()
            self._change(stage, self._theirs(stage), 0)
            system.ask("commit", str(stage.root), "-m", _THEIRS)
            system.unmount()
            return
        for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "base")):
            run_git(stage.root, *words)
        run_git(stage.root, "checkout", "-q", "-b", _THEIRS)
        self._change(stage, self._theirs(stage), 0)
        run_git(stage.root, "commit", "-q", "-a", "-m", _THEIRS)

    def before(self, stage: Stage, repetition: int) -> None:
        system = stage.system
        if isinstance(system, WorkspaceFs):
            system.begin_session(f"merge.{repetition}")
            system.mount()
            self._change(stage, self._ours(stage), repetition)
            system.ask("commit", str(stage.root), "-m", "ours")
        else:
            run_git(stage.root, "checkout", "-q", "-B", f"ours{repetition}", "main")
            self._change(stage, self._ours(stage), repetition)
            run_git(stage.root, "commit", "-q", "-a", "-m", "ours")

    def run(self, stage: Stage, repetition: int) -> Work:
        if isinstance(stage.system, WorkspaceFs):
            stage.system.ask("merge", "--from", _THEIRS, str(stage.root))
        else:
            run_git(stage.root, "merge", "-q", "--no-edit", _THEIRS)
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        tree = stage.fixtures.synthetic(self.files)
        for index in self._theirs(stage):
            content = (stage.root / tree.path(index)).read_bytes()
            expect("what they changed", content, changed_content(index, 0))
        for index in self._ours(stage):
            content = (stage.root / tree.path(index)).read_bytes()
            expect("what we changed", content, changed_content(index, repetition))
        if isinstance(stage.system, WorkspaceFs):
            left = workspacefs_of(stage).ask("status", str(stage.root))["changes"]
            expect("changes that are not committed", left, [])

    def after(self, stage: Stage, repetition: int) -> None:
        if isinstance(stage.system, WorkspaceFs):
            stage.system.unmount()

    def _change(self, stage: Stage, indices: list[int], repetition: int) -> None:
        tree = stage.fixtures.synthetic(self.files)
        for index in indices:
            (stage.root / tree.path(index)).write_bytes(changed_content(index, repetition))

    def _ours(self, stage: Stage) -> list[int]:
        return changed_indices(self.files, stage.scale.changes)

    def _theirs(self, stage: Stage) -> list[int]:
        return [index - 1 for index in self._ours(stage)]


class Landings(Workload):
    """Processes of one machine that land commits of a file each on one branch, as fast as they can:
    time for one landing, all together. Each has been at it as often as the others.
    """

    unit = Unit.MILLISECONDS

    def __init__(self, scale: Scale, writers: int) -> None:
        super().__init__(
            f"landing.{writers}",
            f"landing beside others, {size_word(writers)} writers",
            repeats=scale.cold_repeats,
            systems=ONLY_WORKSPACEFS,
        )
        self._writers = writers
        self._rounds = max(1, scale.landings // writers)
        self._rows: list[dict[str, object]] = []
        self._store = Path()

    def before(self, stage: Stage, repetition: int) -> None:
        self._store = stage.fixtures.home / f"{self.name}.{repetition}"
        plant(self._url)

    def run(self, stage: Stage, repetition: int) -> Work:
        state = str(self._store.with_suffix(".state"))
        self._rows = run_crowd(self._url, self._writers, self._rounds, [state], os.environ)
        began = [float(str(row["began_s"])) for row in self._rows]
        done = [float(str(row["done_s"])) for row in self._rows]
        return Work(told_s=(max(done) - min(began)) / len(self._rows))

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("landings", len(self._rows), self._writers * self._rounds)
        workspace = Workspace.open(self._url)
        tip = workspace.resolve("main")
        history = {ref.id.hex() for ref, _ in iter_history([tip], workspace.store)}
        expect("all in the history", {row["commit"] for row in self._rows} <= history, True)
        half = Counter(row["worker"] for row in self._rows[: len(self._rows) // 2])
        if self._rounds >= 4 and self._writers > 1:
            least = min(half[number] for number in range(self._writers))
            expect("none is left behind", least >= statistics.median(half.values()) / 2, True)

    @property
    def _url(self) -> str:
        return f"file://{self._store}"
