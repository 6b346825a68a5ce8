"""Bringing much to the server in bounded time: unsigned, without the link, on several threads."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast
from urllib.parse import quote

from bench.failures import TimeUpError
from bench.s3.server import SeaweedFs, exchange
from bench.synthetic import FILES_PER_DIR, SyntheticWorkspace
from workspacefs.backend.contract import Backend

_THREADS: Final = 6
_TIME_S: Final = 1_700_000_000


@dataclass(frozen=True, slots=True)
class Upload:
    """One object to be."""

    key: str
    open_body: Callable[[], bytes | IO[bytes]]
    headers: dict[str, str] = field(default_factory=dict)


def upload_all(server: SeaweedFs, bucket: str, uploads: Iterable[Upload], timeout_s: float) -> None:
    """Store everything.

    Raises:
        TimeUpError: Not all could be stored in time.
        BenchError: The server refused something.
    """
    deadline = time.monotonic() + timeout_s
    source = iter(uploads)
    lock = threading.Lock()
    problems: list[Exception] = []

    def work() -> None:
        try:
            with server.connection() as connection:
                while True:
                    with lock:
                        found = next(source, None)
                    if found is None or problems:
                        return
                    if time.monotonic() > deadline:
                        raise TimeUpError("uploading without the link", timeout_s)
                    body = found.open_body()
                    path = f"/{bucket}/{quote(found.key)}"
                    exchange(connection, "PUT", path, body, found.headers)
                    if not isinstance(body, bytes):
                        body.close()
        except Exception as exc:  # noqa: BLE001  # carried to the thread that waits
            problems.append(exc)

    threads = [threading.Thread(target=work) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


def iter_values(backend: Backend, prefix: str) -> Iterator[Upload]:
    """Yield all values of a workspace's store, as they lie in a bucket below a prefix."""
    for info in backend.iter_keys(""):
        yield Upload(f"{prefix}/{info.key}", lambda key=info.key: backend.get(key))  # type: ignore[misc]


def iter_synthetic(tree: SyntheticWorkspace) -> Iterator[Upload]:
    """Yield the files of a generated tree, and their directories, as s3fs would have stored them.

    Others ignore what is s3fs's own in the headers.
    """
    last_dirs: list[str] = []
    for index in range(tree.files):
        path = tree.path(index)
        if index % FILES_PER_DIR == 0:
            dirs = path.split("/")[:-1]
            for depth in range(1, len(dirs) + 1):
                if dirs[:depth] != last_dirs[:depth]:
                    yield _directory("/".join(dirs[:depth]), stat.S_IFDIR | 0o755, _TIME_S)
            last_dirs = dirs
        headers = _headers(stat.S_IFREG | 0o644, _TIME_S)
        yield Upload(path, lambda i=index: tree.content(i), headers)  # type: ignore[misc]


def iter_directory(source: Path) -> Iterator[Upload]:
    """Yield everything below a local directory as s3fs would have stored it."""
    for top, dirs, files in os.walk(source):
        for name in dirs:
            path = Path(top, name)
            found = path.lstat()
            if not path.is_symlink():
                key = str(path.relative_to(source))
                yield _directory(key, found.st_mode, int(found.st_mtime))
        for name in [*files, *(name for name in dirs if Path(top, name).is_symlink())]:
            yield _file(Path(top, name), str(Path(top, name).relative_to(source)))


def _file(path: Path, key: str) -> Upload:
    found = path.lstat()
    headers = _headers(found.st_mode, int(found.st_mtime))
    if stat.S_ISLNK(found.st_mode):
        return Upload(key, lambda: os.fsencode(path.readlink()), headers)
    headers["Content-Length"] = str(found.st_size)
    return Upload(key, lambda: cast("IO[bytes]", path.open("rb")), headers)


def _directory(key: str, mode: int, time_s: int) -> Upload:
    return Upload(f"{key}/", lambda: b"", _headers(mode, time_s) | {"Content-Type": _DIRECTORY})


_DIRECTORY: Final = "application/x-directory"


def _headers(mode: int, time_s: int) -> dict[str, str]:
    return {
        "x-amz-meta-mode": str(mode),
        "x-amz-meta-uid": str(os.getuid()),
        "x-amz-meta-gid": str(os.getgid()),
        "x-amz-meta-mtime": str(time_s),
    }
