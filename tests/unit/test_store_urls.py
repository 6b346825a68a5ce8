"""Store URLs as people type them."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from workspacefs.cli.parser import add_store_flags, new_parser
from workspacefs.cli.store_urls import absolute_url, split_revision
from workspacefs.errors import UsageError


def flags(*words: str) -> argparse.Namespace:
    parser = new_parser("x", "x", "x")
    add_store_flags(parser)
    return parser.parse_args(list(words))


@pytest.mark.parametrize(
    ("url", "environ", "words", "absolute"),
    [
        ("s3://bucket/p/", {}, [], "s3://bucket/p"),
        (
            "s3://bucket",
            {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b:80"},
            [],
            "s3://bucket?endpoint_url=http://b",
        ),
        ("s3://bucket", {"AWS_ENDPOINT_URL": "http://a"}, [], "s3://bucket?endpoint_url=http://a"),
        (
            "s3://bucket",
            {"AWS_ENDPOINT_URL": "http://a", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "TRUE"},
            [],
            "s3://bucket",
        ),
        (
            "s3://bucket?endpoint_url=http://u",
            {"AWS_ENDPOINT_URL": "http://a"},
            [],
            "s3://bucket?endpoint_url=http://u",
        ),
        (
            "s3://bucket?endpoint_url=http://u&region=r",
            {"AWS_ENDPOINT_URL": "http://a", "AWS_SECRET_ACCESS_KEY": "canary"},
            ["--endpoint-url", "https://f", "--profile", "p", "--s3-addressing", "path"],
            "s3://bucket?addressing=path&endpoint_url=https://f&profile=p&region=r",
        ),
        (
            "s3://bucket",
            {},
            ["--region", "r", "--ca-bundle", "/ca", "--sse", "aws:kms", "--sse-kms-key-id", "k"],
            "s3://bucket?ca_bundle=/ca&region=r&sse=aws:kms&sse_kms_key_id=k",
        ),
    ],
)
def test_s3_url_takes_in_flags_and_endpoint(
    url: str, environ: dict[str, str], words: list[str], absolute: str
) -> None:
    """The URL alone leads to the store later, elsewhere; it holds no credentials."""
    made = absolute_url(url, environ, flags(*words))

    assert made == absolute
    assert absolute_url(made, {}, flags()) == made


def test_file_of_certificates_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon has another working directory."""
    monkeypatch.chdir(tmp_path)

    made = absolute_url("s3://bucket", {}, flags("--ca-bundle", "ca.pem"))

    assert made == f"s3://bucket?ca_bundle={tmp_path}/ca.pem"


def test_directories_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before; an endpoint in the environment is not theirs."""
    monkeypatch.chdir(tmp_path)

    assert absolute_url("./d", {"AWS_ENDPOINT_URL": "http://a"}, flags()) == f"{tmp_path}/d"
    assert absolute_url("file:///d", {}, flags()) == "file:///d"


def test_s3_flags_are_refused_for_directories() -> None:
    """Whoever gives them expects another store than they get."""
    with pytest.raises(UsageError, match="--region is for S3 stores"):
        absolute_url("./d", {}, flags("--region", "r"))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s3://b/p", ("s3://b/p", None)),
        ("s3://b/p@main", ("s3://b/p", "main")),
        ("s3://b/p@agents/fix-1~2", ("s3://b/p", "agents/fix-1~2")),
        ("s3://b/p?endpoint_url=http://127.0.0.1:1@main", None),
        ("s3://b/a%40b@main", ("s3://b/a%40b", "main")),
    ],
)
def test_revision_is_split_from_an_s3_url(text: str, parts: tuple[str, str | None] | None) -> None:
    """The first @ parts: there is none in the URL itself."""
    expected = parts or ("s3://b/p?endpoint_url=http://127.0.0.1:1", "main")

    assert split_revision(text) == expected
