"""The groups of workloads over the link."""

from __future__ import annotations

from collections.abc import Iterator

from bench.histories import size_word
from bench.s3.generated import CommitFar, FindFar, MountFar
from bench.s3.network import Network
from bench.s3.sources import GitStatusFar, SearchFar
from bench.s3.workloads import ImportFar, ReadFar
from bench.workload import Group, Place, Scale


def s3_groups(scale: Scale, network: Network) -> Iterator[Group]:
    """Yield all groups, the short ones first."""
    for files in scale.workspaces:
        yield Group(
            f"s3-files-{size_word(files)}",
            (
                MountFar(scale, network, files),
                *(
                    MountFar(scale, network, files, delay_ms=delay_ms)
                    for delay_ms in network.other_delays_ms
                ),
                MountFar(scale, network, files, is_warm=True),
                CommitFar(scale, network, files),
                *(
                    CommitFar(scale, network, files, delay_ms=delay_ms)
                    for delay_ms in network.other_delays_ms
                ),
                FindFar(scale, network, files),
            ),
            is_mounted=False,
            place=Place.S3,
        )
    yield _group("s3-large", ReadFar(scale, network))
    yield _group("s3-import", ImportFar(scale, network))
    yield _group(
        "s3-tree",
        SearchFar(scale, network),
        SearchFar(scale, network, is_cached=True),
        GitStatusFar(scale, network),
    )


def _group(name: str, *workloads: SearchFar | GitStatusFar | ReadFar | ImportFar) -> Group:
    return Group(name, workloads, is_mounted=False, place=Place.S3)
