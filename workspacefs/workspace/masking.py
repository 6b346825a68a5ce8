"""Command lines without their secrets, for what is kept for ever and shown to others.

What looks like a secret becomes `***`: values of options and variables with such names, passwords
in URLs, headers, and tokens known by their shape. It errs towards masking, and cannot know all: a
secret that is a plain word behind a plain name stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

MASK: Final = b"***"
CUT: Final = b"\xe2\x80\xa6"
"""Stands in the place of what is left out because there is too much."""
ARGUMENTS_MAX_BYTES: Final = 4096
_ARGUMENT_MAX_BYTES: Final = 1024

_SECRET: Final = (
    rb"(?:passw(?:or)?d|passphrase|(?<![a-z])pass(?![a-z])|[_-]pwd(?![a-z])|secrets?(?![a-z])"
    rb"|tokens?(?![a-z])|api[_-]?keys?|(?:access|private|secret|signing|encryption|master|account"
    rb"|shared|auth)[_-]?keys?|credentials?|(?<![a-z])auth(?:entication|orization)?(?![a-z])"
    rb"|(?<![a-z])cookies?(?![a-z])|signature|(?<![a-z])sig(?![a-z])|connection[_-]?string)"
)
_ABOUT_IT: Final = re.compile(
    rb"[_.-](?:file|path|dir|name|id|type|env|url|uri|host|user|len|length|count|limit|policy|ttl"
    rb"|format|prefix|stdin|manager|store|provider|helper)$",
    re.IGNORECASE,
)
"""Names of what is said about a secret."""

# Words are possessive and begin where no word is under way: an argument is gone through once,
# whatever is in it.
_WORD: Final = rb"[A-Za-z0-9_.-]"
_NAME: Final = rb"(?=" + _WORD + rb"*?" + _SECRET + rb")(?P<name>" + _WORD + rb"++)"
_VALUE: Final = rb"(?P<value>\"[^\"]*+\"?|'[^']*+'?|[^\s\"'&;,|)}\]]++)"
_IN_TEXT: Final = re.compile(
    rb"(?<!"
    + _WORD
    + rb")"
    + _NAME
    + rb"(?P<between>[\"']?\s{0,4}[=:]\s{0,4}|[\"']\s{0,4},\s{0,4})"
    + _VALUE,
    re.IGNORECASE,
)
_OPTION_IN_TEXT: Final = re.compile(
    rb"(?<!\S)(?=-)" + _NAME + rb"(?P<between>\s{1,4})(?!-)" + _VALUE, re.IGNORECASE
)
_IS_OPTION: Final = re.compile(rb"(?=-)" + _NAME, re.IGNORECASE)
_HEADER: Final = re.compile(
    rb"(?<![a-z-])((?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{0,40}(?:key|token))"
    rb"(\s{0,4}:\s{0,4})[^\r\n\"']+",
    re.IGNORECASE,
)
_SCHEME: Final = rb"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]{0,30}://"
_URL: Final = re.compile(
    _SCHEME + rb"[^/?#\s:@\"']{0,256}:)(?![0-9]{1,5}(?:[/?#\s]|\Z))[^\s\"']{1,512}@"
)
_URL_TOKEN: Final = re.compile(_SCHEME + rb")[^/?#\s:@\"']{20,256}@")
_SHAPES: Final = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    rb"|(?i:bearer|basic)\s+[A-Za-z0-9+/._~-]{8,}=*"
    rb"|(?<![A-Za-z0-9])(?:"
    rb"(?:AKIA|ASIA|AIDA|AROA)[0-9A-Z]{12,}"
    rb"|(?:sk|pk|rk)[-_][A-Za-z0-9_-]{12,}"
    rb"|gh[opusr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}|gl[a-z]{2,5}-[A-Za-z0-9_-]{16,}"
    rb"|xox[a-z]-[A-Za-z0-9-]{8,}|AIza[0-9A-Za-z_-]{30,}|ya29\.[0-9A-Za-z_-]{16,}"
    rb"|(?:hf|npm|dop_v1|pypi|shpat|SG)[_.-][A-Za-z0-9_.-]{20,}"
    rb"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)*"
    rb")",
    re.DOTALL,
)
_HEX: Final = re.compile(
    rb"(?<![A-Za-z0-9])(?=[0-9]*[A-Fa-f])(?=[A-Fa-f]*[0-9])[0-9A-Fa-f]{32,}"
    rb"(?![A-Za-z0-9])"
)
_BASE64: Final = re.compile(rb"(?<![A-Za-z0-9+/_.-])[A-Za-z0-9+_-][A-Za-z0-9+/_-]{31,}={0,2}")

_VALUE_OF: Final[Mapping[bytes, Mapping[bytes, str]]] = {
    program: options
    for programs, options in (
        (b"mysql mysqldump mysqladmin mariadb mariadb-dump 7z 7za", {b"-p": "attached"}),
        (b"sshpass", {b"-p": "either"}),
        (b"zip unzip", {b"-P": "either"}),
        (b"curl http", {b"-u": "login", b"--user": "login", b"--proxy-user": "login"}),
        (b"redis-cli", {b"-a": "either"}),
        (b"ldapsearch ldapmodify ldapadd", {b"-w": "either"}),
        (b"docker podman helm", {b"-p": "login command"}),
    )
    for program in programs.split()
}
"""Short options that take a secret, by program: where the secret stands."""


def mask_arguments(
    arguments: Sequence[bytes], *, max_bytes: int = ARGUMENTS_MAX_BYTES
) -> tuple[bytes, ...]:
    """Return a command line as it may be kept: masked, then cut; CUT stands where it was cut.

    Args:
        arguments: As execve(2) got them, the program's name first.
        max_bytes: Of all arguments together.
    """
    kept: list[bytes] = []
    room = max_bytes
    for argument in _masked(arguments):
        if len(argument) > _ARGUMENT_MAX_BYTES:
            argument = argument[:_ARGUMENT_MAX_BYTES] + CUT
        room -= len(argument) + 1
        if room < 0:
            return (*kept, CUT)
        kept.append(argument)
    return tuple(kept)


def mask_text(text: bytes) -> bytes:
    """Return one argument, or any text, with what looks like a secret in it masked."""
    text = _SHAPES.sub(_shape_masked, text)
    text = _HEADER.sub(rb"\1\2" + MASK, text)
    text = _URL.sub(rb"\1" + MASK + b"@", text)
    text = _URL_TOKEN.sub(rb"\1" + MASK + b"@", text)
    text = _IN_TEXT.sub(_value_masked, text)
    text = _OPTION_IN_TEXT.sub(_value_masked, text)
    text = _HEX.sub(MASK, text)
    return _BASE64.sub(_long_masked, text)


def _masked(arguments: Sequence[bytes]) -> Iterator[bytes]:
    program = arguments[0].rpartition(b"/")[2] if arguments else b""
    of_program = _VALUE_OF.get(program, {})
    is_login = b"login" in arguments
    mask_next: Callable[[bytes], bytes] | None = None
    for argument in arguments:
        if mask_next is not None and not argument.startswith(b"-"):
            yield mask_next(argument)
            mask_next = None
            continue
        mask_next = None
        name, how = _known_option(argument, of_program)
        if how is not None and (how != "login command" or is_login):
            mask = _login_masked if how == "login" else _all_masked
            if argument != name:
                value = argument[len(name) :]
                yield name + mask(value)
                continue
            mask_next = None if how == "attached" else mask
        elif _IS_OPTION.fullmatch(argument) and not _ABOUT_IT.search(argument):
            mask_next = _unless_count(argument)
        yield mask_text(argument)


def _known_option(argument: bytes, of_program: Mapping[bytes, str]) -> tuple[bytes, str | None]:
    for name, how in of_program.items():
        is_long = name.startswith(b"--")
        if argument == name or (not is_long and argument.startswith(name)):
            return name, how
        if is_long and argument.startswith(name + b"="):
            return name + b"=", how
    return b"", None


def _all_masked(value: bytes) -> bytes:
    return MASK


def _login_masked(value: bytes) -> bytes:
    user, colon, _ = value.partition(b":")
    return user + colon + MASK if colon else mask_text(value)


def _unless_count(name: bytes) -> Callable[[bytes], bytes]:
    return lambda value: value if _is_count(name, value) else MASK


def _is_count(name: bytes, value: bytes) -> bool:
    """Tell whether this is a number of tokens, as language models have them."""
    return b"token" in name.lower() and value.isdigit() and len(value) < 8


def _value_masked(match: re.Match[bytes]) -> bytes:
    name, value = match["name"], match["value"]
    if _ABOUT_IT.search(name) or _is_count(name, value) or value == MASK:
        return match[0]
    quote = value[:1] if value[:1] in (b"'", b'"') else b""
    return name + match["between"] + quote + MASK + quote


def _shape_masked(match: re.Match[bytes]) -> bytes:
    word, blank, _ = match[0].partition(b" ")
    return word + blank + MASK if word.lower() in (b"bearer", b"basic") else MASK


def _long_masked(match: re.Match[bytes]) -> bytes:
    """Mask a long run of letters and digits, if it is as mixed as chance makes it."""
    text = match[0]
    kinds = [
        0 if c in b"0123456789" else 1 if 65 <= c <= 90 else 2 if 97 <= c <= 122 else 3
        for c in text.rstrip(b"=")
    ]
    changes = sum(one != other for one, other in pairwise(kinds))
    is_mixed = all(kinds.count(kind) >= 3 for kind in (0, 1, 2))
    return MASK if is_mixed and changes >= 0.4 * len(kinds) else text
