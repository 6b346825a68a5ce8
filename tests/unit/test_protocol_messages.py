"""The codec of the control protocol: what goes in comes out, and nothing that comes in harms."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workspacefs.errors import UnavailableError, UsageError, WorkspaceError
from workspacefs.protocol.lines import LineBuffer
from workspacefs.protocol.messages import (
    LINE_MAX_BYTES,
    Failure,
    Ok,
    Part,
    Progress,
    Request,
    decode_reply,
    decode_request,
    encode_line,
    encode_request,
    find_request_id,
)
from workspacefs.protocol.parts import iter_answer

_TEXTS = st.text(st.characters(codec=None), max_size=20)  # lone surrogates too
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=10,
)
_OBJECTS = st.dictionaries(_TEXTS, _JSON, max_size=5)


@given(st.integers(0, 2**53 - 1), st.text(min_size=1, max_size=64), _OBJECTS)
def test_request_survives_its_line(number: int, op: str, args: dict[str, object]) -> None:
    """A request decodes to what was encoded, whatever texts are in it."""
    request = Request(number, op, args)

    line = encode_request(request)

    assert line.count(b"\n") == 1
    assert decode_request(line.rstrip(b"\n")) == request


def test_file_names_of_any_bytes_travel() -> None:
    """Bytes that are no UTF-8 come back as they went, by os.fsdecode's convention."""
    name = b"\xff\x80\xc3 name".decode("utf-8", "surrogateescape")

    line = encode_request(Request(1, "status", {"under": name}))

    assert decode_request(line).args == {"under": name}


@given(st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_decoding_a_request_is_total(line: bytes) -> None:
    """Whatever stands on a line, it is a request or a UsageError, and has an id or 0."""
    try:
        decode_request(line)
    except UsageError as exc:
        assert exc.kind in ("protocol.malformed", "protocol.version")
    assert find_request_id(line) >= 0


@given(st.binary(max_size=200) | _JSON.map(lambda value: json.dumps(value).encode()))
def test_decoding_a_reply_is_total(line: bytes) -> None:
    """Whatever a daemon says, it is a reply or an UnavailableError."""
    try:
        decode_reply(line)
    except UnavailableError as exc:
        assert exc.kind == "protocol.malformed"


@given(_OBJECTS)
def test_decoding_any_error_reply_is_total(error: dict[str, object]) -> None:
    """An error reply of odd members is still an error that can be raised."""
    reply = decode_reply(json.dumps({"id": 1, "error": error}).encode())

    assert isinstance(reply, Failure)
    assert isinstance(reply.error, WorkspaceError)


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b'{"v":1,"id":1,"op":"x","args":' + b'{"a":' * 100_000,
        b'{"v":1,"id":NaN,"op":"x","args":{}}',
        b'{"v":1,"id":-1,"op":"x","args":{}}',
        b'{"v":1,"id":true,"op":"x","args":{}}',
        b'{"v":1,"id":1,"op":"","args":{}}',
        b'{"v":1,"id":1,"op":"' + b"x" * 65 + b'","args":{}}',
        b'{"v":1,"id":1,"op":"x","args":[]}',
        b'{"v":1,"id":1,"op":"x"}',
        b'{"v":true,"id":1,"op":"x","args":{}}',
        b"1" * 5000,
        b"",
    ],
)
def test_malformed_request_is_refused(line: bytes) -> None:
    """Depth bombs, wrong types and missing members are UsageErrors."""
    with pytest.raises(UsageError):
        decode_request(line)


def test_other_version_is_told_by_name() -> None:
    """A request of another protocol version says which one we speak."""
    with pytest.raises(UsageError, match="version 2") as caught:
        decode_request(b'{"v":2,"id":7,"op":"x","args":{}}')

    assert caught.value.kind == "protocol.version"


def test_message_beyond_the_limit_is_not_sent() -> None:
    """A line longer than the limit is refused where it is made."""
    with pytest.raises(UsageError, match="longer"):
        encode_line({"text": "x" * LINE_MAX_BYTES})


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_are_found_however_they_arrive(lines: list[bytes], data: st.DataObject) -> None:
    """A stream cut anywhere gives the same lines."""
    stream = b"".join(line + b"\n" for line in lines)
    buffer = LineBuffer()
    found: list[bytes] = []

    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += buffer.feed(stream[:size])
        stream = stream[size:]

    assert found == lines


def test_line_without_end_is_cut_off() -> None:
    """A line that goes on for ever is refused when it passes the limit."""
    buffer = LineBuffer(limit_bytes=10)
    buffer.feed(b"x" * 10)

    with pytest.raises(UsageError):
        buffer.feed(b"x")


def test_long_answers_are_sent_in_parts() -> None:
    """Rows and text of any length arrive in messages of bounded length, in order."""
    answer = {"rows": list(range(2500)), "text": "ab" * 1_500_000, "short": [1], "note": "x"}

    replies = [decode_reply(encode_line(message)) for message in iter_answer(3, answer)]

    parts = [reply for reply in replies if isinstance(reply, Part)]
    assert [row for part in parts if part.member == "rows" for row in part.value] == answer["rows"]
    assert "".join(str(p.value) for p in parts if p.member == "text") == answer["text"]
    assert replies[-1] == Ok(3, {"short": [1], "note": "x"})


def test_progress_is_a_reply() -> None:
    """Progress keeps its members."""
    assert decode_reply(b'{"id":4,"progress":{"files":2}}') == Progress(4, {"files": 2})
