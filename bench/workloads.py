"""The list of all workloads, in groups that share a mount."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

from bench.forks import Fork, ForkLarge, ForkMany, IdleForks
from bench.git import GitAdd, GitCommit, GitStatus
from bench.histories import Changes, Mount, StartCommand, size_word
from bench.large_files import ReadLarge, WriteLarge
from bench.merging import Landings, Merge
from bench.s3.groups import s3_groups
from bench.s3.network import Network
from bench.sessions import Autosave, Checkpoint, Idle, ReadThrough, Restore
from bench.small_files import CreateFiles, ListCrowded, ReadFiles, StatAbsent, StatFiles
from bench.tree_tools import (
    CopyTree,
    DiskUsage,
    Find,
    Import,
    ListAll,
    RemoveTree,
    Search,
    SearchAgain,
    Settle,
    Untar,
)
from bench.workload import Group, Scale, Workload

_S3: Final = "s3"
_WRITERS: Final = (1, 8, 50)
_DEPTHS: Final = (1, 4, 8)
"""Frozen layers in a chain; one of more is made shorter in the background."""


def groups(scale: Scale, patterns: list[str], network: Network) -> list[Group]:
    """Return the groups with the workloads whose name fits one of the patterns.

    A pattern also fits every name that begins with it and a full stop. What needs a far store
    takes hours: it is meant only by patterns that begin with its name.
    """
    chosen = []
    for group in (*_all_groups(scale), *s3_groups(scale, network)):
        fitting = tuple(found for found in group.workloads if _fits(found, patterns))
        if fitting:
            chosen.append(replace(group, workloads=fitting))
    return chosen


def _fits(workload: Workload, patterns: list[str]) -> bool:
    return any(
        fnmatchcase(workload.name, pattern) or fnmatchcase(workload.name, f"{pattern}.*")
        for pattern in patterns
        if pattern.startswith(_S3) == workload.shows_traffic
    )


def _all_groups(scale: Scale) -> Iterator[Group]:
    yield Group(
        "small",
        (
            CreateFiles(scale),
            StatFiles(scale),
            StatAbsent(scale),
            ReadFiles(scale, is_cold=False),
            ListCrowded(scale, is_cold=False),
            ReadFiles(scale, is_cold=True),
            ListCrowded(scale, is_cold=True),
        ),
    )
    yield Group(
        "tree",
        (
            Untar(scale),
            Find(scale, is_cold=False),
            DiskUsage(scale),
            ListAll(scale, is_cold=False),
            Search(scale, is_cold=False),
            CopyTree(scale),
            RemoveTree(scale),
            Settle(scale),
            Find(scale, is_cold=True),
            ListAll(scale, is_cold=True),
            Search(scale, is_cold=True),
            SearchAgain(scale),
        ),
    )
    yield Group(
        "git",
        (
            GitAdd(scale),
            GitCommit(scale),
            GitStatus(scale, is_cold=False),
            GitStatus(scale, is_cold=True),
        ),
    )
    yield Group(
        "large",
        (
            WriteLarge(scale, is_synced=False),
            WriteLarge(scale, is_synced=True),
            ReadLarge(scale, is_cold=False),
            ReadLarge(scale, is_cold=True),
        ),
    )
    yield Group("import-tree", (Import(scale, is_large=False),), is_mounted=False)
    yield Group("import-large", (Import(scale, is_large=True),), is_mounted=False)
    yield Group("cli", (StartCommand(scale),), is_mounted=False)
    yield Group("landings", tuple(Landings(scale, n) for n in _WRITERS), is_mounted=False)
    yield _forks(scale)
    yield _sessions(scale)
    for files in scale.workspaces:
        yield Group(
            f"files-{size_word(files)}",
            (
                Mount(scale, files, is_warm=True),
                Mount(scale, files, is_warm=False),
                Changes(scale, files, "status"),
                Changes(scale, files, "diff"),
                Changes(scale, files, "commit"),
                Merge(scale, files),
            ),
            is_mounted=False,
        )


def _forks(scale: Scale) -> Group:
    return Group(
        "forks",
        (
            *(Fork(scale, files) for files in scale.dirty_files),
            ForkLarge(scale),
            Fork(scale, scale.dirty_files[1], is_command=True),
            ForkMany(scale),
            IdleForks(scale),
        ),
        is_mounted=False,
    )


def _sessions(scale: Scale) -> Group:
    return Group(
        "sessions",
        (
            Checkpoint(scale),
            *(
                Restore(scale, changed, is_command=is_command)
                for changed in scale.restored_files
                for is_command in (False, True)
            ),
            *(ReadThrough(scale, layers) for layers in _DEPTHS),
            Autosave(scale, is_on=False),
            Autosave(scale, is_on=True),
            Idle(scale),
        ),
        is_mounted=False,
    )
