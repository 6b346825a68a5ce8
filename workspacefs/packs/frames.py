"""Frames: one run of plain bytes, compressed, with a header that says what it is.

All integers are little-endian. A frame is

    magic       4  "wsF1"
    run         1  RunKind
    codec       1  0 raw, 1 one zstd frame that states its content size
    zero        2
    plain_len   4  bytes after decompression
    stored_len  4  bytes of payload that follow the header
    check       8  xxh3_64 of the 16 header bytes before it and the payload
    payload     stored_len

The check finds accidents only; whoever takes an object out of a frame verifies its id. Nothing
is allocated on the word of a header beyond the limit of its run.

Source: RFC 8878 (zstd, Frame_Content_Size), xxHash specification (XXH3).
"""

from __future__ import annotations

import enum
import struct
import threading
from typing import Final

import xxhash
import zstandard

from workspacefs.errors import IntegrityError

FRAME_HEADER_BYTES: Final = 24
CHUNK_MAX_BYTES: Final = 16 * 1024 * 1024
"""No chunk is longer."""
RECORD_MAX_BYTES: Final = 64 * 1024 * 1024
"""No record of metadata is longer, its locators included."""
ZSTD_LEVEL: Final = 3

_MAGIC: Final = b"wsF1"
_FIELDS: Final = struct.Struct("<4sBBHII")
_CHECK: Final = struct.Struct("<Q")
_RAW: Final = 0
_ZSTD: Final = 1
_KEEP_RATIO: Final = 0.95
"""A payload that compression leaves longer than this is stored raw."""


class RunKind(enum.IntEnum):
    """What a frame holds."""

    DATA = 1
    """Chunks, one after another."""
    META = 2
    """Records of nodes, chunk lists and commits."""
    TABLE = 3
    """The table of a pack."""


PLAIN_MAX_BYTES: Final = {
    RunKind.DATA: CHUNK_MAX_BYTES,
    RunKind.META: RECORD_MAX_BYTES,
    RunKind.TABLE: RECORD_MAX_BYTES,
}
FRAME_MAX_BYTES: Final = FRAME_HEADER_BYTES + max(PLAIN_MAX_BYTES.values())

# One pair a thread: neither may be used by two at once, and making one costs 14 µs.
_codecs = threading.local()


def encode_frame(run: RunKind, plain: bytes) -> tuple[bytes, bytes]:
    """Return header and payload of a frame. Releases the interpreter lock while it compresses."""
    assert len(plain) <= PLAIN_MAX_BYTES[run]
    payload, codec = _compressor().compress(plain), _ZSTD
    if len(payload) > len(plain) * _KEEP_RATIO:
        payload, codec = plain, _RAW
    fields = _FIELDS.pack(_MAGIC, run, codec, 0, len(plain), len(payload))
    return fields + _CHECK.pack(_check_of(fields, payload)), payload


def decode_frame(stored: bytes, run: RunKind, *, what: str) -> bytes:
    """Return the plain bytes of a whole frame of the given run.

    Raises:
        IntegrityError: It is anything else, damaged, or would grow beyond what it declares.
    """
    if len(stored) < FRAME_HEADER_BYTES:
        raise _damaged(what, "is shorter than a header")
    magic, kind, codec, zero, plain_len, stored_len = _FIELDS.unpack_from(stored)
    payload = memoryview(stored)[FRAME_HEADER_BYTES:]
    if magic != _MAGIC or zero != 0 or stored_len != len(payload):
        raise _damaged(what, "does not begin with the header of such a frame")
    (check,) = _CHECK.unpack_from(stored, _FIELDS.size)
    if check != _check_of(stored[: _FIELDS.size], payload):
        raise _damaged(what, "does not match its checksum")
    if kind != run:
        raise _damaged(what, f"holds a run of kind {kind}, not {run.name.lower()}")
    if plain_len > PLAIN_MAX_BYTES[run]:
        raise _damaged(what, f"claims {plain_len} plain bytes, more than any run may have")
    if codec == _RAW and plain_len == stored_len:
        return bytes(payload)
    if codec == _ZSTD:
        return _decompressed(payload, plain_len, what=what)
    raise _damaged(what, "has a codec or length that cannot be")


def _decompressed(payload: memoryview, plain_len: int, *, what: str) -> bytes:
    try:
        # The buffer is allocated by the size in zstd's own header: it must be the one that we
        # have just found acceptable, or ten bytes could ask for ten gigabytes.
        if zstandard.frame_content_size(payload) != plain_len or plain_len == 0:
            raise _damaged(what, "is compressed to another size than it declares")
        plain = _decompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise _damaged(what, "cannot be decompressed") from exc
    if len(plain) != plain_len:
        raise _damaged(what, "decompresses to another size than it declares")
    return plain


def _check_of(fields: bytes, payload: bytes | memoryview) -> int:
    state = xxhash.xxh3_64(fields)
    state.update(payload)
    return state.intdigest()


def _compressor() -> zstandard.ZstdCompressor:
    found: zstandard.ZstdCompressor | None = getattr(_codecs, "compressor", None)
    if found is None:
        found = _codecs.compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_codecs, "decompressor", None)
    if found is None:
        found = _codecs.decompressor = zstandard.ZstdDecompressor()
    return found


def _damaged(what: str, why: str) -> IntegrityError:
    return IntegrityError(f"{what} {why}", kind="frame.damaged")
