"""Listing in the order of keys, from servers that list in another one, page by page."""

from __future__ import annotations

import random

import pytest

from workspacefs.backend.contract import KeyInfo
from workspacefs.backend.s3_listing import Page, iter_sorted

LETTERS = "ab,-.0z/"


class ListingServer:
    """Lists keys up to the next slash, as ListObjectsV2 does with a delimiter.

    Args:
        keys: All of them.
        page: Entries of a page.
        by_directory: Directories stand where their bare names do (SeaweedFS), not where the names
            with their slashes do (AWS).
    """

    def __init__(self, keys: set[str], *, page: int, by_directory: bool) -> None:
        self._keys = keys
        self._page = page
        self._by_directory = by_directory
        self.requests = 0

    def __call__(self, prefix: str, *, start_after: str, token: str | None) -> Page:
        self.requests += 1
        entries = sorted(
            {
                key[: key.find("/", len(prefix)) + 1] or key
                for key in self._keys
                if key.startswith(prefix)
            },
            key=self._place,
        )
        after = start_after if token is None else token
        entries = [entry for entry in entries if not after or self._place(entry) > after]
        page, rest = entries[: self._page], entries[self._page :]
        return Page(
            [KeyInfo(entry, len(entry)) for entry in page if not entry.endswith("/")],
            [entry for entry in page if entry.endswith("/")],
            self._place(page[-1]) if rest else None,
        )

    def _place(self, entry: str) -> str:
        return entry.rstrip("/") if self._by_directory else entry


def random_key(chance: random.Random) -> str:
    parts = [
        chance.choice("abz0") + "".join(chance.choices("ab,-.0z", k=chance.randint(0, 2)))
        for _ in range(chance.randint(1, 3))
    ]
    return "/".join(parts)


def is_key_set(keys: set[str]) -> bool:
    return not any(other.startswith(key + "/") for key in keys for other in keys)


@pytest.mark.parametrize("by_directory", [False, True])
@pytest.mark.parametrize("page", [1, 2, 3, 1000])
def test_listing_is_in_the_order_of_keys(by_directory: bool, page: int) -> None:
    """Whatever the server's order and pages, all keys come, once and ascending."""
    chance = random.Random(page)
    for _ in range(300):
        keys = {random_key(chance) for _ in range(chance.randint(0, 12))}
        if not is_key_set(keys):
            continue
        prefix = "".join(chance.choices(LETTERS, k=chance.randint(0, 3)))
        start_after = "".join(chance.choices(LETTERS, k=chance.randint(0, 4)))
        server = ListingServer(keys, page=page, by_directory=by_directory)

        listed = [info.key for info in iter_sorted(server, prefix, start_after=start_after)]

        assert listed == sorted(
            key for key in keys if key.startswith(prefix) and key > start_after
        ), (keys, prefix, start_after)


def test_flat_listing_asks_for_its_pages_only() -> None:
    """A directory without subdirectories costs what it costs at S3."""
    keys = {f"packs/{number:04}-x.pack" for number in range(2500)}
    server = ListingServer(keys, page=1000, by_directory=True)

    listed = list(iter_sorted(server, "packs/", start_after="packs/1400-x.pack"))

    assert len(listed) == 2500 - 1401
    assert server.requests == 2
