"""Conflicts of a mounted session: what is left to be settled, and saying that some are."""

from __future__ import annotations

import json
from collections.abc import Mapping

import trio

from workspacefs.errors import NotFoundError, UsageError
from workspacefs.merge.joining import about_conflict
from workspacefs.workspace.local_record import MergeState
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import check_is_session


class Conflicts:
    """Operations of the control socket; see docs/protocol.md for their arguments and answers."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted

    async def rows(self) -> list[dict[str, object]]:
        """Return what is told of each that is left, in order of number."""
        mounted = self._mounted
        if mounted.is_read_only:
            return []
        found = (await mounted.load_open_merge()).conflicts
        if not found:
            return []
        store = mounted.workspace.store

        def load() -> list[dict[str, object]]:
            return [
                {"number": number, **json.loads(about_conflict(note, store))}
                for number, note in sorted(found.items())
            ]

        return await mounted.blocking.job(load)

    async def all(self) -> dict[str, object]:
        """Tell of all that are left."""
        check_is_session(self._mounted)
        return {"session": self._mounted.name, "conflicts": await self.rows()}

    async def settle(self, args: Mapping[str, object]) -> dict[str, object]:
        """Take note that some are settled: the files are as they shall be. Durable on return."""
        mounted = self._mounted
        check_is_session(mounted)
        numbers = args.get("numbers")
        if not isinstance(numbers, list) or not all(type(one) is int for one in numbers):
            raise UsageError("numbers must be a list of numbers", kind="args.invalid")
        async with mounted.committing:
            left = (await mounted.load_open_merge()).conflicts
            unknown = [number for number in numbers if number not in left]
            if unknown:
                raise NotFoundError(
                    f"session {mounted.name} has no conflict {unknown[0]}; workspacefs conflicts "
                    "lists those that are left",
                    kind="conflict.absent",
                )
            state = mounted.chain.record.merge or MergeState(conflicts=mounted.base)
            settled = tuple(sorted({*state.settled, *numbers}))
            with trio.CancelScope(shield=True):
                await mounted.chain.note_merge(state._replace(settled=settled))
        return {"session": mounted.name, "left": len(left) - len(set(numbers))}
