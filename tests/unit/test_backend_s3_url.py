"""URLs of S3 stores: what they mean, their one spelling, and that no secret gets into them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workspacefs.backend.s3_url import S3Url, is_s3_url, merge_options, parse_s3_url
from workspacefs.errors import UsageError


@pytest.mark.parametrize(
    ("spelled", "canonical"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://bucket/", "s3://bucket"),
        ("s3://bucket//a/b/", "s3://bucket/a/b"),
        ("s3://bucket/a%40b", "s3://bucket/a%40b"),
        (
            "s3://bucket/p?region=eu-west-1&endpoint_url=http%3A%2F%2F127.0.0.1%3A8333%2F",
            "s3://bucket/p?endpoint_url=http://127.0.0.1:8333&region=eu-west-1",
        ),
        (
            "s3://bucket?endpoint_url=https://h:443&addressing=auto",
            "s3://bucket?endpoint_url=https://h",
        ),
        ("s3://bucket?profile=my team", "s3://bucket?profile=my%20team"),
        ("s3://bucket?sse=aws:kms&sse_kms_key_id=arn:aws:kms:x:1:key/a", None),
        ("s3://bucket?endpoint_url=http://[::1]:9000", None),
        ("s3://bucket?ca_bundle=/etc/a+b.pem", None),
    ],
)
def test_url_has_one_spelling(spelled: str, canonical: str | None) -> None:
    """The canonical spelling is that of all, and means the same."""
    parsed = parse_s3_url(spelled)

    assert str(parsed) == (canonical or spelled)
    assert parse_s3_url(str(parsed)) == parsed
    assert "@" not in str(parsed)


def test_parts_are_told_apart() -> None:
    """Every option arrives where it belongs."""
    parsed = parse_s3_url(
        "s3://my.bucket-1/a/b?endpoint_url=https://s3.example.com&region=r&profile=p"
        "&addressing=virtual&ca_bundle=/ca.pem&sse=aws:kms&sse_kms_key_id=k"
    )

    assert parsed == S3Url(
        "my.bucket-1",
        "a/b",
        endpoint_url="https://s3.example.com",
        region="r",
        profile="p",
        addressing="virtual",
        ca_bundle="/ca.pem",
        sse="aws:kms",
        sse_kms_key_id="k",
    )


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIDCANARY:canary-secret@bucket/p",
        "s3://canary-secret@bucket",
        "s3://bucket?secret_access_key=canary-secret",
        "s3://bucket?endpoint_url=http://u:canary-secret@h:1",
        "s3://bucket?endpoint_url=http://u:canary-secret",
        "s3://bucket?endpoint_url=ftp://canary-secret",
        "s3://bucket?endpoint_url=http://h?canary-secret",
        "s3://bucket?canary-secret",
        "s3://bucket?region=a&region=canary-secret",
        "s3://bucket?region=canary-secret with a space",
        "s3://bucket?sse=canary-secret",
        "s3://bucket?addressing=canary-secret",
        "s3://bucket?sse_kms_key_id=canary-secret",
        "s3://bucket/.canary-secret",
        "s3://bucket/a//../canary-secret",
        "s3://bucket/" + "canary-secret" * 10,
        "s3://Canary_secret/p",
        "s3:///canary-secret",
        "s3:canary-secret",
        "s3://",
        "s3://b",
        "s3://bu..cket",
    ],
)
def test_url_that_makes_no_sense_is_refused_without_repeating_it(url: str) -> None:
    """Credentials in a URL end up in histories and lists of processes: they are refused."""
    assert is_s3_url(url)
    with pytest.raises(UsageError) as caught:
        parse_s3_url(url)

    assert "canary" not in str(caught.value).lower()
    assert caught.value.kind == "store.url"


def test_options_are_merged() -> None:
    """What is given beside the URL counts more than what stands in it."""
    url = parse_s3_url("s3://bucket/p?region=a&profile=p")

    merged = merge_options(url, {"region": "b", "endpoint_url": "http://h:80"})

    assert str(merged) == "s3://bucket/p?endpoint_url=http://h&profile=p&region=b"
    with pytest.raises(UsageError):
        merge_options(url, {"addressing": "canary"})


def test_reading_a_url_loads_nothing_slow() -> None:
    """The command line reads URLs at its start: neither boto3 nor dataclasses may be loaded."""
    script = (
        "import sys; from workspacefs.backend.s3_url import parse_s3_url; "
        "parse_s3_url('s3://bucket/p?endpoint_url=http://h'); "
        "bad = {'boto3', 'botocore', 'dataclasses', 'logging'} & set(sys.modules); "
        "sys.exit(' '.join(bad) or None)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60)

    assert done.returncode == 0, done.stderr
