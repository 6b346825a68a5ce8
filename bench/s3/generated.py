"""Mounting, finding and committing in generated workspaces of several sizes, far away."""

from __future__ import annotations

import os

from bench.failures import expect
from bench.histories import changed_content, changed_indices, size_word
from bench.measure import Work
from bench.processes import run_tool
from bench.s3.network import Network
from bench.s3.systems import S3WorkspaceFs
from bench.s3.workloads import MOUNTED_S3, S3Workload, go_to_new_machine
from bench.workload import ONLY_WORKSPACEFS, Scale, Stage, Unit


class _Generated(S3Workload):
    """Base of all that work in a generated tree of `files` files."""

    def __init__(
        self,
        name: str,
        title: str,
        network: Network,
        files: int,
        *,
        repeats: int,
        delay_ms: float | None = None,
        is_ours_only: bool = False,
        aim_ms: float | None = None,
    ) -> None:
        is_for_all = files <= network.peer_files and not is_ours_only
        super().__init__(
            f"{name}.{size_word(files)}",
            f"{title}, {size_word(files)} files",
            network,
            repeats=repeats,
            systems=MOUNTED_S3 if is_for_all else ONLY_WORKSPACEFS,
            delay_ms=delay_ms,
            aim_ms=aim_ms,
        )
        self.files = files

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        if "generated" not in stage.left:
            self.system(stage).put_synthetic(stage.fixtures.synthetic(self.files))
            stage.left["generated"] = True


class MountFar(_Generated):
    """From the start of the mount command to the answer of the first listing of the root.

    Cold: on a machine that knows nothing of the workspace. Warm: a further session on one where
    another was mounted before.
    """

    unit = Unit.MILLISECONDS
    shows_percentiles = True
    watches_memory = False

    def __init__(
        self,
        scale: Scale,
        network: Network,
        files: int,
        *,
        is_warm: bool = False,
        delay_ms: float | None = None,
    ) -> None:
        super().__init__(
            "mount.warm" if is_warm else "mount.cold",
            f"mount to first ls, {'a further session' if is_warm else 'nothing local'}",
            network,
            files,
            repeats=scale.mounts,
            delay_ms=delay_ms,
            is_ours_only=is_warm or delay_ms is not None,
        )
        self._is_warm = is_warm
        self._names: list[str] = []

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        if self._is_warm:
            go_to_new_machine(stage)
            stage.system.mount()
            os.listdir(stage.root)
            stage.system.unmount()

    def before(self, stage: Stage, repetition: int) -> None:
        if self._is_warm:
            _ours(stage).begin_session(f"{self.name}.{repetition}")
        else:
            go_to_new_machine(stage)
        self.go_far(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        stage.system.mount()
        self._names = os.listdir(stage.root)
        return Work()

    def check(self, stage: Stage, repetition: int) -> None:
        tree = stage.fixtures.synthetic(self.files)
        names = {name for name in self._names if not name.startswith(".")}
        expect("names in the root", names, tree.top_names())
        last = tree.files - 1
        content = (stage.root / tree.path(last)).read_bytes()
        expect("content of the last file", content, tree.content(last))


class FindFar(_Generated):
    """find with a look at every inode, in a tree of which nothing is local."""

    def __init__(self, scale: Scale, network: Network, files: int) -> None:
        super().__init__("find", "mount, then find -size, nothing local", network, files, repeats=1)
        self._answer = b""

    def before(self, stage: Stage, repetition: int) -> None:
        go_to_new_machine(stage)
        self.go_far(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        deadline = self.budget()
        stage.system.mount()
        words = ("-type", "f", "-size", "-1000000", "-name", "f*.txt", "-printf", ".")
        self._answer = run_tool(["find", ".", *words], cwd=stage.root, timeout_s=deadline.left_s())
        return Work(len(self._answer))

    def check(self, stage: Stage, repetition: int) -> None:
        expect("names found", len(self._answer), self.files)


class CommitFar(_Generated):
    """The commit command, with files changed all over the tree.

    The others have no commit: for them the writing is timed, until all is stored.
    """

    unit = Unit.MILLISECONDS
    shows_percentiles = True
    watches_memory = False

    def __init__(
        self, scale: Scale, network: Network, files: int, *, delay_ms: float | None = None
    ) -> None:
        super().__init__(
            "commit",
            f"commit of {scale.changes} changed files (others: write them, until stored)",
            network,
            files,
            repeats=scale.mounts,
            delay_ms=delay_ms,
            is_ours_only=delay_ms is not None,
        )
        self._answer: dict[str, object] = {}

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        go_to_new_machine(stage)
        stage.system.mount()
        tree = stage.fixtures.synthetic(self.files)
        for index in self._changed(stage):
            (stage.root / tree.path(index)).read_bytes()

    def before(self, stage: Stage, repetition: int) -> None:
        if isinstance(stage.system, S3WorkspaceFs):
            self._write(stage, repetition)
        self.go_far(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        system = stage.system
        if isinstance(system, S3WorkspaceFs):
            self._answer = system.ask("commit", str(stage.root), "-m", "changed")
        else:
            self._write(stage, repetition)
            system.settle()
        return Work()

    def check(self, stage: Stage, repetition: int) -> None:
        index = self._changed(stage)[-1]
        path = stage.fixtures.synthetic(self.files).path(index)
        system = stage.system
        if isinstance(system, S3WorkspaceFs):
            counts = {"added": 0, "modified": stage.scale.changes, "removed": 0}
            expect("changes that were committed", self._answer["counts"], counts)
            stored = system.command("cat", f"{system.url}@{system.session}", path)
        else:
            stored = (stage.root / path).read_bytes()
        expect(f"content of {path}", stored, changed_content(index, repetition))

    def after(self, stage: Stage, repetition: int) -> None:
        if repetition == self.repeats - 1:
            super().after(stage, repetition)

    def _write(self, stage: Stage, repetition: int) -> None:
        tree = stage.fixtures.synthetic(self.files)
        deadline = self.budget()
        for index in self._changed(stage):
            (stage.root / tree.path(index)).write_bytes(changed_content(index, repetition))
            deadline.left_s()

    def _changed(self, stage: Stage) -> list[int]:
        return changed_indices(self.files, stage.scale.changes)


def _ours(stage: Stage) -> S3WorkspaceFs:
    assert isinstance(stage.system, S3WorkspaceFs)
    return stage.system
