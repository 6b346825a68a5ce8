"""`workspacefs fork`: one more session, or many, that stand where one stands now."""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Final, NamedTuple

from workspacefs.cli.context import Context, count_text
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.signing_key import checked_signing_key
from workspacefs.client.locate import SessionAddress, session_of
from workspacefs.client.mounting import mount_session
from workspacefs.client.registry import LiveSession, living_sessions
from workspacefs.errors import NotFoundError, UsageError, WorkspaceError

EXAMPLE = """\
  workspacefs fork /tmp/variant                 # of the session that one is in
  workspacefs fork fix-login /tmp/variant --session fix-login-b
  workspacefs fork s3://bucket/shop fix-login /tmp/variant    # though it is not mounted
  workspacefs fork /tmp/w /tmp/variants --count 3   # /tmp/variants/1, 2 and 3"""

_COUNT_MAX: Final = 1000
_AT_ONCE: Final = 8


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "words",
        metavar="[PATH|SESSION|URL SESSION] NEW_MOUNTPOINT",
        nargs="+",
        help="a mounted session: something in it, or its name (default: the working directory); or "
        "any session by its store and name; and where to mount the fork, made if absent",
    )
    add_store_flags(parser)
    parser.add_argument(
        "--session", metavar="NAME", help="name of the fork (default: the parent's and six digits)"
    )
    parser.add_argument(
        "--at",
        metavar="CHECKPOINT",
        help="stand where the session stood at that checkpoint, not where it is now",
    )
    parser.add_argument(
        "--ephemeral",
        action="store_true",
        help="delete the fork when it is unmounted, with what was not committed",
    )
    parser.add_argument(
        "--count",
        metavar="N",
        type=int,
        help="make N forks of one moment, mounted at NEW_MOUNTPOINT/1 to N, called NAME-1 to N",
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Fork, and return when the mounts answer."""
    *source, options.mountpoint = options.words
    if len(source) > 2:
        raise UsageError(
            "it is: fork [PATH|SESSION] NEW_MOUNTPOINT, or fork URL SESSION NEW_MOUNTPOINT",
            kind="usage.arguments",
        )
    places, names = _wanted(options)
    args = {"names": names, "at": options.at, "ephemeral": options.ephemeral}
    if len(source) == 2:
        parent = _fork_stored(source[0], source[1], args, options, context)
    else:
        parent = _fork_mounted(_address(source[0] if source else ".", context), args)
    answer = parent.answer
    forks, mount = answer["sessions"], answer["mount"]
    assert isinstance(forks, list)
    assert isinstance(mount, dict)
    specs = [
        {
            **mount,
            "signing_key": mount.get("signing_key") or checked_signing_key(context.environ),
            "store_url": parent.store_url,
            "mountpoint": place,
            "state_dir": context.state.root,
            "session_name": fork["session"],
        }
        for place, fork in zip(places, forks, strict=True)
    ]
    results = _mount_all(specs, context)
    for result in results:
        context.out.line(f"session {result['session']} is mounted at {result['mountpoint']}")
    if len(results) == 1:
        typed = quote(str(results[0]["mountpoint"]))
        context.out.line(f"  forked from {parent.session} {_moment(options.at)}")
        context.out.note(f"next: cd {typed}, work, then: workspacefs status | diff | commit -m WHY")
    else:
        context.out.line(
            f"{count_text(len(results), 'fork')} of {parent.session} {_moment(options.at)}"
        )
    return {"forked_from": parent.session, "sessions": results}


class _Parent(NamedTuple):
    """What was forked, and what it answered."""

    session: str
    store_url: str
    answer: Mapping[str, object]


def _fork_mounted(address: SessionAddress, args: Mapping[str, object]) -> _Parent:
    with address.connect() as session:
        return _Parent(address.session, address.store_url, session.call("fork", args))


def _fork_stored(
    url: str, name: str, args: Mapping[str, object], options: argparse.Namespace, context: Context
) -> _Parent:
    """Fork a session of a store, mounted or not."""
    # By name: most forks are of a mounted session, and would pay for it.
    revision = importlib.import_module("workspacefs.cli.revision")
    refs = importlib.import_module("workspacefs.refs")
    workspace = revision.open_place(url, None, options, context).workspace
    found = workspace.refs.find(refs.RefKind.SESSION, name)
    if found is None or found[0].session is None or found[0].session.is_deleted:
        raise NotFoundError(
            f"there is no session {name} to fork; those that there are: "
            f"workspacefs session list {quote(url)}",
            kind="session.absent",
            session=name,
        )
    for live in living_sessions(context.state):
        if (live.session, live.store_url) == (name, workspace.url):
            return _fork_mounted(_address_of(live), args)
    store_url = importlib.import_module("workspacefs.cli.store_urls").absolute_url(
        url, context.environ, options
    )
    forking = importlib.import_module("workspacefs.client.forking")
    answer = forking.fork_unmounted(store_url, name, args, context.state, context.environ)
    return _Parent(name, store_url, answer)


def _moment(at: str | None) -> str:
    return "as it is now" if at is None else f"as it was at checkpoint {at}"


def _address(source: str, context: Context) -> SessionAddress:
    if not os.path.lexists(source):
        for live in living_sessions(context.state):
            if live.session == source:
                return _address_of(live)
        raise NotFoundError(
            f"{source} is neither a path nor a session that is mounted here; one that is not "
            f"mounted is forked with its store: workspacefs fork URL {quote(source)} DIR",
            kind="session.not_mounted",
            session=source,
        )
    return session_of(source, context.state)


def _address_of(live: LiveSession) -> SessionAddress:
    return SessionAddress._make(getattr(live, name) for name in SessionAddress._fields)


def _wanted(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    place = os.path.realpath(options.mountpoint)
    if options.count is None:
        return [place], [options.session or ""]
    if not 1 <= options.count <= _COUNT_MAX:
        raise UsageError(f"--count is from 1 to {_COUNT_MAX}", kind="usage.count")
    numbers = range(1, options.count + 1)
    name = options.session
    return (
        [os.path.join(place, str(number)) for number in numbers],
        [f"{name}-{number}" if name else "" for number in numbers],
    )


def _mount_all(specs: Sequence[Mapping[str, object]], context: Context) -> list[dict[str, object]]:
    """Mount all; when one fails, say which sessions wait to be mounted."""

    def mount(spec: Mapping[str, object]) -> dict[str, object]:
        return mount_session(spec, context.state, context.environ, makes_directory=True)

    if len(specs) == 1:
        return [_telling(specs[0], lambda: mount(specs[0]))]
    # By name: most forks are of one, and would pay for it.
    with importlib.import_module("concurrent.futures").ThreadPoolExecutor(_AT_ONCE) as pool:
        futures = [pool.submit(mount, spec) for spec in specs]
    return [_telling(spec, future.result) for spec, future in zip(specs, futures, strict=True)]


def _telling(
    spec: Mapping[str, object], mounted: Callable[[], dict[str, object]]
) -> dict[str, object]:
    try:
        return mounted()
    except WorkspaceError as exc:
        again = f"workspacefs mount {quote(str(spec['store_url']))} DIR"
        raise type(exc)(
            f"the fork was made and could not be mounted at {spec['mountpoint']}: {exc}. Mount it "
            f"elsewhere: {again} --session {spec['session_name']}",
            kind=exc.kind,
            **exc.context,
        ) from exc
