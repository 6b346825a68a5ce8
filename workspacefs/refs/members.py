"""Members of the JSON in a ref: how ids, locators, texts and numbers are spelled there.

Whoever reads one gets ValueError or TypeError for what we would not have written; where that was
stored is for the caller to say.
"""

from __future__ import annotations

from typing import Final, TypeAlias, TypeGuard

from workspacefs.ids import ID_BYTES, PACK_ID_BYTES, CommitId, PackId
from workspacefs.objects.refs import Locator

_INT64: Final = 1 << 63

Json: TypeAlias = dict[str, object]


def locator_json(locator: Locator | None) -> list[object] | None:
    """Return how a locator is stored."""
    return None if locator is None else [locator.pack_id.hex(), *locator[1:]]


def locator_of(value: object) -> Locator | None:
    """Return the locator that is stored, or None: it is not known."""
    if value is None:
        return None
    require(isinstance(value, list) and len(value) == 5)
    assert isinstance(value, list)
    pack_id = bytes.fromhex(text_of(value[0]))
    require(len(pack_id) == PACK_ID_BYTES)
    return Locator(PackId(pack_id), *map(int64_of, value[1:]))


def commit_id_in(value: object) -> CommitId | None:
    """Return the commit id that is stored, or None."""
    if value is None:
        return None
    commit_id = bytes.fromhex(text_of(value))
    require(len(commit_id) == ID_BYTES)
    return CommitId(commit_id)


def text_of(value: object) -> str:
    """Return the text that is stored."""
    require(isinstance(value, str))
    assert isinstance(value, str)
    return value


def name_of(value: object) -> str:
    """Return the text that is stored; it is not empty."""
    require(value)
    return text_of(value)


def int64_of(value: object) -> int:
    """Return the integer of 64 bits that is stored."""
    require(_is_int64(value))
    assert isinstance(value, int)
    return value


def _is_int64(value: object) -> TypeGuard[int]:
    return type(value) is int and -_INT64 <= value < _INT64


def require(claim: object) -> None:
    """Raise ValueError unless `claim` holds."""
    if not claim:
        raise ValueError("malformed")
