"""What a workload is, and what it gets: a system, a scale, and fixtures shared by all systems."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar, Final

from bench.failures import expect
from bench.measure import Work
from bench.processes import run_tool
from bench.s3.network import Network
from bench.s3.site import Site
from bench.synthetic import SyntheticWorkspace
from bench.systems import DEFAULT_SYSTEMS, System
from bench.trees import Blocks, SourceTree, build_source_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much each workload does."""

    name: str
    small_files: int
    crowded_files: int
    tree_files: int
    large_blocks: int
    """Blocks of 1 MiB that are written and read sequentially."""
    import_files: int
    import_blocks: int
    """Blocks of 1 MiB in each large file that is imported."""
    workspaces: tuple[int, ...]
    mounts: int
    changes: int = 100
    repeats: int
    """Of runs that are short."""
    cold_repeats: int
    forks: int
    """How often a session is forked, restored, or given a checkpoint, one after the other."""
    forks_at_once: int
    dirty_files: tuple[int, ...]
    """How many files are not committed in sessions that are forked."""
    landings: int
    """On one branch, by all writers together."""
    restored_files: tuple[int, ...]
    """How many files have changed since what is gone back to; fewer than `small_files`."""


SCALES: Final[Mapping[str, Scale]] = {
    "full": Scale(
        name="full",
        small_files=10_000,
        crowded_files=10_000,
        tree_files=60_000,
        large_blocks=1024,
        import_files=4,
        import_blocks=256,
        workspaces=(1_000, 100_000, 1_000_000),
        mounts=20,
        repeats=5,
        cold_repeats=3,
        forks=40,
        forks_at_once=100,
        dirty_files=(10, 1_000, 100_000),
        landings=200,
        restored_files=(10, 1_000),
    ),
    "tiny": Scale(
        name="tiny",
        small_files=100,
        crowded_files=100,
        tree_files=300,
        large_blocks=8,
        import_files=2,
        import_blocks=2,
        workspaces=(1_000,),
        mounts=2,
        repeats=1,
        cold_repeats=1,
        forks=2,
        forks_at_once=3,
        dirty_files=(10, 1_000),
        landings=20,
        restored_files=(10, 50),
    ),
    "small": Scale(
        name="small",
        small_files=500,
        crowded_files=1_000,
        tree_files=2_000,
        large_blocks=32,
        import_files=2,
        import_blocks=8,
        workspaces=(1_000, 10_000),
        mounts=5,
        repeats=3,
        cold_repeats=2,
        forks=5,
        forks_at_once=10,
        dirty_files=(10, 1_000),
        landings=100,
        restored_files=(10, 100),
    ),
}


class Unit(Enum):
    """What a time is shown as."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    MICROSECONDS_PER_OP = "µs/op"
    MB_PER_S = "MB/s"
    MB = "MB"
    """No time: how much there is of something."""


class Fixtures:
    """Things to work on, made when first asked for; outside of all systems."""

    def __init__(self, home: Path, scale: Scale, seed: int, network: Network) -> None:
        self.home = home
        self.seed = seed
        self._scale = scale
        self._network = network
        self._site: Site | None = None
        self._made: set[Path] = set()
        self._tree: SourceTree | None = None
        self._unpacked: Path | None = None
        self._blocks: Blocks | None = None

    def tree(self) -> SourceTree:
        """Return the source-like tree, as a tar file."""
        if self._tree is None:
            tar = self.home / "tree.tar"
            self._tree = build_source_tree(tar, files=self._scale.tree_files, seed=self.seed)
        return self._tree

    def unpacked_tree(self) -> Path:
        """Return a directory of the local disk that holds the unpacked tree."""
        if self._unpacked is None:
            directory = self.home / "unpacked"
            directory.mkdir()
            run_tool(["tar", "-xf", self.tree().tar, "-C", directory])
            self._unpacked = directory
        return self._unpacked

    def directory(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return a directory of the local disk of this name; `make` fills it, once."""
        path = self.home / name
        if path not in self._made:
            path.mkdir()
            make(path)
            self._made.add(path)
        return path

    def site(self) -> Site:
        """Return the far store; starts it when first asked for."""
        if self._site is None:
            self._site = Site(self.home / "site", self._network)
            self._site.start()
        return self._site

    def close(self) -> dict[str, object]:
        """End what was started; return what is to be said of it."""
        if self._site is None:
            return {}
        facts = self._site.describe()
        self._site.close()
        self._site = None
        return facts

    def blocks(self) -> Blocks:
        """Return the content of large files."""
        if self._blocks is None:
            self._blocks = Blocks(self.seed)
        return self._blocks

    def synthetic(self, files: int) -> SyntheticWorkspace:
        """Return the description of a generated workspace."""
        return SyntheticWorkspace(files, self.seed)


@dataclass(slots=True)
class Stage:
    """One system in one group, and what the group's workloads leave there for each other."""

    system: System
    scale: Scale
    fixtures: Fixtures
    agreed: dict[str, object]
    """Answers that all systems must give alike; shared by the stages of a group."""
    left: dict[str, object] = field(default_factory=dict)
    """Notes of workloads on this system, by key."""

    @property
    def root(self) -> Path:
        """Where to work."""
        return self.system.root

    def agree(self, claim: str, answer: object) -> None:
        """Raise WrongResultError if another system gave another answer to the same question."""
        expect(claim, answer, self.agreed.setdefault(claim, answer))


class Workload(ABC):
    """One thing to measure.

    For each system `prepare` once; then for each repetition `before`, `run` (the only timed part),
    `verify`, `after`. All but `run` may take their time.
    """

    unit: ClassVar[Unit] = Unit.SECONDS
    shows_percentiles: ClassVar[bool] = False
    is_comparable: ClassVar[bool] = True
    """Whether all systems do the same in it, so that a ratio means something."""
    shows_stored: ClassVar[bool] = False
    """Whether the bytes on the disk are taken after the last repetition."""
    watches_memory: ClassVar[bool] = False
    """Whether the memory of all processes together is watched, which costs a little."""
    shows_traffic: ClassVar[bool] = False
    """Whether it is about a far store; such workloads have a table of their own."""
    enough_s: ClassVar[float | None] = None
    """No further repetition once those so far took this long together."""

    def __init__(
        self,
        name: str,
        title: str,
        *,
        repeats: int,
        systems: tuple[str, ...] | None = None,
        aim_ext4: float | None = None,
        aim_juicefs: float | None = None,
        aim_ms: float | None = None,
    ) -> None:
        self.name = name
        self.title = title
        self.repeats = repeats
        self.aim_ext4 = aim_ext4
        """The aim: at most this many times ext4's time."""
        self.aim_juicefs = aim_juicefs
        """The aim: JuiceFS takes at least so many times as long."""
        self.aim_ms = aim_ms
        """The aim: at most so long (the 99th percentile if percentiles are shown)."""
        self._systems = systems

    def fits(self, system_name: str) -> bool:
        """Tell whether the workload makes sense on a system."""
        return self._systems is None or system_name.partition("-")[0] in self._systems

    def prepare(self, stage: Stage) -> None:
        """Make what the workload needs."""
        return

    def before(self, stage: Stage, repetition: int) -> None:
        """Bring caches and files to where a repetition begins."""
        return

    @abstractmethod
    def run(self, stage: Stage, repetition: int) -> Work:
        """Do it."""

    @abstractmethod
    def verify(self, stage: Stage, repetition: int) -> None:
        """Raise WrongResultError unless `run` did what it should."""

    def stored_bytes(self, stage: Stage) -> int:
        """Return what is shown as stored, when `shows_stored`."""
        return stage.system.stored_bytes()

    def after(self, stage: Stage, repetition: int) -> None:
        """Take away what the next repetition must not find."""
        return


class Place(Enum):
    """Where the systems of a group keep what they store."""

    DISK = "disk"
    S3 = "s3"


@dataclass(frozen=True, slots=True)
class Group:
    """Workloads that share one mounted instance of each system, in their order."""

    name: str
    workloads: tuple[Workload, ...]
    is_mounted: bool = True
    """Whether the systems are mounted when the group begins."""
    place: Place = Place.DISK


ALL: Final = DEFAULT_SYSTEMS
ONLY_WORKSPACEFS: Final = ("workspacefs",)
