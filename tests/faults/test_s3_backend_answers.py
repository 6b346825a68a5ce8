"""An S3 store whose answers get lost, broken, late or wrong: nothing wrong is ever served."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clocks import TurnedClock
from tests.faults.s3_store import (
    BRIEF,
    DEADLINE_S,
    FaultyStore,
    faulty_store,
    is_method,
    new_backend,
)
from tests.servers import Server
from workspacefs.backend.contract import (
    STORE_AWAY,
    STORE_CREDENTIALS,
    STORE_DENIED,
    STORE_UNCLEAR,
    Version,
)
from workspacefs.backend.s3 import S3Backend
from workspacefs.errors import (
    BusyError,
    IntegrityError,
    KeyAbsentError,
    NoSpaceError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
)
from workspacefs.testing.proxy import (
    CorruptBody,
    CutBody,
    DropAnswer,
    RequestInfo,
    Reset,
    SlowBody,
    Stall,
    Status,
    WrongBody,
)

pytestmark = pytest.mark.usefixtures("s3_environ")

VALUE = bytes(random.Random(5).randbytes(300_000))
LARGE_BYTES = (20 << 20) + 5


@pytest.fixture
def brief(seaweedfs: Server, s3_environ: None) -> Iterator[FaultyStore]:
    with faulty_store(seaweedfs, retry=BRIEF) as made:
        yield made


def error_xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()


OPERATIONS: dict[str, Callable[[S3Backend], object]] = {
    "get": lambda backend: backend.get("k"),
    "range": lambda backend: backend.get("k", offset=5, length=5),
    "open_range": lambda backend: b"".join(backend.open_range("k", offset=5, length=5).pieces),
    "get_versioned": lambda backend: backend.get_versioned("k"),
    "size_bytes": lambda backend: backend.size_bytes("k"),
    "iter_keys": lambda backend: list(backend.iter_keys("")),
    "put": lambda backend: backend.put("new", [b"v"]),
    "put_if_absent": lambda backend: backend.put_if_absent("new", b"v"),
    "put_if_version": lambda backend: backend.put_if_version("k", b"v", Version('"00"')),
    "delete": lambda backend: backend.delete("other"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    "status",
    [
        Status(500, error_xml("InternalError")),
        Status(502, b"<html>bad gateway</html>"),
        Status(503),
        Status(503, error_xml("NoSuchKey")),
        Status(504, b""),
        Status(429, b""),
        Status(200, error_xml("InternalError")),
        Status(404, b"<html>no such page</html>"),
    ],
    ids=lambda status: f"{status.code}-{len(status.body)}",
)
def test_failing_server_is_unavailable(
    impatient: FaultyStore, operation: str, status: Status
) -> None:
    """Whatever a broken server or proxy answers, it is neither "absent" nor empty nor success."""
    impatient.past.put("k", [VALUE])
    impatient.add(status)

    with pytest.raises(UnavailableError) as caught:
        OPERATIONS[operation](impatient.through)

    assert caught.value.kind == (STORE_UNCLEAR if status.code != 404 else "store.refused")
    assert impatient.past.get("k") == VALUE


def test_trying_ends_at_the_deadline(seaweedfs: Server, s3_environ: None) -> None:
    """A server that never gets well is given up, and in time."""
    clock = TurnedClock()
    began_s = clock.monotonic()
    policy = clock.policy(deadline_s=DEADLINE_S, base_s=0.005, cap_s=0.05)
    with faulty_store(seaweedfs, retry=policy) as store:
        rule = store.add(Status(503))

        with pytest.raises(UnavailableError):
            store.through.get("k")

    assert DEADLINE_S - 0.1 < clock.monotonic() - began_s <= DEADLINE_S
    assert rule.fired > 20


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_storm_is_outlasted(store: FaultyStore, share: float) -> None:
    """With 503 at 10 % and 50 % of requests, reads and puts of new keys all succeed."""
    chance = random.Random(int(share * 10))
    rule = store.add(Status(503), lambda info: chance.random() < share)

    for number in range(60):
        key = f"packs/{number:03}"
        store.through.put(key, [VALUE[:1000], key.encode()])
        assert store.through.get(key) == VALUE[:1000] + key.encode()
        assert store.through.get(key, offset=990, length=12) == VALUE[990:1000] + b"pa"
        assert store.through.size_bytes(key) == 1000 + len(key)
    listed = [info.key for info in store.through.iter_keys("packs/")]

    assert listed == [f"packs/{number:03}" for number in range(60)]
    requests = [store.requests(name) for name in ("get", "put", "head", "list")]
    assert rule.fired == sum(retries for _, _, retries in requests) > 10
    assert rule.fired == sum(errors for _, errors, _ in requests)


def test_answers_are_waited_for_no_longer_than_the_time_out(
    seaweedfs: Server, s3_environ: None
) -> None:
    """A server that stands still is asked again, on another connection."""
    never = threading.Event()
    timeout_s = 0.5
    with faulty_store(seaweedfs, read_timeout_s=timeout_s) as store:
        store.past.put("k", [VALUE])
        store.add(Stall(until=never), times=2)
        began = time.monotonic()

        assert store.through.get("k") == VALUE

        assert time.monotonic() - began > 2 * timeout_s
        never.set()


def test_resets_are_retried(store: FaultyStore) -> None:
    """Connections that end before an answer."""
    store.past.put("k", [VALUE])
    store.add(Reset(), nth={1, 2, 4})

    assert store.through.get("k") == VALUE
    assert store.through.size_bytes("k") == len(VALUE)
    store.through.put("new", [b"v"])

    assert store.past.get("new") == b"v"


@pytest.mark.parametrize("after_bytes", [0, 1, 5000, 131_072, len(VALUE) - 1])
@pytest.mark.parametrize("resets", [False, True])
def test_broken_body_is_resumed(store: FaultyStore, after_bytes: int, resets: bool) -> None:
    """A range goes on where the connection broke; nothing comes twice, nothing is left out."""
    store.past.put("k", [VALUE])
    store.add(CutBody(after_bytes, resets=resets), nth={1, 3, 5})

    assert store.through.get("k") == VALUE
    assert store.through.get("k", offset=7) == VALUE[7:]
    answer = store.through.open_range("k", offset=3, length=10 * len(VALUE))
    pieces = list(answer.pieces)

    assert answer.total_bytes == len(VALUE)
    assert b"".join(pieces) == VALUE[3:]
    assert max(map(len, pieces)) <= 256 << 10


def test_body_that_always_breaks_is_unavailable(brief: FaultyStore) -> None:
    """Without progress there is an end to trying."""
    brief.past.put("k", [VALUE])
    brief.add(CutBody(0))

    with pytest.raises(UnavailableError) as caught:
        brief.through.get("k", offset=0, length=1000)

    assert caught.value.kind == STORE_UNCLEAR


def test_slow_body_fails_in_time(brief: FaultyStore) -> None:
    """A trickle never times out by itself, and must not hold a reader for ever."""
    brief.past.put("k", [VALUE])
    brief.add(SlowBody(6 << 10))
    began = time.monotonic()

    with pytest.raises(UnavailableError):
        brief.through.get("k")

    assert DEADLINE_S <= time.monotonic() - began < len(VALUE) / (6 << 10)


def test_slow_line_is_no_failure(brief: FaultyStore) -> None:
    """What gets ahead may take longer than the deadline."""
    brief.past.put("k", [VALUE])
    brief.add(SlowBody(len(VALUE) / (1.5 * DEADLINE_S)))
    began = time.monotonic()

    assert brief.through.get("k", offset=1) == VALUE[1:]

    assert time.monotonic() - began > DEADLINE_S


@pytest.mark.parametrize(
    "fault", [CorruptBody(0), CorruptBody(-1, mask=0x80), WrongBody(b"other"), WrongBody(b"")]
)
def test_wrong_bytes_of_a_whole_value_are_not_served(
    store: FaultyStore, fault: CorruptBody | WrongBody
) -> None:
    """Found by the checksum stored beside the value: asked again, then told as damage."""
    version = store.past.put_if_absent("refs/x", b"a ref")
    assert version is not None
    once = store.add(fault, times=1)

    assert store.through.get_versioned("refs/x") == (b"a ref", version)
    assert once.fired == 1
    store.add(fault)
    with pytest.raises(IntegrityError) as caught:
        store.through.get("refs/x")

    assert caught.value.kind == "store.short"


@pytest.mark.parametrize(
    "answer",
    [
        WrongBody(VALUE[:9]),
        WrongBody(VALUE[:11]),
        Status(206, VALUE[:10], {"ETag": '"x"'}),
        Status(206, VALUE[:10], {"ETag": '"x"', "Content-Range": "bytes 0-9/300000"}),
        Status(206, VALUE[:10], {"ETag": '"x"', "Content-Range": "bytes 5-14/*"}),
        Status(206, VALUE[:9], {"ETag": '"x"', "Content-Range": "bytes 5-13/300000"}),
    ],
    ids=range(6),
)
def test_wrong_range_is_not_served(store: FaultyStore, answer: WrongBody | Status) -> None:
    """An answer that is not of the range asked for: asked again, then told."""
    store.past.put("k", [VALUE])
    store.add(answer, times=2)

    assert store.through.get("k", offset=5, length=10) == VALUE[5:15]
    store.add(answer)
    with pytest.raises(IntegrityError) as caught:
        store.through.get("k", offset=5, length=10)

    assert caught.value.kind == "store.short"


def test_range_is_cut_out_of_a_whole_answer(store: FaultyStore) -> None:
    """Some servers answer 200 with everything."""
    store.past.put("k", [VALUE])
    whole = Status(200, VALUE, {"ETag": '"x"'})
    store.add(whole)

    assert store.through.get("k", offset=5, length=10) == VALUE[5:15]
    assert store.through.get("k", offset=len(VALUE) - 4) == VALUE[-4:]
    assert store.through.size_bytes("k") == len(VALUE)
    clipped = store.through.open_range("k", offset=len(VALUE) - 4, length=10)
    assert (clipped.total_bytes, b"".join(clipped.pieces)) == (len(VALUE), VALUE[-4:])
    with pytest.raises(IntegrityError):
        store.through.get("k", offset=len(VALUE) - 4, length=10)
    with pytest.raises(IntegrityError):
        store.through.get("k", offset=len(VALUE) + 1, length=1)


def test_open_range_is_clipped(store: FaultyStore) -> None:
    """As far as the value reaches, and no further; behind its end is damage."""
    store.past.put("k", [b"0123456789"])
    store.past.put("empty", [])

    def read(key: str, offset: int, length: int) -> tuple[int, bytes]:
        answer = store.through.open_range(key, offset=offset, length=length)
        return answer.total_bytes, b"".join(answer.pieces)

    assert read("k", 0, 10) == (10, b"0123456789")
    assert read("k", 8, 100) == (10, b"89")
    assert read("k", 10, 5) == (10, b"")
    assert read("k", 3, 0) == (10, b"")
    assert read("empty", 0, 5) == (0, b"")
    with pytest.raises(IntegrityError):
        read("k", 11, 1)
    with pytest.raises(KeyAbsentError):
        read("absent", 0, 1)


@pytest.mark.parametrize("fault", [DropAnswer(), Status(503, forwards=True), Status(500)])
def test_put_finds_its_own_write(store: FaultyStore, fault: DropAnswer | Status) -> None:
    """Sent again after a lost answer it meets itself, which is success; others still lose."""
    store.add(fault, is_method("PUT"), times=2)

    store.through.put("packs/a", [b"ours"])
    with pytest.raises(BusyError):
        store.through.put("packs/a", [b"theirs"])

    assert store.past.get("packs/a") == b"ours"


def test_conditional_write_is_sent_once(store: FaultyStore) -> None:
    """A lost answer is told as such: whoever asked knows how to find out."""
    store.add(DropAnswer(), is_method("PUT"))

    with pytest.raises(UnavailableError) as caught:
        store.through.put_if_absent("refs/x", b"v")

    assert caught.value.kind == STORE_UNCLEAR
    assert store.requests("put_if")[0] == 1
    assert store.past.get("refs/x") == b"v"


def test_conflict_is_no_answer_to_a_condition(store: FaultyStore) -> None:
    """409 says that nothing was done: the write is sent again under its condition."""
    conflict = Status(409, error_xml("ConditionalRequestConflict"))
    version = store.past.put_if_absent("refs/x", b"1")
    assert version is not None
    store.add(conflict, is_method("PUT"), times=3)

    assert store.through.put_if_version("refs/x", b"2", version) is not None
    assert store.through.put_if_version("refs/x", b"3", version) is None

    assert store.past.get("refs/x") == b"2"


def test_missing_bucket_is_not_an_absent_key(seaweedfs: Server) -> None:
    """Every operation names the bucket."""
    backend = new_backend(f"s3://no-such-bucket/p?endpoint_url={seaweedfs.url}")
    for name in ("get", "range", "size_bytes", "iter_keys", "put", "put_if_absent"):
        with pytest.raises(NotFoundError, match="no bucket no-such-bucket") as caught:
            OPERATIONS[name](backend)
        assert caught.value.kind == "store.no_bucket"


def test_denied_access_names_the_right(store: FaultyStore) -> None:
    """What has to be granted stands in the message; nothing is tried again."""
    rule = store.add(Status(403, error_xml("AccessDenied")))
    rights = {
        "get": "s3:GetObject",
        "size_bytes": "s3:GetObject",
        "iter_keys": "s3:ListBucket",
        "put": "s3:PutObject",
        "put_if_version": "s3:PutObject",
        "delete": "s3:DeleteObject",
    }
    for name, right in rights.items():
        with pytest.raises(UnavailableError, match=right) as caught:
            OPERATIONS[name](store.through)
        assert caught.value.kind == STORE_DENIED

    assert rule.fired == len(rights)


@pytest.mark.parametrize(
    ("status", "code", "kind", "error"),
    [
        (400, "AuthorizationHeaderMalformed", "store.region", UsageError),
        (403, "RequestTimeTooSkewed", "store.clock", UnavailableError),
        (507, "XMinioStorageFull", "no_space", NoSpaceError),
        (400, "InvalidRequest", "store.refused", UnavailableError),
    ],
)
def test_other_refusals_are_told_apart(
    store: FaultyStore, status: int, code: str, kind: str, error: type[Exception]
) -> None:
    """Each has its own kind, and the message says what to do."""
    store.add(Status(status, error_xml(code)))

    with pytest.raises(error) as caught:
        store.through.put("new", [b"v"])

    assert getattr(caught.value, "kind", None) == kind


def test_weak_etag_is_refused(store: FaultyStore) -> None:
    """It does not tell one value from another."""
    store.add(Status(200, b"v", {"ETag": 'W/"x"'}))

    with pytest.raises(RefusedError) as caught:
        store.through.get_versioned("refs/x")

    assert caught.value.kind == "store.weak_etag"
    assert store.through.get("refs/x") == b"v"


def test_store_that_is_away_is_told_and_seen_to_return(brief: FaultyStore) -> None:
    """Health says since when; a refused connection means that nothing was done."""
    brief.past.put("k", [VALUE])
    assert brief.through.get("k") == VALUE
    brief.proxy.down()

    with pytest.raises(UnavailableError) as caught:
        brief.through.put_if_absent("refs/x", b"v")
    away = brief.through.health.document()
    brief.proxy.up()

    assert caught.value.kind == STORE_AWAY
    assert away["state"] == "away"
    assert isinstance(away["since_s"], float)
    assert brief.through.get("k") == VALUE
    assert brief.through.health.document()["state"] == "ok"


def test_large_value_outlasts_faults(store: FaultyStore) -> None:
    """In parts: some fail, the answer to the last request is lost, and the value is whole."""

    def is_part(info: RequestInfo) -> bool:
        return "partNumber" in info.query

    def is_completion(info: RequestInfo) -> bool:
        return info.method == "POST" and "uploadId" in info.query

    data = random.Random(9).randbytes(LARGE_BYTES)
    store.add(Status(503), is_part, nth={1, 3})
    store.add(Reset(), is_part, nth={4})
    store.add(DropAnswer(), is_completion, times=1)

    store.through.put("packs/large", [data[:1000], memoryview(data)[1000:]])
    with pytest.raises(BusyError):
        store.through.put("packs/large", [data])

    assert store.past.size_bytes("packs/large") == LARGE_BYTES
    assert store.past.get("packs/large") == data
    assert store.through.get("packs/large", offset=LARGE_BYTES - 9, length=9) == data[-9:]


def test_failed_large_value_leaves_no_parts(store: FaultyStore, seaweedfs: Server) -> None:
    """The upload is aborted, and there is no value."""
    store.add(Status(403, error_xml("AccessDenied")), lambda info: "partNumber" in info.query)

    with pytest.raises(UnavailableError) as caught:
        store.through.put("packs/large", [bytes(LARGE_BYTES)])

    assert caught.value.kind == STORE_DENIED
    uploads = seaweedfs.client().list_multipart_uploads(Bucket=seaweedfs.bucket)
    assert not uploads.get("Uploads")
    with pytest.raises(KeyAbsentError):
        store.past.get("packs/large")


def test_expired_credentials_are_read_again(
    seaweedfs: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that were renewed are used without a restart; until then the error says what is up."""
    file = tmp_path / "credentials"
    clock = TurnedClock()

    def write(key: str) -> None:
        secret = seaweedfs.secret_key
        file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key={secret}\n")

    with faulty_store(seaweedfs, retry=clock.policy(attempts=3)) as store:
        store.past.put("k", [VALUE])
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        write("AKIDEXPIRED")

        with pytest.raises(UnavailableError, match="renew them") as caught:
            store.through.get("k")
        write(seaweedfs.access_key)
        clock.now_s += 10

        assert caught.value.kind == STORE_CREDENTIALS
        assert store.through.get("k") == VALUE
        clock.now_s += 10
        store.add(Status(400, error_xml("ExpiredToken")), times=1)
        assert store.through.put_if_absent("refs/x", b"v") is not None


def test_no_credentials_at_all_is_told(seaweedfs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says by which ways they can be given."""
    backend = new_backend(seaweedfs.new_store())
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(UnavailableError, match="AWS_ACCESS_KEY_ID") as caught:
        backend.prepare()

    assert caught.value.kind == STORE_CREDENTIALS


def test_requests_are_no_more_than_needed(store: FaultyStore) -> None:
    """One a call, without a question ahead of bodies."""
    store.through.put("k", [VALUE])
    store.through.get("k")
    store.through.get("k", offset=1, length=5)
    store.through.size_bytes("k")
    version = store.through.put_if_absent("refs/x", b"1")
    assert version is not None
    store.through.put_if_version("refs/x", b"2", version)
    store.through.get_versioned("refs/x")
    list(store.through.iter_keys("refs/"))

    assert [info.method for info in store.proxy.log] == [
        *("PUT", "GET", "GET", "GET", "PUT", "PUT", "GET", "GET")
    ]
    assert not any("expect" in info.headers for info in store.proxy.log)
    assert len({info.headers["host"] for info in store.proxy.log}) == 1
