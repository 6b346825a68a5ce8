"""Entry point: `python -m bench`, from the root of the repository."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from bench import machine, report
from bench.failures import AbsentError, BenchError
from bench.processes import attempt
from bench.runner import Runner, say
from bench.s3.network import Network
from bench.s3.peers import S3_KINDS, without_site
from bench.systems import DEFAULT_SYSTEMS, SYSTEMS, System
from bench.workload import SCALES, Group
from bench.workloads import groups

README: Final = "bench/README.md"
RESULTS: Final = "bench/results/latest.json"
_TOOLS: Final = ("git", "rg", "tar", "find", "du", "cp", "rm", "ls")
_NOT_FINISHED: Final = 130


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; return the exit code: 0, 1 when a workload failed, 2 for misuse."""
    options = _parser().parse_args(arguments)
    network = _network(options)
    chosen = groups(SCALES[options.scale], options.only.split(","), network)
    if options.list:
        for group in chosen:
            for workload in group.workloads:
                print(f"{workload.name:<24} {workload.title}")
        return 0
    try:
        if options.from_json is not None:
            _publish(report.load_json(options.from_json), None, options.table)
            return 0
        if not chosen:
            raise BenchError(f"no workload fits {options.only!r}; --list names them")
        return _run(options, chosen, network, shlex.join(["python", "-m", "bench", *arguments]))
    except BenchError as exc:
        print(f"bench: {exc}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure workspacefs beside ext4 and JuiceFS."
    )
    parser.add_argument(
        "--only", default="*", metavar="GLOB[,GLOB]", help="workloads by name, such as 'git.*'"
    )
    parser.add_argument(
        "--systems",
        default=",".join(dict.fromkeys((*DEFAULT_SYSTEMS, *S3_KINDS))),
        help=f"of {', '.join(dict.fromkeys((*SYSTEMS, *S3_KINDS)))}",
    )
    parser.add_argument("--scale", choices=sorted(SCALES), default="full")
    parser.add_argument("--seed", type=int, default=20260101, help="of all generated content")
    parser.add_argument(
        "--json", type=Path, default=Path(RESULTS), metavar="FILE", help=f"results ({RESULTS})"
    )
    parser.add_argument(
        "--table",
        type=Path,
        nargs="?",
        const=Path(README),
        metavar="FILE",
        help=f"put the table into this Markdown file ({README}); default: standard output",
    )
    parser.add_argument(
        "--from",
        dest="from_json",
        type=Path,
        metavar="FILE",
        help="run nothing: make the table from results of an earlier run",
    )
    parser.add_argument(
        "--dir",
        type=Path,
        default=Path("/var/tmp"),
        help="directory of a local disk to work in (/var/tmp)",
    )
    far = parser.add_argument_group("workloads with a far store (--only s3)")
    default = Network()
    far.add_argument(
        "--s3-delay-ms", type=float, default=default.delay_ms, help="of a request (%(default)g)"
    )
    far.add_argument(
        "--s3-bandwidth-mb",
        type=float,
        default=default.bandwidth_mb,
        help="MB/s of a system's link, each way (%(default)g)",
    )
    far.add_argument(
        "--s3-minutes",
        type=float,
        default=default.row_budget_s / 60,
        help="after which one repetition is given up (%(default)g)",
    )
    far.add_argument(
        "--s3-peer-files",
        type=int,
        default=default.peer_files,
        help="largest generated tree that others than workspacefs get (%(default)d)",
    )
    parser.add_argument("--keep", action="store_true", help="leave files behind, unmounted")
    parser.add_argument("--list", action="store_true", help="name the workloads")
    return parser


def _run(
    options: argparse.Namespace, chosen: Sequence[Group], network: Network, command: str
) -> int:
    systems = _checked_systems(options.systems.split(","), chosen)
    home = Path(tempfile.mkdtemp(prefix="workspacefs-bench-", dir=options.dir)).resolve()
    _interrupt_once()
    say(f"working in {home}")
    scale = SCALES[options.scale]
    runner = Runner(home, scale, systems, network, seed=options.seed, keeps=options.keep)
    facts: dict[str, object] = {"is_complete": False}
    versions: dict[str, str] = {}

    def keep_results() -> None:
        report.save_json(options.json, report.document(facts, versions, runner.results))

    try:
        facts |= {"command": command, "seed": options.seed, "scale": options.scale}
        facts |= machine.describe(home)
        versions |= {name: _system(name, home / name).version() for name in systems}
        for group in chosen:
            runner.run(group, done=keep_results)
        facts["is_complete"] = True
    except KeyboardInterrupt:
        say("interrupted; what was measured is kept")
    finally:
        _ignore_interrupts()
        facts["s3"] = _close(runner)
        _clean_up(home, keeps=options.keep)
    if "kernel" not in facts:
        return _NOT_FINISHED
    _publish(report.document(facts, versions, runner.results), options.json, options.table)
    if not facts["is_complete"]:
        return _NOT_FINISHED
    return int(any(result.problem for result in runner.results))


def _network(options: argparse.Namespace) -> Network:
    default = Network()
    others = [delay for delay in default.other_delays_ms if delay != options.s3_delay_ms]
    return Network(
        delay_ms=options.s3_delay_ms,
        other_delays_ms=tuple(others),
        bandwidth_mb=options.s3_bandwidth_mb,
        row_budget_s=options.s3_minutes * 60,
        prepare_budget_s=max(options.s3_minutes * 60 * 2, default.prepare_budget_s),
        peer_files=options.s3_peer_files,
    )


def _close(runner: Runner) -> dict[str, object]:
    found: dict[str, object] = {}
    problem = attempt(lambda: found.update(runner.close()))
    if problem is not None:
        say(f"the far store: {problem}")
    return found


def _system(name: str, home: Path) -> System:
    return SYSTEMS[name](home) if name in SYSTEMS else S3_KINDS[name](home, without_site)


def _checked_systems(names: Sequence[str], chosen: Sequence[Group]) -> list[str]:
    known = {**SYSTEMS, **S3_KINDS}
    for name in names:
        if name not in known:
            raise BenchError(f"there is no system {name!r}; there are {', '.join(known)}")
    for tool in _TOOLS:
        machine.find_program(tool)
    usable = []
    for name in names:
        if not any(workload.fits(name) for group in chosen for workload in group.workloads):
            continue
        try:
            _system(name, Path("/nonexistent"))
        except AbsentError as exc:
            say(f"{name} is left out: {exc}")
        else:
            usable.append(name)
    return usable


def _clean_up(home: Path, *, keeps: bool) -> None:
    if keeps:
        say(f"left behind: {home}")
        return
    problem = attempt(lambda: machine.remove_tree(home))
    if problem is not None:
        say(f"could not remove {home}: {problem}")


def _publish(found: dict[str, object], json_path: Path | None, table_path: Path | None) -> None:
    if json_path is not None:
        report.save_json(json_path, found)
        say(f"results: {json_path}")
    texts = report.tables(found)
    if table_path is None:
        print("\n".join(texts.values()))
    else:
        report.put_tables(table_path, texts)
        say(f"table: {table_path}")


def _interrupt_once() -> None:
    """Make the first SIGINT or SIGTERM raise KeyboardInterrupt; later ones wait for the end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        _ignore_interrupts()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main(sys.argv[1:]))
