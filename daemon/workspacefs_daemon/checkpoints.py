"""Checkpoints of a mounted session: on this machine, and in the store if they shall be durable."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import Final

import trio

from workspacefs.errors import BusyError, NotFoundError, UnavailableError, UsageError
from workspacefs.names import check_ref_name
from workspacefs.refs import StoredCheckpoint
from workspacefs.workspace.local_record import LocalCheckpoint
from workspacefs_daemon.control.server import SendProgress
from workspacefs_daemon.mounted import Mounted
from workspacefs_daemon.publishing import (
    check_is_session,
    flush_maps,
    own_provenance,
    text_in,
)
from workspacefs_daemon.saving import Saving
from workspacefs_daemon.telling import telling

log = logging.getLogger(__name__)

_ASKED_FOR: Final = "cp"
_AUTOMATIC: Final = "before-restore-"


class Checkpoints:
    """Operations of the control socket; see docs/protocol.md for their arguments and answers."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted
        self._saving = Saving(mounted)

    async def create(self, args: Mapping[str, object], progress: SendProgress) -> dict[str, object]:
        """Make a checkpoint; durable in the store on return if that is asked for."""
        mounted = self._mounted
        check_is_session(mounted)
        name, is_durable = text_in(args, "name"), args.get("durable") is True
        is_automatic = args.get("automatic") is True
        if name:
            check_ref_name(name, what="checkpoint")
        began = time.monotonic()
        async with mounted.committing:
            await flush_maps(mounted)
            if name in self._taken():
                raise BusyError(
                    f"session {mounted.name} has a checkpoint {name} already; choose another name, "
                    "or delete it first",
                    kind="checkpoint.exists",
                    checkpoint=name,
                )
            name = name or self.free_name(is_automatic=is_automatic)
            with trio.CancelScope(shield=True):
                made = await mounted.chain.checkpoint(
                    name,
                    text_in(args, "message"),
                    created_ns=mounted.workspace.clock.now_ns(),
                    is_automatic=is_automatic,
                )
            if is_durable:
                await self._store(made, progress)
        log.info(
            "checkpoint.made",
            extra={
                "session": mounted.name,
                "checkpoint": name,
                "duration_ms": round((time.monotonic() - began) * 1000, 3),
            },
        )
        return {"session": mounted.name, **_row(made, is_durable=is_durable)}

    async def delete(self, name: str) -> dict[str, object]:
        """Delete a checkpoint, here and in the store."""
        mounted = self._mounted
        check_is_session(mounted)
        chain = mounted.chain
        async with mounted.committing:
            row = self.row(name)
            with trio.CancelScope(shield=True):
                if row["is_durable"]:
                    with mounted.noting_loss():
                        await mounted.settle(moved_by=own_provenance(mounted).author)
                        await self._saving.drop_stored_checkpoint(name)
                here = chain.record.find_checkpoint(name)
                if here is not None:
                    await chain.drop_checkpoint(here)
        return {"session": mounted.name, **row}

    def all(self) -> dict[str, object]:
        """Tell of all, in the order in which they were made."""
        check_is_session(self._mounted)
        return {"session": self._mounted.name, "checkpoints": self._rows()}

    def row(self, name: str) -> dict[str, object]:
        """Return what is told of one.

        Raises:
            NotFoundError: There is none of that name.
        """
        rows = self._rows()
        found = next((row for row in rows if row["checkpoint"] == name), None)
        if found is None:
            raise NotFoundError(
                f"session {self._mounted.name} has no checkpoint {name}; there are: {self.names()}",
                kind="checkpoint.absent",
                checkpoint=name,
            )
        return found

    def names(self) -> str:
        """Return all names, for a message."""
        return ", ".join(str(row["checkpoint"]) for row in self._rows()) or "none"

    def find_stored(self, name: str) -> StoredCheckpoint | None:
        """Return a durable one, or None."""
        return self._stored().get(name)

    def free_name(self, *, is_automatic: bool) -> str:
        """Return a name for one more: numbered above all there are, for the oldest go first.

        A number that became free would give an old name to a new state.
        """
        stem = _AUTOMATIC if is_automatic else _ASKED_FOR
        numbers = (re.fullmatch(rf"{stem}([0-9]+)", name) for name in self._taken())
        return f"{stem}{1 + max((int(found[1]) for found in numbers if found), default=0)}"

    async def _store(self, made: LocalCheckpoint, progress: SendProgress) -> None:
        mounted = self._mounted
        provenance = own_provenance(mounted)
        async with telling(progress) as note:
            with trio.CancelScope(shield=True), mounted.noting_loss():
                try:
                    await mounted.settle(moved_by=provenance.author)
                    await self._saving.store_checkpoint(made, provenance, note)
                except UnavailableError as exc:
                    raise UnavailableError(
                        f"checkpoint {made.name} was made and is on this machine alone: {exc}. "
                        "When the store answers, delete it and make it again",
                        kind="checkpoint.not_stored",
                        checkpoint=made.name,
                    ) from exc

    def _rows(self) -> list[dict[str, object]]:
        here, stored = self._mounted.chain.record.checkpoints, self._stored()
        names = {one.name for one in here}
        rows = [_row(one, is_durable=one.name in stored) for one in here]
        rows += [_stored_row(one) for one in stored.values() if one.name not in names]
        return sorted(rows, key=_created_of)

    def _stored(self) -> dict[str, StoredCheckpoint]:
        session = self._mounted.session
        return {} if session is None else {one.name: one for one in session.session.checkpoints}

    def _taken(self) -> set[str]:
        here = self._mounted.chain.record.checkpoints
        return {*self._stored(), *(one.name for one in here)}


def checkpoint_action(args: Mapping[str, object]) -> str:
    """Return what to do with checkpoints.

    Raises:
        UsageError: Nothing that is known.
    """
    action = text_in(args, "action")
    if action not in ("create", "list", "delete", "show", "diff"):
        raise UsageError(f"checkpoints know no action {action!r}", kind="args.invalid")
    return action


def _created_of(row: Mapping[str, object]) -> int:
    created_ns = row["created_ns"]
    assert isinstance(created_ns, int)
    return created_ns


def _row(checkpoint: LocalCheckpoint, *, is_durable: bool) -> dict[str, object]:
    base = checkpoint.base
    return {
        "checkpoint": checkpoint.name,
        "message": checkpoint.message,
        "created_ns": checkpoint.created_ns,
        "base": None if base is None else base.id.hex(),
        "is_automatic": checkpoint.is_automatic,
        "is_durable": is_durable,
    }


def _stored_row(checkpoint: StoredCheckpoint) -> dict[str, object]:
    return {
        "checkpoint": checkpoint.name,
        "message": checkpoint.message,
        "created_ns": checkpoint.created_ns,
        "base": None,
        "is_automatic": False,
        "is_durable": True,
    }
