"""rg and git in a source-like tree that lies far away, with a git repository in it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.failures import expect
from bench.git_tool import run_git
from bench.machine import drop_page_cache
from bench.measure import Work
from bench.processes import run_tool
from bench.s3.network import Network
from bench.s3.peers import Rclone
from bench.s3.workloads import ALL_S3, S3Workload, go_to_new_machine
from bench.trees import NEEDLE
from bench.workload import Scale, Stage

_STATUS: Final = ("status", "--porcelain")
_REPACK: Final = ("repack", "-a", "-d", "-q")
"""As in a fresh clone: few files, not one for each object."""


class _Sources(S3Workload):
    """Base of all that work in the repository."""

    def __init__(self, name: str, title: str, scale: Scale, network: Network) -> None:
        super().__init__(name, title, network, repeats=scale.cold_repeats, systems=ALL_S3)

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        if "sources" not in stage.left:
            self.system(stage).put_directory(_repository(stage))
            stage.left["sources"] = True


class SearchFar(_Sources):
    """rg for a string that stands in a known number of files, after a mount on a new machine."""

    def __init__(self, scale: Scale, network: Network, *, is_cached: bool = False) -> None:
        where = "all read before on this machine" if is_cached else "nothing local"
        super().__init__(
            "rg.cached" if is_cached else "rg.cold",
            f"mount, then rg in {scale.tree_files:,} files, {where}",
            scale,
            network,
        )
        self._is_cached = is_cached
        self._answer = b""

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        if self._is_cached:
            go_to_new_machine(stage)
            stage.system.mount()
            # rg stops reading where it knows enough.
            command = ["grep", "-rc", "no such text", "tree"]
            budget_s = self.network.prepare_budget_s
            run_tool(command, cwd=stage.root, ok=(0, 1), timeout_s=budget_s)
            self.system(stage).rest()

    def before(self, stage: Stage, repetition: int) -> None:
        if self._is_cached:
            self.system(stage).calm()
            self.system(stage).ensure_unmounted()
            drop_page_cache()
        else:
            go_to_new_machine(stage)
        self.go_far(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        deadline = self.budget()
        stage.system.mount()
        command = ["rg", "--files-with-matches", NEEDLE, "tree"]
        self._answer = run_tool(command, cwd=stage.root, timeout_s=deadline.left_s())
        return Work(stage.scale.tree_files)

    def check(self, stage: Stage, repetition: int) -> None:
        expect("files that match", len(self._answer.splitlines()), stage.fixtures.tree().needles)


class GitStatusFar(_Sources):
    """git status of the clean repository, after a mount on a new machine.

    The index was refreshed in an earlier mount of the same system: it has the times and numbers
    that this system showed then.
    """

    def __init__(self, scale: Scale, network: Network) -> None:
        super().__init__(
            "git.status",
            f"mount, then git status, {scale.tree_files:,} files, nothing local",
            scale,
            network,
        )
        self._answer = b""

    def prepare(self, stage: Stage) -> None:
        super().prepare(stage)
        if "index" not in stage.left:
            go_to_new_machine(stage)
            stage.system.mount()
            if isinstance(stage.system, Rclone):
                # It keeps no modes; git init would have found that out.
                run_git(stage.root / "tree", "config", "core.fileMode", "false")
            answer = run_git(stage.root / "tree", *_STATUS, timeout_s=self.network.prepare_budget_s)
            expect("changes that git sees", answer, b"")
            stage.system.settle()
            stage.left["index"] = True

    def before(self, stage: Stage, repetition: int) -> None:
        go_to_new_machine(stage)
        self.go_far(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        deadline = self.budget()
        stage.system.mount()
        self._answer = run_git(stage.root / "tree", *_STATUS, timeout_s=deadline.left_s())
        return Work()

    def check(self, stage: Stage, repetition: int) -> None:
        expect("changes that git sees", self._answer, b"")


def _repository(stage: Stage) -> Path:
    tree = stage.fixtures.tree()

    def make(top: Path) -> None:
        run_tool(["tar", "-xf", tree.tar, "-C", top])
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "b"), _REPACK):
            run_git(top / tree.top, *words)

    return stage.fixtures.directory("repository", make)
