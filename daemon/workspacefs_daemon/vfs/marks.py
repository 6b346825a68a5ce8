"""What is remembered of who changes files: so that most changes need not ask the layer."""

from __future__ import annotations

from workspacefs.layers.layer import Layer
from workspacefs.layers.writers import FileWriters, Process, ProcessId, encode_file


class Mark:
    """That processes changed a file, as a row of one layer says it: many inodes share one."""

    __slots__ = ("layer", "made", "row", "writers")

    def __init__(self, layer: Layer, writers: FileWriters) -> None:
        self.layer = layer
        self.writers = writers
        self.row = encode_file(writers)
        self.made: Mark | None = None
        """The same of a file that they made."""


class KnownProcess:
    """A process with its id."""

    __slots__ = ("id", "is_settled", "mark", "process")

    def __init__(self, process_id: ProcessId, process: Process, *, is_settled: bool) -> None:
        self.id = process_id
        self.process = process
        self.is_settled = is_settled
        """Whether it stays the program that it is; a shell may become another."""
        self.mark: Mark | None = None
        """That it changed a file, in the layer in which it did so last."""
