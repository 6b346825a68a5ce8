"""Finding out whether a store honours conditions; creating a value although answers get lost.

Some servers take If-None-Match and If-Match and ignore them (rclone serve s3, 1.75): of racing
writers all are told that they won, and all but one lose their work.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from workspacefs.backend.contract import UNCHANGED_KINDS, Backend, Version
from workspacefs.backend.retry import RetryPolicy
from workspacefs.errors import KeyAbsentError, RefusedError, UnavailableError

PROBE_KEY: Final = "probe/conditional"
PROBE_VALUE: Final = b"two conditional writes of this value try whether the server refuses them\n"
_FOREIGN_VERSION: Final = Version('"00000000000000000000000000000000"')
"""An ETag that no value has."""


def check_conditional_writes(backend: Backend, *, retry: RetryPolicy | None = None) -> None:
    """Make sure that a store refuses writes whose condition is not met.

    Leaves one small value under PROBE_KEY, always the same: a server that does not refuse does no
    harm by it. One round of two requests side by side; two when the value is not there yet.

    Raises:
        RefusedError: It does not (kind "store.no_conditions").
        UnavailableError: The store does not answer.
    """
    policy = retry or RetryPolicy()
    with ThreadPoolExecutor(1, thread_name_prefix="probe") as threads:
        created = threads.submit(_put, backend, None, policy)
        replaced = _put(backend, _FOREIGN_VERSION, policy)
        is_created = created.result() is not None
    # Created: it may have been absent. Then it is there now, and must be refused.
    if replaced is not None or (is_created and _put(backend, None, policy) is not None):
        raise _no_conditions(backend)


def create_value(
    backend: Backend, key: str, data: bytes, *, retry: RetryPolicy | None = None
) -> bool:
    """Store `data` unless a value is there, and find out what became of lost answers.

    Args:
        backend: Where to.
        key: Under which key.
        data: Unlike what anybody else would store there: by it our own value is known again.
        retry: How long to try.

    Returns:
        Whether the value that is there is ours.

    Raises:
        UnavailableError: The store does not say (kind STORE_UNCLEAR), or refuses us.
    """
    tries = (retry or RetryPolicy()).begin()
    problem: UnavailableError | None = None
    while True:
        try:
            if backend.put_if_absent(key, data) is not None:
                return True
            if problem is None:
                return False
        except UnavailableError as exc:
            if problem is None and exc.kind in UNCHANGED_KINDS:
                raise
            problem = exc
        try:
            return backend.get(key) == data
        except KeyAbsentError:
            pass  # it did not arrive, or not yet; sent again, it still makes one value
        except UnavailableError as exc:
            problem = exc
        if not tries.wait():
            raise problem


def _put(backend: Backend, version: Version | None, policy: RetryPolicy) -> Version | None:
    """Write the probe's value, again and again until the answer is clear."""
    tries = policy.begin()
    while True:
        try:
            if version is None:
                return backend.put_if_absent(PROBE_KEY, PROBE_VALUE)
            return backend.put_if_version(PROBE_KEY, PROBE_VALUE, version)
        except UnavailableError as exc:
            if exc.kind == "store.unsupported":
                raise _no_conditions(backend) from exc
            if exc.kind in UNCHANGED_KINDS or not tries.wait():
                raise


def _no_conditions(backend: Backend) -> RefusedError:
    return RefusedError(
        f"the server of {backend.url} ignores conditions on writes: of two writers at the same "
        "time both would be told that they won, and one's work would be lost without a word; use "
        "a server that honours If-None-Match and If-Match, or a directory",
        kind="store.no_conditions",
        url=backend.url,
    )
