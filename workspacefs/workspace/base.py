"""What an import knows of the commit before: ids of files at equal paths, locators of objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

from workspacefs.objects.entry import Chunks, Entry, LongContent, Subtree
from workspacefs.objects.nodes import BranchNode
from workspacefs.objects.refs import Locator, Ref
from workspacefs.trees.nodes import NodeSource, open_child, open_root
from workspacefs.trees.walk import iter_entries_to_enter
from workspacefs.workspace.content import ContentSource, chunks_of

_KNOWN_MAX: Final = 1 << 18


class BaseStore(NodeSource, ContentSource, Protocol):
    """Gives the objects of the commit before."""


class KnownObjects:
    """Locators of stored objects that are likely to be written again.

    Bounded: forgets all when full, which costs only space in the store. Its `find` is what an
    ObjectWriter asks.
    """

    def __init__(self) -> None:
        self._locators: dict[bytes, Locator] = {}

    def find(self, object_id: bytes) -> Locator | None:
        """Return where an object lies, if that was learned."""
        return self._locators.get(object_id)

    def learn(self, ref: Ref) -> None:
        """Remember one object, if `ref` says where it lies."""
        if ref.locator is not None:
            if len(self._locators) >= _KNOWN_MAX:
                self._locators.clear()
            self._locators[ref.id] = ref.locator

    def learn_content(self, entry: Entry, store: BaseStore) -> None:
        """Remember the chunks of a file, and their list."""
        if isinstance(entry.content, LongContent):
            self.learn(entry.content.ref)
        if isinstance(entry.content, LongContent | Chunks):
            for ref in chunks_of(entry, store):
                self.learn(ref)

    def learn_nodes(self, subtree: Subtree, store: BaseStore) -> None:
        """Remember the nodes of one directory."""
        if subtree.root is None:
            return
        self.learn(subtree.root)
        pending = [open_root(store, subtree.root)]
        while pending:
            node = pending.pop()
            if isinstance(node, BranchNode):
                for index, item in enumerate(node.items):
                    self.learn(item.ref)
                    if node.level > 1:
                        pending.append(open_child(store, node, index))


class BaseDirectory:
    """Entries of one directory of the base, asked for in ascending order of name."""

    def __init__(self, entry: Entry | None, store: BaseStore | None, known: KnownObjects) -> None:
        self.entry = entry
        """The directory itself; None: the base has none at this path."""
        self.removed = 0
        """Names of the base that were passed over, all depths."""
        self._entries: Iterator[Entry] = iter(())
        if entry is not None and store is not None and isinstance(entry.content, Subtree):
            known.learn_nodes(entry.content, store)
            self._entries = iter_entries_to_enter(entry.content, store)
        self._next = next(self._entries, None)

    def find(self, name: bytes) -> Entry | None:
        """Return the entry called `name`; what lies before it was removed."""
        while self._next is not None and self._next.name < name:
            self.note_removed(self._next)
            self._next = next(self._entries, None)
        if self._next is None or self._next.name != name:
            return None
        found, self._next = self._next, next(self._entries, None)
        return found

    def finish(self) -> None:
        """Count what was not asked for as removed."""
        while self._next is not None:
            self.note_removed(self._next)
            self._next = next(self._entries, None)

    def note_removed(self, entry: Entry) -> None:
        """Count one entry, and all below it, as removed."""
        self.removed += 1
        self.note_emptied(entry)

    def note_emptied(self, entry: Entry) -> None:
        """Count what is below an entry as removed."""
        if isinstance(entry.content, Subtree):
            self.removed += entry.content.totals.files + entry.content.totals.dirs
