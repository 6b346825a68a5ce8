"""Random histories of many sessions on one branch, held against a model: nothing is ever lost."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count

import pytest

from workspacefs.backend.memory import MemoryBackend
from workspacefs.ids import ROOT_FILE_ID, FileId
from workspacefs.merge.conflicts import ConflictKind
from workspacefs.merge.incoming import CommitsOf, Forward, Ours, Plan
from workspacefs.merge.landing import LandingMerge
from workspacefs.objects.commits import Commit, Provenance
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.objects.refs import Ref
from workspacefs.refs import RefKind
from workspacefs.trees.build import build_directory
from workspacefs.trees.walk import iter_entries
from workspacefs.workspace.history import iter_history
from workspacefs.workspace.land import land_commit
from workspacefs.workspace.open_merge import NO_MERGE
from workspacefs.workspace.publish import seal_commit
from workspacefs.workspace.workspace import Workspace

Files = dict[bytes, tuple[int, bytes]]
"""File id and content by name; content is binary, so that files merge whole."""

HISTORIES = 400 if os.environ.get("WORKSPACEFS_TEST_EFFORT") == "full" else 40
_NUMBERS = count()
NAMES = [b"f%d" % number for number in range(8)]


@dataclass
class Agent:
    """One session: what it is at, what it has, and what it has committed."""

    number: int
    at: tuple[Ref, Commit]
    files: Files
    commits: list[Ref] = field(default_factory=list)
    next_id: int = 0


class Store:
    """A workspace whose trees are one directory of small files."""

    def __init__(self) -> None:
        self.workspace = Workspace.create(MemoryBackend(f"landings-{next(_NUMBERS)}"))
        self.times = 0

    def commit(self, files: Files, parents: tuple[Ref, ...], name: str) -> tuple[Ref, Commit]:
        """Store a commit that no ref names."""
        self.times += 1
        workspace = self.workspace
        with workspace.new_writer(is_small=True) as writer:
            entries = [
                Entry(key, 0o100644, 0, 0, len(data), 1, 1, FileId(file_id), 1, data)
                for key, (file_id, data) in sorted(files.items())
            ]
            subtree = build_directory(entries, writer, workspace.tree_params)
            commit = Commit(
                root=root_of(subtree), parents=parents, message=name, time_ns=self.times,
                provenance=Provenance(session=name),
            )  # fmt: skip
            ref = seal_commit(writer, commit).ref
        return ref, commit

    def files_of(self, commit: Commit) -> Files:
        """Return what a commit has."""
        found: Files = {}
        for entry in iter_entries(commit.root.subtree, self.workspace.store):
            assert isinstance(entry.content, bytes)
            found[entry.name] = (entry.file_id, entry.content)
        return found

    def tip(self) -> tuple[Ref, Commit]:
        """Return what main is at."""
        return self.workspace.resolve("main")

    def land(self, agent: Agent) -> LandingMerge | None:
        """Land an agent's commit; return what stands against it, or None."""
        joining = LandingMerge(
            self.workspace, name=f"s{agent.number}", provenance=Provenance(agent=f"{agent.number}")
        )
        landed = land_commit(
            self.workspace, agent.at[0], "main", moved_by=f"{agent.number}", join=joining.join
        )
        return joining if landed is None else None


def root_of(subtree: Subtree) -> Entry:
    return Entry(b"", stat.S_IFDIR | 0o755, 0, 0, 0, 1, 1, ROOT_FILE_ID, 2, subtree)


def begin(agents: int) -> tuple[Store, list[Agent]]:
    """Return agents that all begin from one commit on main."""
    store = Store()
    files = {name: (100 + at, b"\0base %d" % at) for at, name in enumerate(NAMES)}
    base = store.commit(files, (), "base")
    land_commit(store.workspace, base[0], "main", moved_by="base")
    made = [Agent(number, base, dict(files)) for number in range(agents)]
    for agent in made:
        agent.next_id = 1000 * (agent.number + 1)
    return store, made


def work(agent: Agent, rng: random.Random, names: list[bytes]) -> None:
    """Write, add and remove a few files."""
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(names)
        if name in agent.files and rng.random() < 0.3:
            del agent.files[name]
            continue
        agent.next_id += 1
        file_id = agent.files[name][0] if name in agent.files else agent.next_id
        agent.files[name] = (file_id, b"\0%d by %d" % (agent.next_id, agent.number))


def commit(store: Store, agent: Agent) -> None:
    """Make what an agent has a commit on top of its last one."""
    agent.at = store.commit(agent.files, (agent.at[0],), f"agent {agent.number}")
    agent.commits.append(agent.at[0])


def update(store: Store, agent: Agent) -> None:
    """Begin anew from main."""
    agent.at = store.tip()
    agent.files = store.files_of(agent.at[1])


def merged(base: Files, ours: Files, theirs: Files) -> dict[bytes, bytes] | set[bytes]:
    """Return what a merge of three directories of binary files is, or the names in conflict."""

    def contents(files: Files) -> dict[bytes, bytes]:
        return {name: data for name, (_, data) in files.items()}

    was, mine, other = contents(base), contents(ours), contents(theirs)
    conflicts, result = set[bytes](), dict[bytes, bytes]()
    for name in was.keys() | mine.keys() | other.keys():
        versions = (was.get(name), mine.get(name), other.get(name))
        data = versions[1] if versions[2] in (versions[0], versions[1]) else versions[2]
        if versions[1] not in (versions[0], versions[2]) and versions[2] != versions[0]:
            conflicts.add(name)
        elif data is not None:
            result[name] = data
    return conflicts or result


def plain(files: Mapping[bytes, tuple[int, bytes]]) -> dict[bytes, bytes]:
    return {name: data for name, (_, data) in files.items()}


def check_connected(store: Store, landed: list[Ref]) -> None:
    """Raise unless all that landed is in the history of main."""
    found = {ref.id for ref, _ in iter_history([store.tip()], store.workspace.store)}
    assert {ref.id for ref in landed} <= found


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_branch_has_what_every_landing_says(seed: int) -> None:
    """One after the other, in any order: main is what a merge of the files by name gives, or the
    names that differ are told; all that landed is in its history.
    """
    rng = random.Random(seed)
    store, agents = begin(4)
    bases = {agent.number: dict(agent.files) for agent in agents}
    landed: list[Ref] = []
    refused = 0
    for _ in range(25):
        agent = rng.choice(agents)
        work(agent, rng, NAMES)
        commit(store, agent)
        if rng.random() < 0.4:
            continue
        before = store.files_of(store.tip()[1])
        wanted = merged(bases[agent.number], before, agent.files)

        against = store.land(agent)

        if isinstance(wanted, set):
            refused += 1
            assert against is not None
            assert against.refusal is not None
            assert {conflict.path for conflict in against.refusal.conflicts} == wanted
            assert store.files_of(store.tip()[1]) == before
            update(store, agent)
        else:
            assert against is None
            assert plain(store.files_of(store.tip()[1])) == wanted
            landed.append(agent.at[0])
            if rng.random() < 0.3:
                update(store, agent)
        bases[agent.number] = dict(agent.files)
        check_connected(store, landed)
    assert landed
    if seed == 0:
        assert refused


@pytest.mark.parametrize("seed", range(4))
def test_landings_at_the_same_time_all_count(seed: int) -> None:
    """Threads that race for one branch, each with files of its own: none is lost or undone, and
    each step of the branch is the merge of its two parents.
    """
    store, agents = begin(6)
    rounds = 8

    def run(agent: Agent) -> None:
        rng = random.Random(seed * 100 + agent.number)
        own = [b"own%d-%d" % (agent.number, at) for at in range(4)]
        for _ in range(rounds):
            work(agent, rng, own)
            commit(store, agent)
            assert store.land(agent) is None

    with ThreadPoolExecutor(len(agents)) as threads:
        list(threads.map(run, agents))

    check_connected(store, [ref for agent in agents for ref in agent.commits])
    tip = store.tip()
    main = plain(store.files_of(tip[1]))
    for agent in agents:
        prefix = b"own%d-" % agent.number
        own = {name: data for name, data in plain(agent.files).items() if name.startswith(prefix)}
        assert {name: data for name, data in main.items() if name.startswith(prefix)} == own
    steps = list(iter_history([tip], store.workspace.store, first_parent=True))
    names = [commit.provenance.agent for _, commit in steps if len(commit.parents) == 2]
    assert len(names) >= len(agents) * rounds - rounds


def test_branches_merged_into_each_other_have_a_base() -> None:
    """Two best common ancestors: what both have taken over is no conflict."""
    store, (one, two) = begin(2)
    one.files[b"f0"] = (100, b"\0one")
    commit(store, one)
    two.files[b"f1"] = (101, b"\0two")
    commit(store, two)
    first = [one.at, two.at]
    both = {**one.files, b"f1": two.files[b"f1"]}
    crossed = [
        store.commit(both, (mine[0], other[0]), "crossed") for mine, other in (first, first[::-1])
    ]
    land_commit(store.workspace, crossed[0][0], "main", moved_by="me")
    two.at, two.files = crossed[1], dict(both)
    two.files[b"f2"] = (102, b"\0later")
    commit(store, two)

    against = store.land(two)

    assert against is None
    assert plain(store.files_of(store.tip()[1])) == plain({**both, b"f2": (102, b"\0later")})


@pytest.mark.parametrize("is_same", [True, False])
def test_histories_without_a_common_commit(is_same: bool) -> None:
    """What both have alike is no conflict, all else under one name is."""
    store, (agent,) = begin(1)
    files = {b"new": (900, b"\0new"), b"f0": (901, b"\0base 0" if is_same else b"\0other")}
    agent.at = store.commit(files, (), "alone")

    against = store.land(agent)

    if is_same:
        assert against is None
        assert b"new" in store.files_of(store.tip()[1])
    else:
        assert against is not None
        assert against.refusal is not None
        kinds = [(one.path, one.kind) for one in against.refusal.conflicts]
        assert kinds == [(b"f0", ConflictKind.ADD_ADD)]
    assert store.workspace.refs.find(RefKind.BRANCH, "main") is not None


def bring_in(store: Store, agent: Agent) -> Plan | Forward | None:
    """Merge main into an agent's session, as `update` does; its next commit is that."""
    ours = Ours(f"s{agent.number}", agent.at, None, NO_MERGE)
    incoming = CommitsOf(store.tip(), "main", into=ours.name)
    plan = incoming.plan(ours, store.workspace, Provenance(agent=f"{agent.number}"))
    if isinstance(plan, Forward):
        agent.at = (plan.ref, plan.stored.commit)
    elif plan is not None and plan.joined.is_final:
        agent.at = (plan.joined.stored.ref, plan.joined.stored.commit)
    agent.files = store.files_of(agent.at[1])
    return plan


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_sessions_that_update_and_land(seed: int) -> None:
    """Landings and updates in any order: what a session shows after an update is the merge of what
    both had by name, or the names in conflict are told and it stays as it was; nothing that landed
    or was committed is ever out of the history that it belongs to.
    """
    rng = random.Random(1000 + seed)
    store, agents = begin(4)
    bases = {agent.number: dict(agent.files) for agent in agents}
    landed: list[Ref] = []
    for _ in range(25):
        agent = rng.choice(agents)
        if rng.random() < 0.6:
            work(agent, rng, NAMES)
            commit(store, agent)
        main, before = store.files_of(store.tip()[1]), agent.at
        wanted = merged(bases[agent.number], agent.files, main)

        if rng.random() < 0.5:
            against = store.land(agent)
            if isinstance(wanted, set):
                assert against is not None
                assert store.files_of(store.tip()[1]) == main
                continue
            assert against is None
            assert plain(store.files_of(store.tip()[1])) == wanted
            landed.append(agent.at[0])
            bases[agent.number] = dict(agent.files)
        else:
            plan = bring_in(store, agent)
            if isinstance(wanted, set):
                assert isinstance(plan, Plan)
                told = {conflict.path for conflict in plan.joined.conflicts.values()}
                assert told == wanted
                assert agent.at == before
                continue
            assert plain(agent.files) == wanted
            found = {ref.id for ref, _ in iter_history([agent.at], store.workspace.store)}
            assert {before[0].id, store.tip()[0].id} <= found
            bases[agent.number] = main
        check_connected(store, landed)
    assert landed
