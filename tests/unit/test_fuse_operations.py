"""The handlers without a kernel: started over when something is missing, never fatal."""

from __future__ import annotations

import errno
import inspect

import pyfuse3
import pytest
import trio

from tests.unit.vfs_session import Session
from workspacefs_daemon.background.hops import Blocking
from workspacefs_daemon.bindings.fuse.operations import Operations

DIRECTORY = 0o040755
HANDLERS = sorted(
    name
    for name, member in vars(Operations).items()
    if inspect.iscoroutinefunction(member)
    and name not in {"load", "make_room"}
    and hasattr(pyfuse3.Operations, name)
)


class Token:
    """Stands for pyfuse3's buffer of a listing: room for some names."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.names: list[bytes] = []


def reply(token: Token, name: bytes, attributes: object, next_id: int) -> bool:
    """Do what pyfuse3.readdir_reply does."""
    if len(token.names) == token.room:
        return False
    token.names.append(name)
    return True


def operations_of(session: Session) -> Operations:
    return Operations(session.fs, Blocking(), describe=lambda: b"{}")


def test_listing_that_had_to_wait_tells_every_name_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A load in the middle of a listing leads neither to a name told twice nor to one left out."""
    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    session.make("d", kind=DIRECTORY)
    names = [f"{number:04}" * 30 for number in range(1500)]
    for name in names:
        session.make(f"d/{name}", b"x")
    session.commit()
    directory = session.at("d")
    operations = operations_of(session)

    async def list_all() -> list[bytes]:
        handle = await operations.opendir(directory.file_id, None)
        told: list[bytes] = []
        while True:
            session.store.forget_all()
            token = Token(200)
            await operations.readdir(handle, len(told), token)
            if not token.names:
                return told
            told += token.names

    told = trio.run(list_all)

    assert session.store.loads > 3, "nothing was ever missing"
    assert told == [b".", b"..", *(name.encode() for name in names)]


@pytest.mark.parametrize("name", HANDLERS)
def test_a_bug_in_a_handler_is_an_error_of_that_request(
    session: Session, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Whatever a handler runs into, the caller gets EIO and nothing else leaves the handler."""
    operations = operations_of(session)

    class Broken:
        def __getattr__(self, attribute: str) -> object:
            raise ZeroDivisionError(attribute)

    monkeypatch.setattr(operations, "fs", Broken())
    monkeypatch.setattr(operations, "_directories", Broken())
    monkeypatch.setattr(operations, "_file_info", Broken())
    handler = getattr(operations, name)
    arguments = [Broken()] * len(inspect.signature(handler).parameters)

    async def call() -> int | None:
        try:
            await handler(*arguments)
        except pyfuse3.FUSEError as exc:
            return exc.errno
        return None

    answer = trio.run(call)

    expected = {"forget": None, "flush": errno.ENOSYS, "access": None}
    assert answer == expected.get(name, errno.EIO)


def test_every_handler_of_the_protocol_is_tested() -> None:
    """Handlers that are added are in the list above."""
    assert {"lookup", "forget", "readdir", "rename", "setattr", "statfs"} <= set(HANDLERS)
    assert len(HANDLERS) >= 28
