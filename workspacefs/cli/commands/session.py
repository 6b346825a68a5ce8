"""`workspacefs session`: which there are, where each comes from, and what becomes of one."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from workspacefs.cli.context import Context, count_text, short_id, size_text
from workspacefs.cli.parser import add_store_flags
from workspacefs.cli.policies import OF_A_SESSION, add_policy_flags, policy_changes, policy_text
from workspacefs.cli.provenance import own_name
from workspacefs.cli.revision import open_place
from workspacefs.cli.session_changes import archive, rename, set_policy, tidy
from workspacefs.cli.stored_sessions import sessions_of
from workspacefs.client.registry import load_sessions
from workspacefs.errors import NotFoundError, UsageError
from workspacefs.workspace.session_deletion import delete_session

EXAMPLE = """\
  workspacefs session list ./store
  workspacefs session tree                     # of the workspace that one is in
  workspacefs session show ./store fix-login
  workspacefs session set ./store fix-login --archive-after 7d --delete-after 90d
  workspacefs session delete ./store fix-login"""

_NAMES: Final = {
    "show": ("NAME",),
    "delete": ("NAME",),
    "set": ("NAME",),
    "archive": ("NAME",),
    "rename": ("NAME", "NEW"),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "action",
        choices=tuple(_ACTIONS),
        help="list all; show one; show which was forked from which (tree); set when one pauses, is "
        "archived or deleted by itself; rename one; archive one: all of it to the store; archive "
        "and delete those whose time has come (tidy); delete one",
    )
    parser.add_argument(
        "words",
        metavar="[URL|PATH] [NAME [NEW]]",
        nargs="*",
        help="store, or something in a mount (default: the working directory); for show, set, "
        "archive, rename and delete, the session",
    )
    parser.add_argument("--all", action="store_true", help="list those that are archived, too")
    parser.add_argument(
        "--force",
        action="store_true",
        help="delete it with work on this machine that is in no commit, and though another machine "
        "has it mounted",
    )
    parser.add_argument("--dry-run", action="store_true", help="tidy: say what would be done")
    parser.add_argument(
        "--drop-checkpoints",
        action="store_true",
        help="archive a session though it has checkpoints, which are lost with this machine's copy",
    )
    add_policy_flags(parser, OF_A_SESSION)
    add_store_flags(parser)


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Do it."""
    where, names = _parts(options.action, options.words)
    if policy_changes(options) and options.action != "set":
        raise UsageError("a policy is changed by session set", kind="usage.policy")
    return _ACTIONS[options.action](where, *names, options, context)


def _parts(action: str, words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    names = _NAMES.get(action, ())
    if not len(names) <= len(words) <= len(names) + 1:
        wanted = " ".join(("[URL|PATH]", *names))
        raise UsageError(f"session {action} takes {wanted}", kind="usage.arguments")
    rest = len(words) - len(names)
    return (words[0] if rest else None), words[rest:]


def _list(where: str | None, options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    found = _rows(where, options, context)
    rows = [row for row in found if options.all or row["state"] != "archived"]
    if not found:
        context.out.line("no sessions yet; workspacefs mount begins one")
    for row in rows:
        context.out.line(f"{row['session']}\n  {_place(row)}; {_head(row)}{_told(row)}")
    if hidden := len(found) - len(rows):
        context.out.note(f"and {hidden:,} archived (--all lists them)")
    return {"sessions": rows}


def _show(
    where: str | None, name: str, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    rows = _rows(where, options, context)
    row = next((row for row in rows if row["session"] == name), None)
    if row is None:
        raise NotFoundError(
            f"there is no session {name}; workspacefs session list names those that there are",
            kind="session.absent",
            session=name,
        )
    lineage = row["lineage"]
    assert isinstance(lineage, list)
    context.out.line(f"session {name}, begun {row['created']} by {row['owner']}")
    context.out.line(f"  {_place(row)}; {_head(row)}{_told(row)}")
    for ancestor in reversed(lineage):
        context.out.line(f"  forked from {ancestor['session'] or 'a session that is gone'}")
    return row


def _tree(where: str | None, options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    rows = _rows(where, options, context)
    here = {str(row["session_id"]): row for row in rows}
    children: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        children.setdefault(_nearest(row, here), []).append(row)
    # A stack, not recursion: agents fork forks of forks.
    stack = [(row, 0) for row in reversed(children.get("", []))]
    while stack:
        row, depth = stack.pop()
        row["depth"] = depth
        context.out.line(f"{'  ' * depth}{row['session']}  ({_place(row)})")
        below = children.get(str(row["session_id"]), [])
        stack += [(child, depth + 1) for child in reversed(below)]
    return {"sessions": rows}


def _delete(
    where: str | None, name: str, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    workspace = open_place(where, None, options, context).workspace
    previous = delete_session(
        workspace, context.state, name, deleted_by=own_name(), is_forced=options.force
    )
    head = previous.commit_id
    context.out.line(f"deleted session {name}; its last commit is {short_id(head and head.hex())}")
    return {"session": name, "head": head.hex() if head is not None else None}


_ACTIONS: Final[Mapping[str, Callable[..., Mapping[str, object]]]] = {
    "list": _list,
    "show": _show,
    "tree": _tree,
    "set": set_policy,
    "archive": archive,
    "rename": rename,
    "tidy": tidy,
    "delete": _delete,
}


def _rows(
    where: str | None, options: argparse.Namespace, context: Context
) -> list[dict[str, object]]:
    place = open_place(where, None, options, context)
    return sessions_of(place.workspace, load_sessions(context.state), context)


def _nearest(row: Mapping[str, object], here: Mapping[str, object]) -> str:
    lineage = row["lineage"]
    assert isinstance(lineage, list)
    return next((one["session_id"] for one in reversed(lineage) if one["session_id"] in here), "")


def _place(row: Mapping[str, object]) -> str:
    if row["state"] == "archived":
        return "archived"
    if row["mountpoint"]:
        return f"mounted at {row['mountpoint']}"
    lease = row["lease"]
    if isinstance(lease, dict):
        return f"mounted on {lease['host']} since {lease['time']}, or was when that ended"
    return "not mounted"


def _head(row: Mapping[str, object]) -> str:
    return (
        f"head {short_id(row['head'])} on {row['branch']}, last moved {row['moved']} by "
        f"{row['moved_by'] or 'someone'}"
    )


def _told(row: Mapping[str, object]) -> str:
    policy = policy_text(row["policy"])
    return _saved(row) + _local(row) + (f"; {policy}" if policy else "")


def _saved(row: Mapping[str, object]) -> str:
    saved, left = row["saved"], row["left"]
    told = ""
    if isinstance(saved, dict):
        told = f"; uncommitted work saved {saved['time']} on {saved['host']}"
    if isinstance(left, dict):
        told += f"; some is on the disk of {left['host']} alone"
    return told


def _local(row: Mapping[str, object]) -> str:
    if row["layers"] is None:
        return ""
    unique = row["unique_bytes"]
    assert isinstance(unique, int)
    layers = row["layers"]
    assert isinstance(layers, int)
    return f"; {size_text(unique)} here of its own, in {count_text(layers, 'layer')}"
