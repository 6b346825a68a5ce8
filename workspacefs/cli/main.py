"""Entry point of the command line: which command, its arguments, its result or its error.

Start-up is what a person and an agent wait for at every command: only the module of the command
that was given is loaded (the one place of this package that imports by name), and nothing that
runs before it may import dataclasses, logging, pathlib or subprocess.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from workspacefs import __version__
from workspacefs.cli.context import Context, Output
from workspacefs.cli.parser import CommandParser, new_parser
from workspacefs.config import load_state_dir
from workspacefs.errors import ExitCode, UsageError, WorkspaceError
from workspacefs.protocol.failures import error_document


class Options(Protocol):
    """The parsed arguments of a command."""

    json: bool
    state_dir: str | None


class Command(NamedTuple):
    """A command before it is loaded."""

    module: str
    summary: str


COMMANDS: Final[Mapping[str, Command]] = {
    "init": Command("init", "make a new, empty workspace"),
    "config": Command("config", "see or change what commits of a workspace must say"),
    "import": Command("import_tree", "make a directory tree the next commit of a branch"),
    "mount": Command("mount", "mount a session of a workspace; resumes it if it exists"),
    "fork": Command("fork", "begin sessions that stand where another one stands now"),
    "checkpoint": Command("checkpoint", "name this moment of a session, to go back to it"),
    "restore": Command("restore", "have a mount show an earlier state; what it showed is kept"),
    "undo": Command("undo", "take back a restore, or a move of a branch or session"),
    "oplog": Command("oplog", "list what moved branches and sessions, and restores"),
    "watch": Command("watch", "tell what happens to branches and sessions, as it happens"),
    "pause": Command("pause", "store a session's work, unmount it, and leave nothing here"),
    "resume": Command("resume", "go on with a session, on this machine or another"),
    "status": Command("status", "list what a session changed since its base commit"),
    "diff": Command("diff", "show what a session changed, as a patch"),
    "commit": Command("commit", "make a session's changes a commit"),
    "merge": Command("merge", "land a session's commits on a branch, or bring others' into it"),
    "update": Command("update", "bring what landed on a session's branch into the session"),
    "conflicts": Command("conflicts", "list what two sides did that is left to be settled"),
    "resolve": Command("resolve", "settle a conflict: by one side, by both, or as it stands"),
    "revert": Command("revert", "take back what some commits changed, and keep the rest"),
    "branch": Command("branch", "list, create, delete and rename branches"),
    "tag": Command("tag", "list, create and delete tags: names of commits that never move"),
    "propose": Command("propose", "have a session's commits wait for a reviewer to land them"),
    "review": Command("review", "list proposals, or show what one would land"),
    "accept": Command("accept", "land a proposal on its branch, or some paths of it"),
    "reject": Command("reject", "decide that a proposal does not land"),
    "log": Command("log", "list commits: who, when, why"),
    "show": Command("show", "show one commit and what it changed"),
    "blame": Command("blame", "tell for each line of a file which commit wrote it"),
    "ls": Command("ls", "list a directory of a revision, without a mount"),
    "cat": Command("cat", "print a file of a revision, without a mount"),
    "export": Command("export", "write a revision to a directory or a tar stream"),
    "key": Command("key", "the key that commits are signed with, and whose signatures count"),
    "verify": Command("verify", "check the history of a revision: ids, parents, signatures"),
    "umount": Command("umount", "take a mount away; nothing that was written is lost"),
    "sessions": Command("sessions", "list the sessions of a workspace and where they are mounted"),
    "session": Command("session", "list, show and delete sessions, and which came from which"),
    "prefetch": Command("prefetch", "fetch files of a mount before they are asked for"),
    "cache": Command("cache", "look at or clear the cache of far stores"),
    "stats": Command("stats", "figures of a mount: requests, bytes, waits"),
    "credentials": Command("credentials", "give a mount the keys of this environment"),
    "supervisor": Command("supervisor", "look at or stop the process that starts sessions"),
    "doctor": Command("doctor", "say what this machine lacks, and how to get it"),
}

_INTERRUPTED: Final = 130
"""128 + SIGINT, as shells have it."""
_PIPE_CLOSED: Final = 141
"""128 + SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command with this process's environment; return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if region := os.environ.get("AWS_REGION"):
        # boto3 1.44, in this process, looks at the other one only.
        os.environ.setdefault("AWS_DEFAULT_REGION", region)
    # Names in a workspace are any bytes; what is no UTF-8 leaves as it came.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="surrogateescape")
    try:
        code = _run(arguments, os.environ)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has enough; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return _INTERRUPTED
    return code


def _run(arguments: list[str], environ: Mapping[str, str]) -> int:
    out = Output(as_json=_wants_json(arguments))
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            return _help(arguments[1:], out)
        if arguments[0] in ("-V", "--version"):
            sys.stdout.write(f"workspacefs {__version__}\n")
            return int(ExitCode.OK)
        configured, run = _load(arguments[0])
        options = configured.parse_args(arguments[1:])
        out.as_json = options.json
        context = Context(load_state_dir(environ, options.state_dir), environ, out)
        document = run(options, context)
    except WorkspaceError as exc:
        return _report(exc, out)
    except SystemExit as exc:  # --help has been printed
        return exc.code if isinstance(exc.code, int) else int(ExitCode.USAGE)
    members = {name: value for name, value in document.items() if name != EXIT_MEMBER}
    if out.as_json and members:  # none: the command has told all as rows
        out.document(members)
    code = document.get(EXIT_MEMBER, int(ExitCode.OK))
    assert isinstance(code, int)
    return code


EXIT_MEMBER: Final = "exit_code"
"""A command whose result is no error but not success either says so in this member."""


def _load(
    name: str,
) -> tuple[CommandParser, Callable[[object, Context], Mapping[str, object]]]:
    command = COMMANDS.get(name)
    if command is None:
        raise _unknown(name)
    module = importlib.import_module(f"workspacefs.cli.commands.{command.module}")
    summary = command.summary[0].upper() + command.summary[1:] + "."
    parser = new_parser(name, summary, module.EXAMPLE)
    module.configure(parser)
    return parser, module.run


def _unknown(name: str) -> UsageError:
    near = importlib.import_module("difflib").get_close_matches(name, COMMANDS, 1)
    hint = f"did you mean {near[0]}?" if near else "see: workspacefs --help"
    return UsageError(f"there is no command {name}; {hint}", kind="usage.command")


def _help(words: Sequence[str], out: Output) -> int:
    if words and not words[0].startswith("-"):
        _load(words[0])[0].print_help()
        return int(ExitCode.OK)
    out.as_json = False
    out.line("usage: workspacefs COMMAND ...   (or: wsfs COMMAND ...)\n")
    out.line("A durable, versioned workspace that any sandbox can mount.\n")
    for name, command in COMMANDS.items():
        out.line(f"  {name:<11} {command.summary}")
    out.line("\nworkspacefs COMMAND --help says more, with an example. A first round:\n")
    out.line("  workspacefs init ./store && workspacefs import ./store DIR -m 'first'")
    out.line("  mkdir -p /tmp/w && workspacefs mount ./store /tmp/w && cd /tmp/w")
    return int(ExitCode.OK if words or sys.argv[1:] else ExitCode.USAGE)


def _report(exc: WorkspaceError, out: Output) -> int:
    if out.as_json:
        out.document({"error": error_document(exc)})
    else:
        sys.stdout.flush()
        sys.stderr.write(f"workspacefs: {exc}\n")
    return int(exc.exit_code)


def _wants_json(arguments: Sequence[str]) -> bool:
    # Before the arguments are understood, so that not understanding them is told as JSON too.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in own


if __name__ == "__main__":
    sys.exit(main())
