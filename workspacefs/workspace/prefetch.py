"""Bringing the content of files to this machine: all frames that they lie in, in few requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from workspacefs.errors import NotFoundError
from workspacefs.objects.entry import Entry
from workspacefs.packs.prefetch import AT_ONCE, FramePlace, FrameRange, join_frames
from workspacefs.packs.table import pack_key
from workspacefs.trees.walk import resolve_path, walk
from workspacefs.workspace.content import chunks_of
from workspacefs.workspace.workspace import Workspace

_BATCH_FRAMES: Final = 64 * 1024
"""Frames that are gathered before they are fetched: bounds memory."""

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes known of so far."""


@dataclass(slots=True)
class Prefetched:
    """What was brought."""

    files: int = 0
    size_bytes: int = 0
    """Of the files."""
    fetched_bytes: int = 0
    """That were not here before, as stored."""
    absent: list[bytes] = field(default_factory=list)
    """Paths that the commit does not have."""


def prefetch_paths(
    workspace: Workspace,
    root: Entry,
    paths: Sequence[bytes],
    *,
    progress: Progress = lambda done, total: None,
) -> Prefetched:
    """Fetch the content of files, and of all below directories, through the store's cache.

    Blocks until all is here. What is damaged or missing is left for whoever reads it to find.

    Raises:
        UnavailableError: The store does not answer.
    """
    result = Prefetched()
    done = total = 0
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="prefetch") as threads:
        for places in _batches(_iter_files(workspace, root, paths, result), workspace):
            wanted = [one for one in join_frames(places) if not _is_near(workspace, one)]
            total += sum(one.length for one in wanted)
            for length in threads.map(lambda one: _fetch(workspace, one), wanted):
                done += length
                progress(done, total)
    result.fetched_bytes = done
    return result


def _iter_files(
    workspace: Workspace, root: Entry, paths: Sequence[bytes], result: Prefetched
) -> Iterator[Entry]:
    for path in paths:
        try:
            top = resolve_path(root, path, workspace.store)
        except NotFoundError:
            result.absent.append(path)
            continue
        below: Iterable[Entry] = [top]
        if top.is_dir:
            below = (entry for _, entry in walk(top, workspace.store))
        for entry in below:
            if not entry.is_dir:
                result.files += 1
                result.size_bytes += entry.size_bytes
                yield entry


def _batches(files: Iterable[Entry], workspace: Workspace) -> Iterator[set[FramePlace]]:
    places: set[FramePlace] = set()
    for entry in files:
        for ref in chunks_of(entry, workspace.store):
            if ref.locator is not None:
                places.add(FramePlace(*ref.locator[:3]))
        if len(places) >= _BATCH_FRAMES:
            yield places
            places = set()
    if places:
        yield places


def _is_near(workspace: Workspace, one: FrameRange) -> bool:
    return workspace.backend.is_near(pack_key(one.pack_id), offset=one.offset, length=one.length)


def _fetch(workspace: Workspace, one: FrameRange) -> int:
    workspace.backend.get(pack_key(one.pack_id), offset=one.offset, length=one.length)
    return one.length
