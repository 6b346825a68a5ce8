"""Three-way merge of what is in one file that is no directory."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.merge.conflicts import ConflictKind
from workspacefs.merge.lines import (
    BINARY_HEAD_BYTES,
    TEXT_MAX_BYTES,
    Labels,
    MergedText,
    is_text,
    merge_lines,
)
from workspacefs.objects.entry import Content, Entry
from workspacefs.trees.nodes import NodeSink, NodeSource
from workspacefs.workspace.content import (
    ContentSink,
    ContentSource,
    iter_content,
    read_content,
    write_content,
)


class MergeSource(NodeSource, ContentSource, Protocol):
    """Gives the objects of all three trees."""


class MergeSink(NodeSink, ContentSink, Protocol):
    """Takes the objects of the result."""


class MergedContent(NamedTuple):
    """What the content of a file became."""

    content: Content
    size_bytes: int
    conflict: ConflictKind | None = None
    text: bytes | None = None
    """The bytes, if they were merged by line: the source does not have them."""


class ContentMerger:
    """Merges content, and stores what is new."""

    def __init__(
        self, source: ContentSource, sink: ContentSink, params: ChunkParameters, labels: Labels
    ) -> None:
        self._source = source
        self._sink = sink
        self._params = params
        self._labels = labels

    def merge(self, base: Entry | None, ours: Entry, theirs: Entry) -> MergedContent:
        """Return the merge of three files of one kind, none of them a directory.

        What only one side changed is taken unread. What cannot be merged is as in ours.
        """
        if is_same_content(ours, theirs) or (base and is_same_content(base, theirs)):
            return MergedContent(ours.content, ours.size_bytes)
        if base and is_same_content(base, ours):
            return MergedContent(theirs.content, theirs.size_bytes)
        if not ours.is_regular:
            kind = ConflictKind.SYMLINK if ours.is_symlink else ConflictKind.KIND
            return MergedContent(ours.content, ours.size_bytes, kind)
        texts = [b"" if base is None else self.load_text(base)]
        for entry in (ours, theirs):
            texts.append(None if None in texts else self.load_text(entry))
        old, left, right = texts
        if old is None or left is None or right is None:
            return MergedContent(ours.content, ours.size_bytes, ConflictKind.BINARY)
        kind = ConflictKind.ADD_ADD if base is None else ConflictKind.CONTENT
        return self.merge_texts(old, left, right, kind)

    def merge_texts(
        self, base: bytes, ours: bytes, theirs: bytes, kind: ConflictKind
    ) -> MergedContent:
        """Return the merge of three texts; with markers and as `kind` if they conflict."""
        merged: MergedText = merge_lines(base, ours, theirs, self._labels)
        text = merged.marked
        content, size_bytes = write_content(
            lambda offset, length: text[offset : offset + length],
            len(text),
            self._sink,
            self._params,
        )
        return MergedContent(content, size_bytes, None if merged.is_clean else kind, text)

    def load_text(self, entry: Entry) -> bytes | None:
        """Return the bytes of a regular file; None if it cannot be merged by line."""
        if entry.size_bytes > TEXT_MAX_BYTES:
            return None
        if not is_text(read_content(entry, self._source, 0, BINARY_HEAD_BYTES)):
            return None
        data = b"".join(iter_content(entry, self._source))
        return data if is_text(data) else None


def is_same_content(one: Entry, other: Entry) -> bool:
    """Tell by ids whether two files that are no directories hold the same."""
    return one.size_bytes == other.size_bytes and one.content == other.content
