"""What the file backend promises beyond the contract: disk full, denied, crashes, URLs."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from workspacefs.backend.disk import OpenFiles, disk_error
from workspacefs.backend.file import FileBackend
from workspacefs.backend.memory import MemoryBackend
from workspacefs.backend.open import open_backend
from workspacefs.errors import (
    KeyAbsentError,
    NoSpaceError,
    UnavailableError,
    UsageError,
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(point)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs needs privileges")
    yield point
    subprocess.run(["umount", str(point)], check=True)


def test_full_disk_is_no_space_and_heals(small_disk: Path) -> None:
    """A write that does not fit fails whole; after space was freed the same write works."""
    backend = FileBackend(small_disk / "store")
    backend.put("packs/first", [bytes(700_000)])

    with pytest.raises(NoSpaceError, match="free some space"):
        backend.put("packs/second", [bytes(700_000)])
    with pytest.raises(NoSpaceError):
        backend.put_if_absent("refs/x", bytes(700_000))

    assert [info.key for info in backend.iter_keys("")] == ["packs/first"]
    assert os.listdir(small_disk / "store" / ".tmp") == []
    backend.delete("packs/first")
    backend.put("packs/second", [bytes(700_000)])
    assert backend.size_bytes("packs/second") == 700_000


def test_full_disk_keeps_the_old_value(small_disk: Path) -> None:
    """A replacement that does not fit leaves the value and its version as they were."""
    backend = FileBackend(small_disk)
    version = backend.put_if_absent("refs/x", b"old")
    assert version is not None

    with pytest.raises(NoSpaceError):
        backend.put_if_version("refs/x", bytes(2_000_000), version)

    assert backend.get_versioned("refs/x") == (b"old", version)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_or_over_quota_is_no_space(number: int, tmp_path: Path) -> None:
    """Both errnos mean that space must be freed."""
    assert isinstance(disk_error(OSError(number, ""), "write", tmp_path), NoSpaceError)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_denied_says_what_to_do(number: int, tmp_path: Path) -> None:
    """A refusal names the path and the remedy."""
    error = disk_error(OSError(number, ""), "write", tmp_path)

    assert isinstance(error, UnavailableError)
    assert str(tmp_path) in str(error)
    assert "permission" in str(error)


def test_unreadable_store_is_unavailable_not_absent(tmp_path: Path) -> None:
    """A store of another user is not reported as empty."""
    store = tmp_path / "store"
    FileBackend(store).put("refs/x", [b"v"])
    script = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from workspacefs.backend.file import FileBackend
        from workspacefs.errors import UnavailableError
        os.chmod(sys.argv[1], 0)
        if os.getuid() == 0:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
        backend = FileBackend(Path(sys.argv[1]))
        for call in (
            lambda: backend.get("refs/x"),
            lambda: backend.put("refs/y", [b""]),
            lambda: backend.put_if_absent("refs/y", b""),
            lambda: backend.put_if_version("refs/x", b"", "0"),
            lambda: list(backend.iter_keys("")),
            lambda: backend.delete("refs/x"),
        ):
            try:
                call()
            except UnavailableError as exc:
                assert "permission" in str(exc), exc
            else:
                raise AssertionError("was answered")
        """
    )
    for part in (tmp_path, *tmp_path.parents):  # the other user must get as far as the store
        if part.stat().st_uid == os.getuid() and part != Path("/"):
            part.chmod(part.stat().st_mode | 0o011)

    done = subprocess.run(
        [sys.executable, "-c", script, str(store)], capture_output=True, text=True, check=False
    )

    store.chmod(0o755)
    assert done.returncode == 0, done.stderr


def test_killed_writer_leaves_only_a_temporary(tmp_path: Path) -> None:
    """A process that dies in the middle of a put leaves nothing that is listed or read."""
    script = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from workspacefs.backend.file import FileBackend

        backend = FileBackend(Path(sys.argv[1]))
        backend.put("packs/whole", [b"x"])
        def die(fd):
            os.kill(os.getpid(), 9)
        os.fsync = die
        backend.put("packs/half", [b"y" * 100000])
        """
    )

    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)

    assert done.returncode == -9
    backend = FileBackend(tmp_path)
    assert [info.key for info in backend.iter_keys("")] == ["packs/whole"]
    assert len(os.listdir(tmp_path / ".tmp")) == 1
    with pytest.raises(KeyAbsentError):
        backend.get("packs/half")
    backend.put("packs/half", [b"z"])
    assert len(os.listdir(tmp_path / ".tmp")) == 1, "what others left is not ours to remove"


def test_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where link() is not possible, creation is still exclusive."""

    def no_link(*_args: object, **_more: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", no_link)
    backend = FileBackend(tmp_path)

    assert backend.put_if_absent("refs/x", b"one") is not None
    assert backend.put_if_absent("refs/x", b"two") is None
    assert backend.get("refs/x") == b"one"
    assert os.listdir(tmp_path / ".tmp") == []


def test_open_files_are_bounded(tmp_path: Path) -> None:
    """Reading ranges of many values holds few descriptors."""
    backend = FileBackend(tmp_path)
    for number in range(200):
        backend.put(f"packs/{number}", [b"0123"])
    before = len(os.listdir("/proc/self/fd"))

    for number in range(200):
        assert backend.get(f"packs/{number}", offset=1, length=2) == b"12"

    assert len(os.listdir("/proc/self/fd")) - before <= 64
    assert OpenFiles().find("never") is None


def test_opening_touches_nothing(tmp_path: Path) -> None:
    """A backend of a directory that is not there makes none until something is stored."""
    backend = open_backend(str(tmp_path / "new"))

    assert list(backend.iter_keys("")) == []
    backend.delete("refs/x")
    assert backend.free_bytes() is not None
    assert not (tmp_path / "new").exists()


def test_urls_of_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative, absolute and file URLs of one directory are one URL."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b").mkdir()
    (tmp_path / "link").symlink_to("a b")
    url = f"file://{tmp_path}/a%20b"

    for spelled in ("a b", "./a b", f"{tmp_path}/a b/", url, f"file:{tmp_path}/a b", "link"):
        assert open_backend(spelled).url == url


def test_url_of_memory() -> None:
    """memory:name is the store of that name."""
    assert isinstance(open_backend("memory:some name"), MemoryBackend)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3:/bucket/prefix", "names no bucket"),
        ("http://host/x", "is no store"),
        ("file://host/dir", "three slashes"),
        ("file://", "three slashes"),
        ("file:", "names no directory"),
        ("memory:", "is no store"),
        ("", "is no store"),
        ("a\0b", "is no store"),
    ],
)
def test_other_urls_are_refused(url: str, message: str) -> None:
    """A URL that names no backend is told apart, with what to give instead."""
    with pytest.raises(UsageError, match=message) as caught:
        open_backend(url)
    assert "memory:name" not in str(caught.value)


@pytest.mark.parametrize(
    ("root_mode", "file_mode"), [(0o755, 0o644), (0o700, 0o600), (0o770, 0o660)]
)
def test_whoever_may_enter_the_store_may_read_it(
    tmp_path: Path, root_mode: int, file_mode: int
) -> None:
    """Modes follow the root's, not the umask of the writer: daemons have 077."""
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(root_mode)
    before = os.umask(0o077)
    try:
        backend = FileBackend(root)
        backend.put("packs/one.pack", [b"data"])
        backend.put_if_absent("refs/branches/main", b"value")
    finally:
        os.umask(before)

    assert stat.S_IMODE((root / "packs").stat().st_mode) == root_mode
    assert stat.S_IMODE((root / "packs/one.pack").stat().st_mode) == file_mode
    assert stat.S_IMODE((root / "refs/branches/main").stat().st_mode) == file_mode
