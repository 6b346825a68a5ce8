"""git on a source-like tree: init and add, commit, status."""

from __future__ import annotations

from bench.failures import expect
from bench.git_tool import run_git
from bench.measure import Work
from bench.tree_tools import ensure_tree
from bench.workload import Scale, Stage, Workload


def git(stage: Stage, *words: str) -> bytes:
    """Run git in the tree."""
    return run_git(stage.root / "tree", *words)


def ensure_repository(stage: Stage) -> None:
    """Make sure that the tree is a repository with everything committed."""
    ensure_tree(stage)
    if "git.added" not in stage.left:
        git(stage, "init", "-q")
        git(stage, "add", "-A")
        stage.left["git.added"] = True
    if "git.committed" not in stage.left:
        git(stage, "commit", "-q", "-m", "bench")
        stage.left["git.committed"] = True


class GitAdd(Workload):
    """git init and git add -A of the whole tree."""

    def __init__(self, scale: Scale) -> None:
        super().__init__(
            "git.add", "git init + git add -A", repeats=1, aim_ext4=3.0, aim_juicefs=4.0
        )

    def prepare(self, stage: Stage) -> None:
        ensure_tree(stage)

    def run(self, stage: Stage, repetition: int) -> Work:
        git(stage, "init", "-q")
        git(stage, "add", "-A")
        return Work(stage.fixtures.tree().files)

    def verify(self, stage: Stage, repetition: int) -> None:
        stage.left["git.added"] = True
        tree = stage.fixtures.tree()
        expect("files in the index", git(stage, "ls-files").count(b"\n"), tree.files + tree.links)


class GitCommit(Workload):
    """git commit of what was added."""

    def __init__(self, scale: Scale) -> None:
        super().__init__("git.commit", "git commit", repeats=1)

    def prepare(self, stage: Stage) -> None:
        ensure_tree(stage)
        if "git.added" not in stage.left:
            git(stage, "init", "-q")
            git(stage, "add", "-A")
            stage.left["git.added"] = True

    def run(self, stage: Stage, repetition: int) -> Work:
        git(stage, "commit", "-q", "-m", "bench")
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        stage.left["git.committed"] = True
        # Content, names and modes of every file make this id: it must not depend on the system.
        stage.agree("id of the git commit", git(stage, "rev-parse", "HEAD").decode().strip())


class GitStatus(Workload):
    """git status of the clean tree."""

    def __init__(self, scale: Scale, *, is_cold: bool) -> None:
        suffix = "cold" if is_cold else "warm"
        super().__init__(
            f"git.status.{suffix}",
            f"git status, {suffix}",
            repeats=scale.cold_repeats if is_cold else scale.repeats,
        )
        self._is_cold = is_cold
        self._answer = b""

    def prepare(self, stage: Stage) -> None:
        ensure_repository(stage)
        if self._is_cold:
            stage.system.settle()

    def before(self, stage: Stage, repetition: int) -> None:
        if self._is_cold:
            stage.system.go_cold()
        else:
            self.run(stage, repetition)

    def run(self, stage: Stage, repetition: int) -> Work:
        self._answer = git(stage, "status", "--porcelain")
        return Work()

    def verify(self, stage: Stage, repetition: int) -> None:
        expect("changes that git sees", self._answer, b"")
