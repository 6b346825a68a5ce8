"""A store on SeaweedFS behind a proxy that goes wrong to order, for tests of the S3 backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.servers import Server
from workspacefs.backend.retry import RetryPolicy
from workspacefs.backend.s3 import S3Backend
from workspacefs.backend.s3_url import parse_s3_url
from workspacefs.testing.proxy import Action, FaultProxy, RequestInfo, Rule

QUICK = RetryPolicy(deadline_s=60.0, base_s=0.005, cap_s=0.05)
"""For faults that come to an end, however slow the machine is."""
DEADLINE_S = 3.0
BRIEF = RetryPolicy(deadline_s=DEADLINE_S, base_s=0.005, cap_s=0.05)
"""For faults that do not."""
IMPATIENT = RetryPolicy(deadline_s=60.0, base_s=0.001, attempts=3)
"""For what is about the outcome only."""
READ_TIMEOUT_S = 20.0


@dataclass
class FaultyStore:
    """One store, reached by way of the proxy and past it."""

    proxy: FaultProxy
    through: S3Backend
    past: S3Backend
    rules: list[Rule] = field(default_factory=list)

    def add(
        self,
        action: Action,
        match: Callable[[RequestInfo], bool] = lambda info: True,
        *,
        nth: int | set[int] | None = None,
        times: int | None = None,
    ) -> Rule:
        """Let requests go wrong; the test must see to it that they did."""
        rule = self.proxy.add(Rule(match=match, action=action, nth=nth, times=times))
        self.rules.append(rule)
        return rule

    def clear(self) -> None:
        """Let all go well from here on; every rule so far must have fired."""
        for rule in self.rules:
            assert rule.fired > 0, f"{rule} never fired"
            self.proxy.remove(rule)
        self.rules.clear()

    def requests(self, operation: str) -> tuple[int, int, int]:
        """Return (requests, errors, retries) of an operation through the proxy."""
        operations = self.through.stats.document()["operations"]
        assert isinstance(operations, dict)
        counts = operations[operation]
        return counts["requests"], counts["errors"], counts["retries"]


def new_backend(
    url: str, *, retry: RetryPolicy = QUICK, read_timeout_s: float = READ_TIMEOUT_S
) -> S3Backend:
    """Return a backend with the short pauses of these tests."""
    return S3Backend(parse_s3_url(url), retry=retry, read_timeout_s=read_timeout_s)


@contextmanager
def faulty_store(
    server: Server, *, retry: RetryPolicy = QUICK, read_timeout_s: float = READ_TIMEOUT_S
) -> Iterator[FaultyStore]:
    """Make a new store behind a proxy."""
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    assert parts.port is not None
    with FaultProxy(parts.hostname, parts.port) as proxy:
        url = server.new_store()
        proxied = url.replace(str(parts.port), str(proxy.port))
        past = S3Backend(parse_s3_url(url))
        through = new_backend(proxied, retry=retry, read_timeout_s=read_timeout_s)
        store = FaultyStore(proxy, through, past)
        yield store
        store.clear()


def is_method(*methods: str) -> Callable[[RequestInfo], bool]:
    """Match requests by method."""
    return lambda info: info.method in methods
