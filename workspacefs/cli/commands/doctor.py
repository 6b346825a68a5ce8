"""`workspacefs doctor`: what this machine lacks, in plain words, and how to get it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from workspacefs.cli.checks import Finding, Level, iter_findings
from workspacefs.cli.context import Context
from workspacefs.cli.trial import try_mount
from workspacefs.errors import ExitCode

EXAMPLE = """\
  workspacefs doctor
  workspacefs doctor --no-mount --json"""

_MARKS = {Level.OK: "ok  ", Level.WARN: "warn", Level.FAIL: "FAIL"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--no-mount", action="store_true", help="only look; do not try a mount in /tmp"
    )


def run(options: argparse.Namespace, context: Context) -> Mapping[str, object]:
    """Look at everything; exit code 1 when a mount cannot work."""
    findings: list[Finding] = []

    def take(finding: Finding) -> None:
        findings.append(finding)
        context.out.line(f"{_MARKS[finding.level]}  {finding.name:<12} {finding.found}")
        if finding.advice:
            context.out.line(f"      {'':<12} -> {finding.advice}")

    for finding in iter_findings(context.state):
        take(finding)
    if not options.no_mount:
        take(try_mount(context.environ))
    has_failed = any(finding.level is Level.FAIL for finding in findings)
    context.out.line()
    context.out.line("something is missing, see FAIL above" if has_failed else "all is well")
    return {
        "ok": not has_failed,
        "checks": [
            {
                "name": finding.name,
                "level": finding.level.value,
                "found": finding.found,
                "advice": finding.advice,
            }
            for finding in findings
        ],
        "exit_code": int(ExitCode.FAILED if has_failed else ExitCode.OK),
    }
