"""Several requests in the time of one, where the store is far away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from workspacefs.backend.contract import Backend

S = TypeVar("S")
T = TypeVar("T")


def in_one_round(backend: Backend, beside: Callable[[], S], own: Callable[[], T]) -> tuple[S, T]:
    """Do both and return their answers; `own` runs on the caller's thread.

    At the same time, if the store is far; else one after the other, `beside` first: there a thread
    costs more than the wait that it saves. Neither is under way any more on return. Raises what
    `own` raised, else what `beside` raised.
    """
    if backend.is_local:
        return beside(), own()
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(beside)
        answer = own()
    return future.result(), answer


def iter_answers(
    backend: Backend, call: Callable[[S], T], asked: Iterable[S], *, at_once: int = 16
) -> Iterator[T]:
    """Yield `call(one)` for each one that is asked, in that order; `at_once` of them at the same
    time, if the store is far. Raises what the first call that failed raised.
    """
    if backend.is_local:
        yield from map(call, asked)
        return
    with ThreadPoolExecutor(at_once) as executor:
        yield from executor.map(call, asked)
