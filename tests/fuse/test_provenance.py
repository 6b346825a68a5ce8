"""Which processes wrote what, as a mount sees it by itself, and as commits tell it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from tests.harness import Machine, Mount
from tests.s3_machine import S3Machine

CALL = "WORKSPACEFS_TOOL_CALL"
MAP = """
import mmap, os
fd = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 8192)
shared = mmap.mmap(fd, 8192)
os.close(fd)
shared[:5] = b"bytes"
shared.flush()
"""
THREAD = """
import os, threading
thread = threading.Thread(target=lambda: open("f", "w").close())
thread.start()
thread.join()
print(os.getpid())
"""
MAKEFILE = """
all: out/b
out/a:
\tmkdir -p out
\tcp source out/a
out/b: out/a
\tsort source > out/b
"""


def run(mount: Mount, *words: str, call: str = "", where: str = ".") -> None:
    """Run a program in the mount, as in a call of a tool."""
    environ = {**os.environ, CALL: call} if call else dict(os.environ)
    subprocess.run(words, cwd=mount.path / where, env=environ, check=True)


def shell(mount: Mount, line: str, *, call: str = "") -> None:
    """Run a line of shell in the mount."""
    run(mount, "sh", "-c", line, call=call)


class Told:
    """What `show --files` says of a commit."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self.document = document
        processes, names = document["processes"], document["names"]
        assert isinstance(processes, list)
        assert isinstance(names, list)
        self.processes: list[dict[str, object]] = processes
        self.names: dict[str, dict[str, object]] = {row["path"]: row for row in names}

    def of(self, path: str) -> list[dict[str, object]]:
        """Return the processes that wrote a path."""
        numbers = self.names[path]["writers"]
        assert isinstance(numbers, list)
        return [self.processes[number] for number in numbers]

    def programs(self, path: str) -> set[str]:
        """Return the programs that wrote a path, by the last part of their paths."""
        return {_program(process) for process in self.of(path)}

    def calls(self, path: str) -> set[object]:
        """Return the tool calls in which a path was written."""
        return {process["tool_call"] for process in self.of(path)}

    def above(self, process: Mapping[str, object]) -> Iterable[dict[str, object]]:
        """Yield what started a process, and what started that."""
        while (parent := process["parent"]) is not None:
            assert isinstance(parent, int)
            process = self.processes[parent]
            yield dict(process)


def _program(process: Mapping[str, object]) -> str:
    return os.path.basename(str(process["executable"]))


def told(mount: Mount, rev: str | None = None) -> Told:
    """Commit, and return what the commit tells."""
    if rev is None:
        rev = str(mount.commit()["commit"])
    return Told(mount.machine.json("show", mount.machine.store, rev, "--files"))


def program_of(name: str) -> str:
    """Return what a command is in the end: several names may be one program."""
    found = subprocess.run(
        ["sh", "-c", f"command -v {name}"], capture_output=True, text=True, check=True
    )
    return Path(found.stdout.strip()).resolve().name


def test_writer_is_told_with_arguments_and_tool_call(mount: Mount) -> None:
    """Executable, arguments, process id, start, and the call of a tool that it ran in."""
    child = subprocess.Popen(
        ["cp", "/etc/hostname", "copied"],
        cwd=mount.path, env={**os.environ, CALL: "call-7", "WORKSPACEFS_RUN": "run-3"},
    )  # fmt: skip
    assert child.wait() == 0

    made = told(mount)

    (process,) = made.of("copied")
    assert _program(process) == program_of("cp")
    assert process["arguments"] == ["cp", "/etc/hostname", "copied"]
    assert (process["pid"], process["tool_call"], process["run"]) == (child.pid, "call-7", "run-3")
    assert isinstance(process["start_ns"], int)
    assert isinstance(process["first_ns"], int)
    assert process["start_ns"] <= process["first_ns"] + 20_000_000  # a tick of the kernel's clock
    assert process["first_ns"] == made.document["start_ns"]
    assert next(iter(made.above(process)))["pid"] == os.getpid()


def test_shell_redirection_tells_of_shell_and_program(mount: Mount) -> None:
    """What the shell opened and the program wrote is by one of them; the call is known."""
    shell(mount, "echo builtin > a; /bin/cat /etc/hostname > b; { echo 1; echo 2; } >> c", call="7")

    made = told(mount)

    assert made.programs("a") == {program_of("sh")}
    assert made.programs("b") <= {program_of("sh"), program_of("cat")}
    for path in "abc":
        assert made.calls(path) == {"7"}


def test_program_after_exec_is_the_writer(mount: Mount) -> None:
    """A shell opens the file and then becomes another program: that one is told of too."""
    shell(mount, "exec > out; exec python3 -c 'print(1)'")

    made = told(mount)

    assert "print(1)" in str([process["arguments"] for process in made.of("out")])
    assert len({process["pid"] for process in made.of("out")}) == 1


def test_shared_map_is_by_who_opened_the_file(mount: Mount) -> None:
    """The kernel writes it back when nobody has the file open any more."""
    run(mount, sys.executable, "-c", MAP, call="map")

    made = told(mount)

    assert made.calls("mapped") == {"map"}


def test_thread_is_told_as_its_process(mount: Mount) -> None:
    """What the kernel numbers is a thread; what is told is the process."""
    done = subprocess.run(
        [sys.executable, "-c", THREAD], cwd=mount.path, capture_output=True, text=True, check=True
    )

    made = told(mount)

    assert [process["pid"] for process in made.of("f")] == [int(done.stdout)]


def test_build_is_told_down_to_what_started_it(mount: Mount) -> None:
    """Each output is by the program that made it, which leads up to make, in one tool call."""
    (mount.path / "source").write_text("b\na\n")
    (mount.path / "Makefile").write_text(MAKEFILE)
    mount.commit("sources")
    run(mount, "make", "-s", call="build")

    made = told(mount)

    assert made.programs("out/a") == {program_of("cp")}
    assert made.calls("out/a") == made.calls("out/b") == {"build"}
    (copy,) = made.of("out/a")
    assert "make" in [_program(process) for process in made.above(copy)]


def test_ignored_files_are_told_as_all_others(mount: Mount) -> None:
    """What git does not look at is seen here."""
    run(mount, "git", "init", "-q")
    (mount.path / ".gitignore").write_text("*.log\nnode_modules/\n")
    mount.commit("base")
    shell(mount, "mkdir node_modules; echo x > node_modules/m.js; echo y > debug.log", call="i")

    made = told(mount)

    assert made.calls("node_modules/m.js") == made.calls("debug.log") == {"i"}
    assert set(made.names) == {"node_modules", "node_modules/m.js", "debug.log"}


def test_names_and_attributes_are_changes_by_someone(mount: Mount) -> None:
    """Rename, delete, link, mode: whoever does it is told, and not who wrote it before."""
    shell(
        mount,
        "echo 1 > moved; echo 2 > removed; echo 3 > linked; echo 4 > mode; mkdir d; echo 5 > d/f",
    )
    mount.commit("base")
    for number, line in enumerate(
        ("mv moved elsewhere", "rm removed", "ln linked second", "chmod 600 mode", "rm -r d")
    ):
        shell(mount, line, call=f"c{number}")

    made = told(mount)

    assert made.names["elsewhere"]["from"] == "moved"
    told_of = {path: made.calls(path) for path in made.names}
    assert told_of["elsewhere"] == {"c0"}
    assert told_of["removed"] == {"c1"}
    assert told_of["second"] == {"c2"}
    assert told_of["mode"] == {"c3"}
    assert told_of["d"] == told_of["d/f"] == {"c4"}


def test_second_commit_tells_only_of_what_came_since(mount: Mount) -> None:
    """Also of a file that a program holds open across the commit."""
    holder = subprocess.Popen(
        ["sh", "-c", "exec 3> held; echo 1 >&3; echo; read line; echo 2 >&3; echo; read line"],
        cwd=mount.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, CALL: "h"},
    )  # fmt: skip
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdout.readline()
    shell(mount, "echo 1 > other", call="before")
    mount.commit("first")
    holder.stdin.write(b"\n")
    holder.stdin.flush()
    holder.stdout.readline()
    shell(mount, "echo 2 >> other", call="after")

    made = told(mount)
    holder.communicate(b"\n")

    assert made.calls("held") == {"h"}
    assert made.calls("other") == {"after"}
    assert all(process["tool_call"] != "before" for process in made.processes)


def test_files_that_came_and_went_are_not_kept(mount: Mount) -> None:
    """Who wrote them is of no use to anybody; also when a layer was frozen in between."""
    shell(mount, "echo 1 > early; echo 1 > kept", call="early")
    mount.machine.json("checkpoint", mount.path, "--name", "cp")
    shell(mount, "rm early; echo > late; rm late; mkdir dir; rmdir dir", call="late")

    made = told(mount)

    assert set(made.names) == {"kept"}
    assert {process["tool_call"] for process in made.processes if process["first_ns"]} == {"early"}


def test_file_without_a_name_is_nobodys(mount: Mount) -> None:
    """As programs use them for what is temporary: made, unlinked, written."""
    shell(mount, "echo 1 > kept", call="kept")
    shell(mount, "exec 3> temporary; rm temporary; echo 1 >&3", call="temporary")

    made = told(mount)

    assert {process["tool_call"] for process in made.processes if process["first_ns"]} == {"kept"}


def test_secrets_in_arguments_are_not_kept(machine: Machine, mount: Mount) -> None:
    """Neither in what is told nor in anything on the disk."""
    secret = "Zq81kQp0Vb3TnR7y"
    run(mount, "sh", "-c", "echo > f", "sh", "--password", secret)

    made = told(mount)
    mount.umount()

    assert "***" in str(made.of("f")[0]["arguments"])
    everything = [*machine.state_dir.rglob("*"), *machine.store.rglob("*")]
    kept = [path for path in everything if path.is_file() and secret.encode() in path.read_bytes()]
    assert kept == []


@pytest.mark.parametrize("freezes", [False, True])
def test_killed_session_still_knows_its_writers(mount: Mount, freezes: bool) -> None:
    """They survive as the changes do."""
    shell(mount, "echo 1 > f; mkdir d; mv f d/f", call="before")
    if freezes:
        mount.machine.json("checkpoint", mount.path, "--name", "cp")
    mount.kill()
    again = mount.again()
    shell(again, "echo 2 > g; echo 2 >> d/f", call="after")

    made = told(again)

    assert made.calls("d") == {"before"}
    assert made.calls("d/f") == {"before", "after"}
    assert made.calls("g") == {"after"}


def test_fork_tells_of_what_its_parent_had_not_committed(machine: Machine, mount: Mount) -> None:
    """Both do; and neither of what the other did afterwards."""
    shell(mount, "echo 1 > shared", call="parent")
    fork = machine.fork(mount, "forked")
    shell(fork, "echo 2 >> shared; echo 2 > own", call="child")
    shell(mount, "echo 3 > own", call="later")

    of_fork, of_parent = told(fork), told(mount)

    assert of_fork.calls("shared") == {"parent", "child"}
    assert of_fork.calls("own") == {"child"}
    assert of_parent.calls("shared") == {"parent"}
    assert of_parent.calls("own") == {"later"}


def test_resumed_work_tells_of_the_first_machine(
    machine: Machine, other: Machine, mount: Mount
) -> None:
    """Writers travel with saved work; what was removed is known too."""
    shell(mount, "echo 1 > removed; echo 1 > changed")
    mount.commit("base", "--into", "main")
    shell(mount, "rm removed; echo 2 >> changed; echo 2 > new", call="first")
    machine.run("pause", mount.path)
    resumed = other.resume()
    shell(resumed, "echo 3 >> changed", call="second")

    made = told(resumed)

    assert made.calls("removed") == made.calls("new") == {"first"}
    assert made.calls("changed") == {"first", "second"}
    starts = [process["first_ns"] for process in made.processes if process["tool_call"] == "first"]
    assert made.document["start_ns"] == min(start for start in starts if isinstance(start, int))


def test_restore_takes_writers_back_with_what_they_wrote(machine: Machine, mount: Mount) -> None:
    """Of a state that is gone back to those of that state are told."""
    shell(mount, "echo 1 > f", call="kept")
    machine.json("checkpoint", mount.path, "--name", "cp")
    shell(mount, "echo 2 >> f; echo 2 > g", call="dropped")
    machine.json("restore", mount.path, "cp")

    made = told(mount)

    assert set(made.names) == {"f"}
    assert made.calls("f") == {"kept"}


def test_restored_file_that_is_open_keeps_its_writers(machine: Machine, mount: Mount) -> None:
    """It gets another file id, as whoever has it open keeps the one it had."""
    shell(mount, "echo 1 > f", call="kept")
    machine.json("checkpoint", mount.path, "--name", "cp")
    shell(mount, "echo 2 >> f", call="dropped")
    with (mount.path / "f").open() as held:
        machine.json("restore", mount.path, "cp")
        assert held.read() == "1\n2\n"

        made = told(mount)

    assert made.calls("f") == {"kept"}


def test_mount_without_provenance_tells_of_nobody(machine: Machine) -> None:
    """A commit is as it was before there was any of this."""
    mount = machine.mount(provenance="off")
    shell(mount, "echo 1 > f; echo 2 >> f")

    made = told(mount)

    assert made.processes == []
    assert made.of("f") == []
    assert made.document["start_ns"] is None


def test_log_shows_files_and_writers_as_text(machine: Machine, mount: Mount) -> None:
    """Kind and path, then a line for each writer: process id, command, tool call."""
    shell(mount, "echo 1 > f", call="c1")
    mount.commit("first")

    text = machine.run("log", mount.path, "--files")

    lines = text.splitlines()
    at = lines.index("  A f")
    assert "sh -c 'echo 1 > f'" in lines[at + 1]
    assert lines[at + 1].endswith("call c1")
    assert any(line.startswith("began    ") for line in lines)
    assert "  A f" not in machine.run("log", mount.path)


def test_writers_and_required_keys_in_a_bucket(s3: S3Machine) -> None:
    """As in a directory: who wrote is in the commit, and what is demanded is."""
    mount = s3.mount()
    subprocess.run(["sh", "-c", "echo x > f"], cwd=mount.path, check=True)
    s3.run("config", s3.store, "--require", "agent")

    refused = mount.commit("w", code=8)
    mount.commit("w", "--agent", "a", "--into", "main")

    assert refused["error"]["kind"] == "commit.required"  # type: ignore[index]
    (row,) = s3.json("log", s3.store, "--files")["commits"]  # type: ignore[misc]
    assert ["sh", "-c", "echo x > f"] in [one["arguments"] for one in row["processes"]]
