"""The private key with which commits are signed: a file that nobody else may read.

The file is read anew for each signature: a key that is replaced or taken away counts at once, and
no process holds it for longer than it takes to sign.
"""

from __future__ import annotations

import importlib
import os
import secrets
import stat
from types import ModuleType
from typing import Final

from workspacefs.errors import BusyError, NotFoundError, RefusedError, UnavailableError
from workspacefs.objects.commits import Signature

_MAX_BYTES: Final = 64 << 10
_OTHERS_MASK: Final = 0o077


class FileSigner:
    """Signs with the key in a file, which need not be there before something is signed."""

    def __init__(self, path: str) -> None:
        self.path = path

    def sign(self, body: bytes) -> Signature:
        """Return the signature of the body of a commit.

        Raises:
            NotFoundError, RefusedError, UnavailableError: As read_key_file tells; RefusedError
                also if the file has no key that can sign.
        """
        return sign_with(read_key_file(self.path), body, path=self.path)


def sign_with(pem: bytes, body: bytes, *, path: str) -> Signature:
    """Return the signature of a body by the key of a PEM file that lies at `path`."""
    key = _ed25519().load_key(pem, path=path)
    return Signature(key.public_key, key.sign(body))


def public_key_of(path: str) -> bytes:
    """Return the 32 bytes of the public half of the key in a file. Raises as FileSigner.sign."""
    public_key: bytes = _ed25519().load_key(read_key_file(path), path=path).public_key
    return public_key


def is_signed(public_key: bytes, signature: bytes, body: bytes) -> bool:
    """Tell whether a signature of a body was made with the private half of a key."""
    return bool(_ed25519().is_signed(public_key, signature, body))


def read_key_file(path: str) -> bytes:
    """Return what is in a private key's file, if it is ours and nobody else's.

    Raises:
        NotFoundError: It is not there (kind "key.absent").
        RefusedError: Others may read or change it, or it belongs to another account (kind
            "key.permissions").
        UnavailableError: It cannot be read (kind "key.unreadable").
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as exc:
        raise NotFoundError(
            f"there is no key at {path} to sign with; workspacefs key new makes one, or set "
            "WORKSPACEFS_SIGNING_KEY=off to sign nothing",
            kind="key.absent",
            path=path,
        ) from exc
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError(f"{path} is no file with a key", kind="key.malformed", path=path)
        if status.st_uid not in (os.geteuid(), 0) or status.st_mode & _OTHERS_MASK:
            raise RefusedError(
                f"the private key {path} is open to others (mode {status.st_mode & 0o7777:04o}, "
                f"uid {status.st_uid}), so nothing is signed with it: chmod 600 it, and make a "
                "new one if others may have read it",
                kind="key.permissions",
                path=path,
            )
        return os.read(fd, _MAX_BYTES)
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    finally:
        os.close(fd)


def make_key_file(path: str) -> bytes:
    """Make a new key in a file of mode 0600; return the 32 bytes of its public half. The file
    survives power loss on return, and is whole or not there.

    Raises:
        BusyError: There is one already (kind "key.exists"); it is left as it is.
        UnavailableError: It cannot be written.
    """
    key, pem = _ed25519().new_key()
    directory = os.path.dirname(path)
    temporary = f"{path}.{secrets.token_hex(8)}.tmp"
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, pem)
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
        sync_directory_of(path)
    except FileExistsError as exc:
        raise BusyError(
            f"there is a key at {path} already; what it signed needs its public half. Move it away "
            "first, or give --file",
            kind="key.exists",
            path=path,
        ) from exc
    except OSError as exc:
        raise UnavailableError(
            f"no key can be written to {path}: {exc.strerror}", kind="key.unwritable", path=path
        ) from exc
    public_key: bytes = key.public_key
    return public_key


def sync_directory_of(path: str) -> None:
    """Have the name of a file survive power loss."""
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _ed25519() -> ModuleType:
    """Return the module that imports cryptography: a command that signs nothing need not wait."""
    return importlib.import_module("workspacefs.signing.ed25519")


def _unreadable(path: str, exc: OSError) -> UnavailableError:
    return UnavailableError(
        f"the key {path} cannot be read: {exc.strerror}",
        kind="key.unreadable",
        path=path,
    )
