"""Ed25519 signatures (RFC 8032), by the cryptography package: the only module that imports it.

It takes long to import, so it is imported by name where something is signed or checked
(key_files.py).
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from workspacefs.errors import RefusedError


class PrivateKey:
    """Signs bodies of commits."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @property
    def public_key(self) -> bytes:
        """The 32 bytes by which its signatures are checked."""
        return self._key.public_key().public_bytes_raw()

    def sign(self, body: bytes) -> bytes:
        """Return the 64 bytes of the signature of a body."""
        return self._key.sign(body)


def new_key() -> tuple[PrivateKey, bytes]:
    """Return a new key, and the PEM (PKCS #8, not encrypted) to be kept."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return PrivateKey(key), pem


def load_key(pem: bytes, *, path: str) -> PrivateKey:
    """Return the key of a PEM file.

    Raises:
        RefusedError: It is none, is encrypted, or is of another kind; the message names `path`.
    """
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
        raise _no_key(path) from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path)
    return PrivateKey(key)


def is_signed(public_key: bytes, signature: bytes, body: bytes) -> bool:
    """Tell whether a signature of a body was made with the private half of a key."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, body)
    except (InvalidSignature, ValueError):
        return False
    return True


def _no_key(path: str) -> RefusedError:
    return RefusedError(
        f"{path} is no private key that can sign: an Ed25519 key in PEM (PKCS #8), not encrypted, "
        "is needed; workspacefs key new makes one",
        kind="key.malformed",
        path=path,
    )
