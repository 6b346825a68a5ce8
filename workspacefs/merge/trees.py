"""Merging two trees over a third.

Every file and directory is followed by identity (see docs/merging.md), and three things of it are
merged apart: where it stands, its attributes, and its content. Only what either side changed is
looked at; what nobody changed is taken over in whole nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.ids import FileId
from workspacefs.merge.assembly import Assembly
from workspacefs.merge.collisions import Collisions
from workspacefs.merge.conflicts import Conflict
from workspacefs.merge.content import ContentMerger, MergeSink, MergeSource
from workspacefs.merge.counts import count_changes, count_forward
from workspacefs.merge.identity import Identities, find_identities
from workspacefs.merge.layout import lay_out
from workspacefs.merge.lines import DEFAULT_LABELS, Labels
from workspacefs.merge.outcomes import Outcomes
from workspacefs.merge.reports import Report, list_conflicts, report_identity
from workspacefs.merge.rows import RowMerger
from workspacefs.merge.standing import Standing, find_standings
from workspacefs.merge.table import Table
from workspacefs.objects.commits import ChangeCounts
from workspacefs.objects.entry import Entry
from workspacefs.trees.parameters import TreeParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """A merge of two trees."""

    root: Entry
    conflicts: tuple[Conflict, ...] = ()
    """In order of path."""
    counts: ChangeCounts = field(default_factory=ChangeCounts)
    """How the result differs from ours; all zero when ours is taken as it is."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left to decide."""
        return not self.conflicts


def merge_trees(
    base: Entry,
    ours: Entry,
    theirs: Entry,
    source: MergeSource,
    sink: MergeSink,
    *,
    tree_params: TreeParameters,
    chunk_params: ChunkParameters,
    time_ns: int,
    labels: Labels = DEFAULT_LABELS,
) -> Merged:
    """Merge what both sides changed since `base`.

    The same trees give the same result. With the sides swapped, a clean merge gives the same root,
    byte for byte, and another one the same conflicts, mirrored. Costs O(changes of both sides) in
    time, memory and nodes read.

    Args:
        base: Root of the tree that both sides began from.
        ours: Root of the side that keeps its names where both cannot have them.
        theirs: Root of the other side.
        source: Gives the objects of all three.
        sink: Gets the new ones, children before parents; nothing else counts on them.
        tree_params: Shape of trees in this workspace.
        chunk_params: Where to cut files in this workspace.
        time_ns: Time of what neither side has as it is in the result.
        labels: What the sides are called in conflict markers and in names of what steps aside.

    Raises:
        IntegrityError: A tree is damaged; also whatever `source` raises.
    """
    if ours == theirs or theirs == base:
        return Merged(root=ours)
    if ours == base:
        return Merged(root=theirs, counts=count_forward(base, theirs, source))
    contents = ContentMerger(source, sink, chunk_params, labels)
    rows = RowMerger(contents, time_ns)
    identities = find_identities(base, ours, theirs, source)
    outcomes = Outcomes(identities, rows)
    standings = find_standings(identities)
    table = Table(identities, standings, source)
    collisions = Collisions(identities, standings, outcomes, table, rows, contents)
    reports = _find_conflicts(identities, standings, outcomes, collisions)
    layout = lay_out(identities.root, standings, table, labels)
    assembly = Assembly(identities, outcomes, table, layout, source, sink, tree_params, time_ns)
    root = assembly.build()
    return Merged(
        root=root,
        conflicts=list_conflicts(reports, layout),
        counts=count_changes(identities, layout.places, assembly.row_of),
    )


def _find_conflicts(
    identities: Identities,
    standings: dict[FileId, Standing],
    outcomes: Outcomes,
    collisions: Collisions,
) -> list[Report]:
    """Settle collisions, which changes all that is passed; return every conflict there is."""
    reports = [
        report_identity(kind, identities[key], identities)
        for key in standings
        for kind in outcomes.get(key).conflicts
    ]
    collisions.settle()
    reports += collisions.reports
    reports += [
        report_identity(standing.conflict, identities[key], identities)
        for key, standing in standings.items()
        if standing.conflict is not None and key not in collisions.covered
    ]
    return reports
