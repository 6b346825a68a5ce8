"""A server that keeps a write whose connection ended before its body: SeaweedFS 4.48 stores a value
of no bytes then. Nothing may take it for the value that was sent.
"""

from __future__ import annotations

import itertools

import pytest
from botocore.awsrequest import AWSPreparedRequest

from tests.faults.s3_store import FaultyStore
from tests.servers import Server
from workspacefs.backend.s3_connection import join_small_body
from workspacefs.errors import BusyError, IntegrityError
from workspacefs.testing.proxy import RequestInfo, Reset

pytestmark = pytest.mark.usefixtures("s3_environ")


def keep_torn(store: FaultyStore, server: Server, *, nth: set[int]) -> None:
    """Let the server keep nothing but the heads of these writes, and answer none of them."""
    client = server.client()
    writes = itertools.count(1)

    def tear(info: RequestInfo) -> bool:
        if info.method != "PUT" or next(writes) not in nth:
            return False
        _, bucket, name = info.path.split("/", 2)
        prefix = "x-amz-meta-"
        metadata = {
            header.removeprefix(prefix): text
            for header, text in info.headers.items()
            if header.startswith(prefix)
        }
        client.put_object(Bucket=bucket, Key=name, Body=b"", Metadata=metadata)
        return True

    store.add(Reset(), tear)


@pytest.mark.parametrize("size_bytes", [1, 300_000])
def test_torn_value_is_put_again(store: FaultyStore, seaweedfs: Server, size_bytes: int) -> None:
    """A put whose first attempt left an empty value under our id does not take that for success."""
    data = b"x" * size_bytes
    keep_torn(store, seaweedfs, nth={1, 2, 4})

    store.through.put("packs/a", [data])

    assert store.past.get("packs/a") == data


def test_server_that_tears_each_write_is_told(store: FaultyStore, seaweedfs: Server) -> None:
    """It does not go on for ever, and does not claim that the value is there."""
    keep_torn(store, seaweedfs, nth={1, 3, 5})

    with pytest.raises(IntegrityError):
        store.through.put("packs/a", [b"data"])


def test_torn_value_of_somebody_else_is_left_alone(store: FaultyStore, seaweedfs: Server) -> None:
    """Only a value with our own id is deleted."""
    bucket, _, prefix = store.past.url.removeprefix("s3://").partition("?")[0].partition("/")
    seaweedfs.client().put_object(Bucket=bucket, Key=f"{prefix}/packs/a", Body=b"")

    with pytest.raises(BusyError):
        store.through.put("packs/a", [b"data"])

    assert store.past.get("packs/a") == b""


def test_small_value_leaves_with_its_head() -> None:
    """So a process that dies leaves a whole request or nothing; large ones are not copied."""
    small = AWSPreparedRequest("PUT", "http://x", {}, bytearray(b"small"), False)
    large = AWSPreparedRequest("PUT", "http://x", {}, bytearray(1 << 20), False)

    join_small_body(small)
    join_small_body(large)

    assert type(small.body) is bytes
    assert type(large.body) is bytearray
