"""The probe for conditional writes, and creating a value although answers get lost."""

from __future__ import annotations

import secrets

import pytest

from tests.clocks import TurnedClock
from workspacefs.backend.contract import STORE_DENIED, Version
from workspacefs.backend.memory import MemoryBackend
from workspacefs.backend.probe import (
    PROBE_KEY,
    PROBE_VALUE,
    check_conditional_writes,
    create_value,
)
from workspacefs.errors import RefusedError, UnavailableError
from workspacefs.testing.faulty import FaultyBackend


class LyingBackend(MemoryBackend):
    """Takes conditions and ignores them."""

    def put_if_absent(self, key: str, data: bytes) -> Version | None:
        self.delete(key)
        return super().put_if_absent(key, data)

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        return self.put_if_absent(key, data)


class HalfLyingBackend(MemoryBackend):
    """Honours If-None-Match and ignores If-Match."""

    def put_if_version(self, key: str, data: bytes, version: Version) -> Version | None:
        self.delete(key)
        return self.put_if_absent(key, data)


def test_honest_store_passes_again_and_again(backend: FaultyBackend) -> None:
    """The probe leaves its one value, and passes with it as without."""
    for _ in range(3):
        check_conditional_writes(backend)

    assert [info.key for info in backend.iter_keys("")] == [PROBE_KEY]
    assert backend.get(PROBE_KEY) == PROBE_VALUE


@pytest.mark.parametrize("kind", [LyingBackend, HalfLyingBackend])
def test_store_that_ignores_conditions_is_refused(kind: type[MemoryBackend]) -> None:
    """Whichever condition is ignored, and whether the value is there or not."""
    store = kind(secrets.token_hex(8))
    for _ in range(2):
        with pytest.raises(RefusedError, match="ignores conditions") as caught:
            check_conditional_writes(store)
        assert caught.value.kind == "store.no_conditions"


def test_probe_outlasts_lost_answers(backend: FaultyBackend) -> None:
    """A storm is no lie."""
    backend.lose_requests = 5

    check_conditional_writes(backend, retry=TurnedClock().policy())

    assert backend.lose_requests == 0


@pytest.mark.parametrize("lost", ["answers", "requests"])
def test_created_value_is_ours_though_answers_are_lost(backend: FaultyBackend, lost: str) -> None:
    """Reading back tells; a request that never arrived is sent again."""
    setattr(backend, f"lose_{lost}", 2)
    backend.lose_reads = 2

    assert create_value(backend, "k", b"ours", retry=TurnedClock().policy())

    assert backend.get("k") == b"ours"
    assert backend.lose_reads == 0


def test_value_of_another_is_not_ours(backend: FaultyBackend) -> None:
    """With and without a lost answer the other one keeps its value."""
    backend.put_if_absent("k", b"theirs")

    assert not create_value(backend, "k", b"ours", retry=TurnedClock().policy())
    backend.lose_answers = 1
    assert not create_value(backend, "k", b"ours", retry=TurnedClock().policy())

    assert backend.get("k") == b"theirs"
    assert backend.lose_answers == 0


def test_silent_store_is_unavailable(backend: FaultyBackend) -> None:
    """Without an answer until the deadline nothing is claimed."""
    backend.lose_requests = 9999

    with pytest.raises(UnavailableError):
        create_value(backend, "k", b"ours", retry=TurnedClock().policy())


def test_refusal_is_told_at_once(backend: FaultyBackend) -> None:
    """Who may not write need not wait for a minute."""

    def refuse() -> None:
        raise UnavailableError("no", kind=STORE_DENIED)

    clock = TurnedClock()
    backend.before_write = refuse

    with pytest.raises(UnavailableError) as caught:
        create_value(backend, "k", b"ours", retry=clock.policy())

    assert caught.value.kind == STORE_DENIED
    assert clock.slept == []
