"""`watch` as a process: lines that come at once, an end by Ctrl-C, going on from where it was."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest

from tests.harness import Machine, Mount
from tests.s3_machine import S3Machine
from workspacefs.errors import ExitCode

Row = dict[str, object]


class Watch:
    """A running `watch --json`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def next(self) -> Row:
        """Return the next line, when it comes."""
        row = json.loads(self._output().readline())
        assert isinstance(row, dict)
        return row

    def interrupt(self) -> tuple[int, bytes]:
        """End it as Ctrl-C does; return its exit code and what it said besides."""
        self._process.send_signal(signal.SIGINT)
        rest, errors = self._process.communicate()
        return self._process.returncode, rest + errors

    def _output(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout


@contextmanager
def watching(machine: Machine, *words: str) -> Iterator[Watch]:
    """Run `watch --json`."""
    process = subprocess.Popen(
        machine.command("watch", machine.store, "--json", "--interval", "0.05", *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=machine.environ(),
    )
    try:
        yield Watch(process)
    finally:
        process.kill()
        process.communicate()


def since(machine: Machine, position: object) -> list[Row]:
    """Return all events behind a position."""
    said = machine.run("watch", machine.store, "--json", "--once", "--from", str(position))
    return [json.loads(line) for line in said.splitlines()]


def told(rows: list[Row]) -> list[tuple[object, object]]:
    return [(row["event"], row["name"]) for row in rows]


def work(machine: Machine, name: str, text: str) -> Mount:
    mount = machine.mount(name, session=name)
    (mount.path / "f").write_text(text)
    return mount


def check_watch(machine: Machine) -> None:
    """Landings and a refused one, live; then all of it again from a position."""
    one, two = work(machine, "one", "1\n"), work(machine, "two", "2\n")
    with watching(machine) as watch:
        begin = watch.next()
        assert begin["event"] == "position"
        landed = one.commit("first", "--into", "main", "--agent", "a1")
        live = [watch.next(), watch.next()]
        two.commit("second", "--into", "main", code=ExitCode.MOVED)
        live += [watch.next(), watch.next()]
        code, said = watch.interrupt()

    assert (code, said) == (130, b"")
    assert sorted(told(live[:2])) == [("commit", "one"), ("land", "main")]
    assert sorted(told(live[2:])) == [("commit", "two"), ("conflict", "main")]
    landing = next(row for row in live if row["event"] == "land")
    assert landing["new"] == landed["branch_commit"]
    assert landing["commit"]["agent"] == "a1"  # type: ignore[index]
    refused = next(row["refused"] for row in live if row["event"] == "conflict")
    assert refused["from"] == "two"  # type: ignore[index]
    assert refused["conflicts"] == [{"kind": "add/add", "path": "f"}]  # type: ignore[index]
    again = since(machine, begin["position"])
    assert sorted(told(again)) == sorted(told(live))
    for number, row in enumerate(again):
        assert since(machine, row["position"]) == again[number + 1 :]


def test_watch_of_a_directory(machine: Machine) -> None:
    """Each thing once; positions lead on exactly."""
    check_watch(machine)


def test_watch_of_a_bucket(s3: S3Machine) -> None:
    """As of a directory."""
    check_watch(s3)


def test_watch_outlives_its_connections(s3: S3Machine) -> None:
    """They are cut; what happens afterwards is told."""
    with watching(s3, "--ref", "main") as watch:
        watch.next()
        s3.proxy.down()
        s3.proxy.up()
        work(s3, "one", "1\n").commit("first", "--into", "main")
        assert watch.next()["event"] == "land"


def test_person_reads_lines(machine: Machine) -> None:
    """All that ever happened, and how to go on."""
    work(machine, "one", "1\n").commit("first", "--into", "main")

    done = machine.start("watch", machine.store, "--once", "--from", "start")

    lines = done.stdout.decode().splitlines()
    assert any(" land     branch main (none) -> " in line for line in lines)
    assert any(line.endswith(": first") for line in lines)
    position = done.stderr.decode().partition("--from ")[2].strip()
    assert since(machine, position) == []


@pytest.mark.parametrize("words", [["--from", "x"], ["--interval", "0"]])
def test_nonsense_is_refused(machine: Machine, words: list[str]) -> None:
    """As one document."""
    document = machine.json("watch", machine.store, "--once", *words, code=ExitCode.USAGE)

    assert document["error"]
