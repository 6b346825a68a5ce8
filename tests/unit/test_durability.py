"""Syncing several layers: in which order, and beside what else goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from workspacefs.errors import NoSpaceError
from workspacefs.layers.journal import Journal, PendingSync, recover
from workspacefs.layers.layer import Layer
from workspacefs_daemon.background.durability import Durability
from workspacefs_daemon.background.hops import Blocking


class SlowJournal(Journal):
    """A journal that notes its writes, and may wait or fail in them."""

    def __init__(self, layer: Layer, written: list[int], gate: threading.Event) -> None:
        super().__init__(layer, is_complete=True)
        self._number = layer.number
        self._written = written
        self._gate = gate
        self.has_begun = threading.Event()
        self.fails = 0

    def write(self, pending: PendingSync) -> None:
        self.has_begun.set()
        assert self._gate.wait(10)
        if self.fails:
            self.fails -= 1
            pending.close()
            raise NoSpaceError("full")
        super().write(pending)
        self._written.append(self._number)


class Layers:
    """Two layers with something to sync in each."""

    def __init__(self, directory: Path) -> None:
        self.written: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.blocking = Blocking()
        self.durability = Durability(self.blocking)
        self.layers: list[Layer] = []
        self.journals: list[SlowJournal] = []
        for number in range(2):
            recover(directory / str(number), boot_id="b")
            layer = Layer(directory / str(number), number=number)
            self.layers.append(layer)
            self.journals.append(SlowJournal(layer, self.written, self.gate))
            self.durability.add(layer, self.journals[-1])
        self.change()

    def change(self) -> None:
        for layer in self.layers:
            layer.rows.commit([(b"k", b"v")])


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    return Layers(tmp_path)


def test_elder_layers_become_durable_first(layers: Layers) -> None:
    """Power may fail between two layers: what comes back must be a prefix of what was done."""
    trio.run(layers.durability.sync)

    assert layers.written == [0, 1]


def test_layer_is_not_let_go_while_a_sync_uses_it(layers: Layers) -> None:
    """remove() returns when no thread works with the journal any more."""
    layers.gate.clear()

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(layers.durability.sync)
            await trio.to_thread.run_sync(layers.journals[0].has_begun.wait)
            with trio.move_on_after(0.05):
                await layers.durability.remove(layers.layers[0])
                raise AssertionError("removed in the middle of its sync")
            layers.gate.set()
            await layers.durability.remove(layers.layers[0])

    trio.run(both)

    assert layers.written == [0, 1]


def test_sync_after_one_that_failed_takes_everything_again(layers: Layers) -> None:
    """A full disk under the second layer does not make its rows look synced."""
    layers.journals[1].fails = 1

    async def twice() -> None:
        with pytest.raises(NoSpaceError):
            await layers.durability.sync()
        await layers.durability.sync()

    trio.run(twice)

    assert layers.written == [0, 1]
    assert not any(layer.is_dirty for layer in layers.layers)


def test_burying_many_bodies_does_not_stop_the_loop(
    layers: Layers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Space is freed on the thread of the sync: requests go on meanwhile."""
    threads: list[threading.Thread] = []
    monkeypatch.setattr(
        Layer, "bury", lambda self, doomed: threads.append(threading.current_thread())
    )

    trio.run(layers.durability.sync)

    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_sync_that_waits_for_another_lets_requests_be_read(layers: Layers) -> None:
    """Whoever waits for the lock says so first: the reader of requests may be that task."""
    layers.gate.clear()
    suspended: list[str] = []

    async def both() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(layers.durability.sync)
            await trio.to_thread.run_sync(layers.journals[0].has_begun.wait)
            suspended.clear()
            nursery.start_soon(layers.durability.sync)
            await trio.testing.wait_all_tasks_blocked()
            assert suspended == ["now"]
            layers.gate.set()

    layers.blocking.on_suspend = lambda: suspended.append("now")
    trio.run(both)
