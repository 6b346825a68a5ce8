"""The boundary: only FUSEError leaves a handler, for pyfuse3 ends the mount on anything else.

Handlers are plain methods that answer at once from memory. When one says NotResident it is called
again after the load; so it must not have changed anything by then.
"""

from __future__ import annotations

import errno
import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

import pyfuse3

from workspacefs.errors import NoSpaceError, WorkspaceError
from workspacefs_daemon.vfs.refusal import Refusal
from workspacefs_daemon.vfs.residency import NotResident

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_LOADS_MAX: Final = 200
"""Loads for one request before it is run with loads on the spot."""


class HiddenNode(Exception):  # a signal, not an error
    """The request is about something that others answer for; it has done nothing."""


class Waiting(Protocol):
    """What a handler's owner offers for answers that are not at hand."""

    counts: dict[str, int]

    async def load(self, call: Callable[[], object]) -> None:
        """Run a blocking load elsewhere."""

    async def send_on(self, op: str, args: Sequence[object]) -> object:
        """Have others answer a request that said HiddenNode."""

    async def make_room(self) -> bool:
        """Free disk space that only waits to be freed; tell whether there was any."""

    def run_blocking(self, call: Callable[[], T]) -> T:
        """Run an operation with loads on the spot."""


S = TypeVar("S", bound=Waiting)


def handler(
    op: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a pyfuse3 handler of a method that answers at once."""
    name = op.__name__

    async def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.counts[name] += 1
        try:
            return op(self, *args, **kwargs)
        except Refusal as exc:
            raise pyfuse3.FUSEError(exc.errno) from None
        except pyfuse3.FUSEError:
            raise
        except HiddenNode:
            return cast(T, await self.send_on(name, args))
        except NotResident as exc:
            # Its traceback leads to this frame, which leads back to it: what the frames below hold,
            # megabytes of half a read, would live until the next collection of garbage.
            first: Exception = exc.with_traceback(None)
        except Exception as exc:  # noqa: BLE001  # sorted by the slow path below
            first = exc
        return await _answer_slowly(self, first, lambda: op(self, *args, **kwargs), name)

    return _named_after(op, guarded)


def waiting_handler(
    op: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Make a pyfuse3 handler of a method that always waits for something, such as fsync."""
    name = op.__name__

    async def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.counts[name] += 1
        try:
            return await op(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except Exception as exc:  # the boundary
            raise _fuse_error(exc, name) from exc

    return _named_after(op, guarded)


def unanswered_handler(
    op: Callable[Concatenate[S, P], None],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, None]]:
    """Make a pyfuse3 handler of a method whose caller hears no answer, nor an error."""
    name = op.__name__

    async def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.counts[name] += 1
        try:
            op(self, *args, **kwargs)
        except Exception:  # the boundary
            log.exception("fuse.handler_bug", extra={"op": name})

    return _named_after(op, guarded)


def _named_after(
    op: Callable[Concatenate[S, P], object],
    guarded: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    # Not functools.wraps: its type is not the plain callable that pyfuse3 declares.
    functools.update_wrapper(guarded, op)
    return guarded


async def _answer_slowly(owner: Waiting, problem: Exception, call: Callable[[], T], name: str) -> T:
    """Load what is missing and call again, until there is an answer or a real error."""
    loads = 0
    made_room = False
    while True:
        try:
            if isinstance(problem, NotResident) and loads < _LOADS_MAX:
                loads += 1
                await owner.load(problem.load)
            elif isinstance(problem, NotResident):
                return owner.run_blocking(call)
            elif isinstance(problem, NoSpaceError) and not made_room:
                made_room = True
                if not await owner.make_room():
                    raise problem
            else:
                raise problem
            return call()
        except NotResident as exc:
            problem = exc.with_traceback(None)
        except NoSpaceError as exc:
            if made_room:
                raise _fuse_error(exc, name) from exc
            problem = exc
        except pyfuse3.FUSEError:
            raise
        except Exception as exc:  # the boundary
            raise _fuse_error(exc, name) from exc


def _fuse_error(exc: BaseException, op: str) -> pyfuse3.FUSEError:
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    if isinstance(exc, pyfuse3.FUSEError):
        return exc
    if isinstance(exc, Refusal):
        return pyfuse3.FUSEError(exc.errno)
    if isinstance(exc, WorkspaceError):
        log.error(
            "fuse.request_failed",
            extra={"op": op, "kind": exc.kind, "reason": str(exc), **exc.context},
        )
        return pyfuse3.FUSEError(exc.errno)
    log.error("fuse.handler_bug", extra={"op": op}, exc_info=exc)
    return pyfuse3.FUSEError(errno.EIO)
