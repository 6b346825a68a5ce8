"""What `branch` and `tag` have in common: their words, and how a branch or tag is listed."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from workspacefs.cli.commit_text import commit_document, time_text
from workspacefs.cli.context import Context, short_id
from workspacefs.cli.provenance import own_name
from workspacefs.cli.revision import is_store, open_place
from workspacefs.errors import UsageError
from workspacefs.refs import RefKind, RefRecord
from workspacefs.workspace.branches import create_ref, delete_ref, list_refs


class Request(NamedTuple):
    """What was asked for, and of which store."""

    action: str
    where: str | None
    names: tuple[str, ...]


def parse_words(
    words: Sequence[str], wanted: Mapping[str, tuple[str, ...]], *, command: str
) -> Request:
    """Return what the words of a command ask for; without an action that is list.

    Args:
        words: [ACTION] [URL|PATH] [NAME …].
        wanted: Action → names of its arguments; those in brackets may be left out.
        command: For messages.

    Raises:
        UsageError: They are too few, or too many.
    """
    action, rest = ("list", list(words))
    if words and words[0] in wanted:
        action, rest = words[0], list(words[1:])
    names = wanted[action]
    least = sum(not name.startswith("[") for name in names)
    has_store = len(rest) > len(names) or (len(rest) > least and is_store(rest[0]))
    where = rest.pop(0) if has_store else None
    if action == "list" and where is not None and not is_store(where):
        raise UsageError(
            f"{where} is no store; a {command} is made by: workspacefs {command} create {where}",
            kind="usage.words",
        )
    if not least <= len(rest) <= len(names):
        usage = " ".join((command, action, "[URL|PATH]", *names))
        raise UsageError(f"it is: {usage}; see: workspacefs {command} --help", kind="usage.words")
    return Request(action, where, tuple(rest))


def list_all(
    request: Request, kind: RefKind, options: argparse.Namespace, context: Context
) -> list[dict[str, object]]:
    """List all branches, or all tags; return their rows."""
    workspace = open_place(request.where, None, options, context).workspace
    found = list_refs(workspace, kind)
    names = [name for name, _ in found]
    width = max(map(len, names), default=0)
    rows = []
    for name, record in found:
        row = row_of(kind, name, record)
        rows.append(row)
        message = str(row["message"]).partition("\n")[0]
        context.out.line(
            f"{name:<{width}}  {short_id(row['commit'])}  {row['moved']}  "
            f"{row['moved_by'] or 'someone'}  {message}"
        )
    return rows


def create(
    request: Request, kind: RefKind, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    """Make one, where a revision is."""
    name, *rev = request.names
    place = open_place(request.where, rev[0] if rev else None, options, context)
    target, _ = place.load()
    made = create_ref(place.workspace, kind, name, target, created_by=own_name())
    word = "is at" if kind is RefKind.BRANCH else "names"
    already = "" if made.is_new else " already"
    context.out.line(f"{kind.value} {name} {word} {short_id(target.id.hex())}{already}")
    if made.is_session:
        context.out.note(
            f"there is a session {name}, too; as a revision, {name} means the {kind.value} from "
            "now on"
        )
    return {"url": place.workspace.url, **row_of(kind, name, made.record), "is_new": made.is_new}


def delete(
    request: Request, kind: RefKind, options: argparse.Namespace, context: Context
) -> Mapping[str, object]:
    """Delete one."""
    (name,) = request.names
    workspace = open_place(request.where, None, options, context).workspace
    was = delete_ref(workspace, kind, name, deleted_by=own_name(), is_forced=options.force)
    row = row_of(kind, name, was)
    context.out.line(f"deleted {kind.value} {name}, which was at {short_id(row['commit'])}")
    context.out.note("workspacefs oplog names this operation; undo --op ID takes it back")
    return {"url": workspace.url, **row}


def row_of(kind: RefKind, name: str, record: RefRecord) -> dict[str, object]:
    """Return what --json says of a branch or tag that has a commit."""
    ref = record.ref()
    assert ref is not None
    return {
        kind.value: name,
        "moved": time_text(record.moved_at_ns),
        "moved_ns": record.moved_at_ns,
        "moved_by": record.moved_by,
        **commit_document(ref, record.commit()),
    }


def reject_force(request: Request, options: argparse.Namespace, actions: Collection[str]) -> None:
    """Raise UsageError if --force is given where nothing can be forced."""
    if options.force and request.action not in actions:
        raise UsageError(f"--force is for {' and '.join(actions)}", kind="usage.arguments")
