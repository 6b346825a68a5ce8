"""`workspacefs supervisor`: look at the process that starts sessions, or stop it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.context import Context
from workspacefs.client.supervisor import find_supervisor

EXAMPLE = """\
  workspacefs supervisor status
  workspacefs supervisor stop      # mounts go on without it; the next mount starts a new one"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("action", choices=("status", "stop"))


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Ask the supervisor if there is one; none is no error."""
    log_file = context.state.log_file
    connection = find_supervisor(context.state)
    if connection is None:
        context.out.line("no supervisor runs; the next mount starts one")
        return {"is_running": False, "pid": None, "log_file": log_file}
    with connection:
        if options.action == "stop":
            answer = connection.call("stop")
            context.out.line(f"stopped supervisor {answer['pid']}; mounts go on")
            return {"is_running": False, "pid": answer["pid"], "log_file": log_file}
        answer = connection.call("ping")
    context.out.line(f"supervisor {answer['pid']} runs, version {answer['version']}")
    context.out.line(f"log: {log_file}")
    return {"is_running": True, "log_file": log_file, **answer}
