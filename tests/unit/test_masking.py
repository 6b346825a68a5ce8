"""Command lines without their secrets."""

from __future__ import annotations

import pytest

from workspacefs.workspace.masking import CUT, mask_arguments

HEX = "0123456789abcdef" * 2
LONG = "Zx81kQp0Vb3TnR7yLmW2sHd9GfA4cJ6eUq5o"

SECRETS = [
    ["app", "--password", "S3CRET"],
    ["app", "--password=S3CRET"],
    ["app", "--db-passwd", "S3CRET"],
    ["app", "--PASSWORD=S3CRET"],
    ["app", "-password", "S3CRET"],
    ["app", "--passphrase", "S3CRET"],
    ["app", "--pass", "S3CRET"],
    ["app", "--token", "S3CRET"],
    ["app", "--github-token=S3CRET"],
    ["app", "--secret", "S3CRET"],
    ["app", "--client-secret=S3CRET"],
    ["app", "--api-key", "S3CRET"],
    ["app", "--apikey=S3CRET"],
    ["app", "--secret-access-key", "S3CRET"],
    ["app", "--auth", "S3CRET"],
    ["env", "OPENAI_API_KEY=S3CRET", "python", "x.py"],
    ["env", "DB_PASSWORD=S3CRET", "make"],
    ["docker", "run", "-e", "TOKEN=S3CRET", "image"],
    ["docker", "run", "--env=AUTH_TOKEN=S3CRET", "image"],
    ["docker", "login", "-u", "me", "-p", "S3CRET"],
    ["sh", "-c", "API_TOKEN=S3CRET make all"],
    ["sh", "-c", "tool --token S3CRET --verbose"],
    ["sh", "-c", "tool --password='S3CRET and more'"],
    ["sh", "-c", 'export PGPASSWORD="S3CRET"; psql'],
    ["curl", "-H", "Authorization: Bearer S3CRET-S3CRET"],
    ["curl", "-H", "authorization: token S3CRET"],
    ["curl", "-H", "X-Api-Key: S3CRET"],
    ["curl", "-H", "Cookie: id=S3CRET; other=S3CRET"],
    ["curl", "-u", "me:S3CRET", "https://host"],
    ["curl", "-ume:S3CRET", "https://host"],
    ["curl", "--user=me:S3CRET", "https://host"],
    ["curl", "-d", '{"user": "me", "password": "S3CRET"}'],
    ["curl", "https://host/x?access_token=S3CRET&page=2"],
    ["curl", "https://bucket/x?X-Amz-Signature=S3CRET"],
    ["git", "clone", "https://me:S3CRET@host/x.git"],
    ["git", "clone", "https://me:a@b:S3CRET@host/x.git"],
    ["psql", "postgres://me:S3CRET@db:5432/x"],
    ["mysql", "-uroot", "-pS3CRET", "db"],
    ["/usr/bin/mysqldump", "-pS3CRET"],
    ["sshpass", "-p", "S3CRET", "ssh", "host"],
    ["redis-cli", "-a", "S3CRET"],
    ["app", "AKIAS3CRETS3CRET1234"],
    ["app", "sk-S3CRETS3CRETS3CRET"],
    ["app", "sk-ant-api03-S3CRETS3CRETS3CRET"],
    ["app", "ghp_S3CRETS3CRETS3CRETS3CRETS3CRET"],
    ["app", "github_pat_S3CRETS3CRETS3CRET"],
    ["app", "glpat-S3CRETS3CRETS3CRET"],
    ["app", "xoxb-S3CRET-S3CRET"],
    ["app", "eyJS3CRETaa.eyJS3CRETaa.S3CRET_x"],
    ["app", "x=Bearer S3CRETS3CRET"],
    ["app", "-----BEGIN RSA PRIVATE KEY-----\nS3CRET\n-----END RSA PRIVATE KEY-----"],
    ["app", "-----BEGIN PRIVATE KEY-----\nS3CRET"],
    ["python", "-c", "login('me', password='S3CRET')"],
    ["openssl", "rsa", "-passin", "pass:S3CRET"],
]

PLAIN = [
    ["make", "-j8", "all"],
    ["mkdir", "-p", "a/b/c"],
    ["docker", "run", "-p", "80:80", "image"],
    ["mysql", "-p", "database"],
    ["git", "commit", "--author=Me <me@host>", "-m", "pass the tokens on"],
    ["cp", "/usr/share/very/long/path/with/Many/Parts/and/Digits123/456/File789", "x"],
    ["app", "--token-file", "/run/token"],
    ["app", "--password-file=/run/password"],
    ["app", "--max-tokens", "4096"],
    ["app", "--max-tokens=4096"],
    ["app", "--tokenizer", "words"],
    ["app", "--bypass", "x"],
    ["app", "--key", "name"],
    ["sh", "-c", "PWD=/tmp make compass=north"],
    ["ssh", "user@host", "ls"],
    ["curl", "https://host:8080/path"],
    ["app", "a_very_long_snake_case_name_of_a_test_with_number_1234_in_it"],
    ["app", "TestThatSomethingLongHappensWhenAnythingIsDoneToIt"],
    ["app", "--password", "--verbose"],
]


@pytest.mark.parametrize("words", SECRETS, ids=" ".join)
def test_secret_is_masked(words: list[str]) -> None:
    """Nothing of the secret is left, and something says that there was one."""
    masked = b" ".join(mask_arguments([word.encode() for word in words]))

    assert b"S3CRET" not in masked
    assert b"***" in masked
    assert masked.startswith(words[0].encode())


@pytest.mark.parametrize("word", [HEX, HEX * 2, LONG, f"key/{LONG}", f"x={LONG}=="])
def test_what_looks_like_a_key_is_masked(word: str) -> None:
    """Long hexadecimal and mixed text is, whatever stands before it."""
    masked = b" ".join(mask_arguments([b"app", word.encode()]))

    assert HEX.encode() not in masked
    assert LONG.encode() not in masked


@pytest.mark.parametrize("words", PLAIN, ids=" ".join)
def test_what_is_no_secret_stays(words: list[str]) -> None:
    """A command line without secrets is kept as it is."""
    arguments = tuple(word.encode() for word in words)

    assert mask_arguments(arguments) == arguments


def test_the_rest_of_the_command_line_stays() -> None:
    """Only values go."""
    masked = mask_arguments([b"tool", b"--token", b"abc", b"--out", b"x", b"URL=http://a:b@c/d"])

    assert masked == (b"tool", b"--token", b"***", b"--out", b"x", b"URL=http://a:***@c/d")


def test_long_command_line_is_cut() -> None:
    """So many bytes and no more; a secret that the cut goes through is masked before."""
    many = mask_arguments([b"app", *[b"argument"] * 10_000])
    long = mask_arguments([b"app", b"x" * 1010 + b" --token=" + b"S3CRET" * 1000])

    assert sum(map(len, many)) <= 4096 + len(CUT)
    assert many[-1] == CUT
    assert long == (b"app", b"x" * 1010 + b" --token=***")


def test_many_bytes_take_no_long_time() -> None:
    """Nothing backtracks: what takes seconds for this would hold up a mount."""
    for text in (b"a" * 16_000, b"=" * 16_000, b"-pass" * 3000, b"token " * 3000, b"a:" * 8000):
        mask_arguments([b"app", text])
        mask_arguments([b"app", b"http://" + text])
