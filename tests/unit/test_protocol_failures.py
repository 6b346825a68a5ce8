"""Errors travel: the class, the facts and the exit code of an error are the same on both sides."""

from __future__ import annotations

import json

import pytest

from workspacefs.errors import (
    BusyError,
    ExitCode,
    IntegrityError,
    MovedError,
    NoSpaceError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
    WorkspaceError,
)
from workspacefs.protocol.failures import error_document, error_from_document


@pytest.mark.parametrize(
    "cls",
    [
        WorkspaceError,
        UsageError,
        NotFoundError,
        BusyError,
        MovedError,
        IntegrityError,
        UnavailableError,
        NoSpaceError,
        RefusedError,
    ],
)
def test_error_survives_the_wire(cls: type[WorkspaceError]) -> None:
    """Class, message, kind, context, errno and exit code come back."""
    error = cls("it broke", kind="it.broke", name="é\udcff", count=3, flag=True, nothing=None)

    back = error_from_document(json.loads(json.dumps(error_document(error))))

    assert type(back) is cls
    assert str(back) == "it broke"
    assert (back.kind, back.context) == (error.kind, error.context)
    assert (back.errno, back.exit_code) == (error.errno, error.exit_code)


def test_foreign_error_tells_only_its_class() -> None:
    """What an unexpected exception says stays in the log: it may hold anything."""
    document = error_document(ZeroDivisionError("the secret"))

    assert "secret" not in json.dumps(document)
    assert document["kind"] == "internal"
    assert document["exit_code"] == ExitCode.FAILED


@pytest.mark.parametrize(
    "document",
    [{}, {"message": 1, "kind": [], "errno": "x", "exit_code": {}, "context": 3}, {"errno": 10**9}],
)
def test_odd_document_is_still_an_error(document: dict[str, object]) -> None:
    """A document of wrong types becomes a plain error with a plain message."""
    error = error_from_document(document)

    assert type(error) is WorkspaceError
    assert str(error)
