"""Tells content of files from metadata in what was read of a workspace's packs."""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import PurePosixPath
from typing import Final, cast

from bench.s3.server import SeaweedFs, exchange
from workspacefs.backend.contract import Backend
from workspacefs.ids import PackId
from workspacefs.packs.table import ObjectKind, load_table, pack_id_of_key
from workspacefs.testing.proxy import RequestInfo

_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


class DataBytes:
    """Counts bytes of frames with chunks; reads the table of each pack once, without the link."""

    def __init__(self, server: SeaweedFs, place: str) -> None:
        self._backend = cast("Backend", _Reader(server, place))
        self._place = place
        self._frames: dict[PackId, list[tuple[int, int]]] = {}

    def count(self, requests: list[RequestInfo]) -> int:
        """Return how many of the bytes that were answered are of such frames."""
        total = 0
        for info in requests:
            key = info.path.removeprefix(f"/{self._place}/")
            pack_id = pack_id_of_key(key)
            if info.method != "GET" or pack_id is None or not info.sent_bytes:
                continue
            asked = _RANGE.match(info.headers.get("range", ""))
            begin = int(asked[1]) if asked else 0
            total += self._overlap(pack_id, begin, begin + info.sent_bytes)
        return total

    def _overlap(self, pack_id: PackId, begin: int, end: int) -> int:
        frames = self._frames.get(pack_id)
        if frames is None:
            frames = self._frames[pack_id] = _data_frames(self._backend, pack_id)
        first = max(0, bisect_right(frames, (begin, 0)) - 1)
        total = 0
        for offset, length in frames[first:]:
            if offset >= end:
                break
            total += max(0, min(end, offset + length) - max(begin, offset))
        return total


def _data_frames(backend: Backend, pack_id: PackId) -> list[tuple[int, int]]:
    found = set()
    for kind, _, locator in load_table(backend, pack_id).iter_objects(pack_id):
        if kind is ObjectKind.CHUNK:
            found.add((locator.frame_offset, locator.frame_bytes))
    return sorted(found)


class _Reader:
    """As much of a backend as reading a table takes."""

    def __init__(self, server: SeaweedFs, place: str) -> None:
        self._server = server
        self._place = PurePosixPath("/", place)

    def size_bytes(self, key: str) -> int:
        with self._server.connection() as connection:
            connection.request("HEAD", str(self._place / key))
            answer = connection.getresponse()
            answer.read()
            return int(answer.getheader("Content-Length", "0"))

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        end = "" if length is None else offset + length - 1
        with self._server.connection() as connection:
            headers = {"Range": f"bytes={offset}-{end}"}
            return exchange(connection, "GET", str(self._place / key), headers=headers)
