"""What went over the link in one repetition, counted from the proxy's notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from workspacefs.testing.proxy import RequestInfo, sequential_depth

_FIRST_BAD_STATUS = 500


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that were answered, by kind, and bytes of bodies."""

    requests: int
    depth: int
    """The longest chain of requests of which each began after the one before had ended."""
    gets: int
    """Of objects or ranges of them."""
    get_bytes: int
    heads: int
    lists: int
    """All else that a bucket was asked."""
    puts: int
    """Parts and beginnings and ends of multipart uploads too."""
    deletes: int
    in_bytes: int
    out_bytes: int
    errors: int
    """Answers of 500 and more, and requests without an answer."""
    data_bytes: int | None = None
    """Of get_bytes: content of files; None when nobody can tell."""


def count_traffic(requests: Iterable[RequestInfo], data_bytes: int | None) -> Traffic:
    """Add up the requests."""
    found = list(requests)
    kinds = [kind_of(info) for info in found]
    return Traffic(
        requests=len(found),
        depth=sequential_depth(found),
        gets=kinds.count("get"),
        get_bytes=sum(i.sent_bytes for i, kind in zip(found, kinds, strict=True) if kind == "get"),
        heads=kinds.count("head"),
        lists=kinds.count("list"),
        puts=kinds.count("put"),
        deletes=kinds.count("delete"),
        in_bytes=sum(info.sent_bytes for info in found),
        out_bytes=sum(info.received_bytes for info in found),
        errors=sum(info.status is None or info.status >= _FIRST_BAD_STATUS for info in found),
        data_bytes=data_bytes,
    )


def kind_of(info: RequestInfo) -> str:
    """Return get, head, list, put or delete."""
    match info.method:
        case "GET":
            return "get" if "/" in info.path.strip("/") else "list"
        case "HEAD" | "DELETE":
            return info.method.lower()
        case "POST" if "delete" in info.query:
            return "delete"
        case _:
            return "put"
