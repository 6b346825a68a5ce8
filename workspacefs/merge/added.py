"""Directories that both sides made under the same name: they are one."""

from __future__ import annotations

from workspacefs.ids import FileId
from workspacefs.merge.place import Place, Seen
from workspacefs.merge.side import Side


def unite_added(left: Side, right: Side) -> tuple[Side, Side]:
    """Return both sides with one identity, that of the smaller id, for such directories.

    From the top down: what is in them may be the same in turn.
    """
    left_new, right_new = _new_directories(left, right), _new_directories(right, left)
    keys: dict[FileId, FileId] = {}
    pairs = [(parent, parent) for parent in left_new.keys() & right_new.keys()]
    while pairs:
        ours, theirs = pairs.pop()
        names = left_new.get(ours, {}).keys() & right_new.get(theirs, {}).keys()
        for name in names:
            one, other = left_new[ours][name], right_new[theirs][name]
            keys[one] = keys[other] = min(one, other)
            pairs.append((one, other))
    if not keys:
        return left, right
    return _renamed(left, keys), _renamed(right, keys)


def _new_directories(side: Side, other: Side) -> dict[FileId, dict[bytes, FileId]]:
    """Return the directories that only this side has, by the one they are in and name."""
    found: dict[FileId, dict[bytes, FileId]] = {}
    for key, seen in side.now.items():
        if seen.entry.is_dir and key not in side.base and key not in other.now:
            for place in seen.places:
                found.setdefault(place.directory, {})[place.name] = key
    return found


def _renamed(side: Side, keys: dict[FileId, FileId]) -> Side:
    now = {
        keys.get(key, key): Seen(
            seen.entry,
            {
                Place(keys.get(place.directory, place.directory), place.name)
                for place in seen.places
            },
        )
        for key, seen in side.now.items()
    }
    return Side(side.base, now, side.replaced)
