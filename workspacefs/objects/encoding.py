"""Canonical bytes: msgpack arrays of fixed shape, and a decoder that trusts nothing.

Exactly one byte string stands for a value, so ids can be compared instead of contents. Decoding
re-encodes and compares, which refuses every other spelling. This module knows msgpack; its
users know records.

Source: msgpack specification (integers in their shortest form); docs/format.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgpack

from workspacefs.errors import IntegrityError

OBJECT_MAX_BYTES = 64 * 1024 * 1024
"""No record is longer; a decoder is never made to allocate more than a small multiple of it."""


def encode(value: object) -> bytes:
    """Return the canonical bytes of nested lists or tuples of int, bytes, str and None."""
    packed = msgpack.packb(value, use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def decode(body: bytes, *, what: str) -> list[object]:
    """Return the array that `body` is the canonical encoding of.

    Raises:
        IntegrityError: `body` is too long, no array, or not canonical. `what` names the object.
    """
    if len(body) > OBJECT_MAX_BYTES:
        raise malformed(what, f"is {len(body)} bytes long, more than {OBJECT_MAX_BYTES}")
    try:
        value = msgpack.unpackb(body, raw=False, use_list=True, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as exc:
        raise malformed(what, "cannot be decoded") from exc
    if not isinstance(value, list):
        raise malformed(what, "is not an array")
    try:
        again = encode(value)
    except (ValueError, TypeError, OverflowError) as exc:
        raise malformed(what, "holds a value of no known type") from exc
    if again != body:
        raise malformed(what, "is not in canonical form")
    return value


def malformed(what: str, why: str) -> IntegrityError:
    """Return the error for stored bytes that decode to nothing we would have written."""
    return IntegrityError(f"{what} {why}", kind="object.malformed")


def ints(values: Sequence[object], *, what: str) -> list[int]:
    """Return `values` as integers; refuse booleans and all else."""
    if all(type(value) is int for value in values):
        return list(values)  # type: ignore[arg-type]  # just checked, one by one
    raise malformed(what, "holds something else where an integer belongs")
