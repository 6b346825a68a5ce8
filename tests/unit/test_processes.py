"""Who a number is: programs that begin others, end, and leave their number to somebody else."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from workspacefs_daemon.processes import ProcessTable

LONG_NS = 10**9


@dataclass
class Program:
    """What /proc says of one process or thread."""

    pid: int
    start_ticks: int
    arguments: tuple[str, ...]
    parent: int = 1
    environ: tuple[str, ...] = ()
    threads: int = 1
    place: int = 1000
    """Where its stack begins; another program has another."""


@dataclass
class Machine:
    """A /proc of our own, and a clock."""

    programs: dict[int, Program] = field(default_factory=dict)
    now_ns: int = LONG_NS

    def table(self) -> ProcessTable:
        return ProcessTable(
            read=self.read, executable=self.executable, monotonic_ns=lambda: self.now_ns
        )

    def run(self, number: int, start_ticks: int, *words: str, **facts: object) -> Program:
        program = Program(number, start_ticks, words, **facts)  # type: ignore[arg-type]
        self.programs[number] = program
        return program

    def read(self, pid: int, name: str, size: int) -> bytes:
        try:
            program = self.programs[pid]
        except KeyError as exc:
            raise ProcessLookupError from exc
        if name == "stat":
            fields = ["0"] * 50
            fields[1], fields[17], fields[19] = (
                str(program.parent), str(program.threads), str(program.start_ticks),
            )  # fmt: skip
            fields[25] = fields[45] = str(program.place)
            text = f"{pid} (a) b) {' '.join(fields)}"
        elif name == "status":
            text = f"Name:\tx\nTgid:\t{program.pid}\n"
        elif name == "cmdline":
            text = "".join(word + "\0" for word in program.arguments)
        else:
            text = "".join(word + "\0" for word in program.environ)
        return text.encode()[:size]

    def executable(self, pid: int) -> bytes:
        return b"/bin/" + self.programs[pid].arguments[0].encode()


def words_of(table: ProcessTable, number: int) -> list[str]:
    return [word.decode() for word in table.find(number).process.arguments]


def test_one_look_serves_many_requests() -> None:
    """Requests one after the other cost no look each, however many they are."""
    machine = Machine()
    machine.run(5, 100, "cp")
    table = machine.table()

    for _ in range(10_000):
        table.find(5)
        machine.now_ns += 100_000

    assert 1 < table.looks < 100


def test_number_that_was_given_anew_is_somebody_else() -> None:
    """Also if the new program looks like the old one in all but when it was started."""
    machine = Machine()
    machine.run(5, 100, "cp", environ=("WORKSPACEFS_TOOL_CALL=a",))
    table = machine.table()
    first = table.find(5)
    machine.run(5, 200, "cp", environ=("WORKSPACEFS_TOOL_CALL=b",))
    machine.now_ns += LONG_NS

    second = table.find(5)

    assert first.id != second.id
    assert (first.process.tool_call, second.process.tool_call) == ("a", "b")


def test_program_that_became_another_is_seen() -> None:
    """execve keeps number and start; what lies in memory is elsewhere."""
    machine = Machine()
    program = machine.run(5, 100, "sh", "-c", "sort > out")
    table = machine.table()
    before = table.find(5)
    program.arguments, program.place = ("sort",), 2000
    machine.now_ns += 1_000_000

    after = table.find_later(5, before)

    assert (before.process.arguments[0], after.process.arguments) == (b"sh", (b"sort",))


def test_program_that_opens_files_for_another_is_known() -> None:
    """Shells, and what was forked and is its parent still; of no other is it looked for."""
    machine = Machine()
    machine.run(2, 10, "python", "x.py")
    machine.run(3, 20, "python", "x.py", parent=2)
    machine.run(4, 20, "python", "y.py", parent=2)
    machine.run(5, 20, "bash", parent=2)
    machine.run(6, 20, "dash", parent=2)
    table = machine.table()

    settled = [number for number in (2, 3, 4, 5, 6, 77) if table.find(number).is_settled]

    assert settled == [2, 4]


def test_writer_that_is_gone_is_who_it_was() -> None:
    """A descriptor outlives its opener: neither nobody nor whoever has the number now is told."""
    machine = Machine()
    machine.run(5, 100, "sh")
    table = machine.table()
    opener = table.find(5)
    machine.now_ns += LONG_NS
    del machine.programs[5]

    gone = table.find_later(5, opener)
    machine.run(5, 300, "other")
    machine.now_ns += LONG_NS
    taken = table.find_later(5, opener)

    assert gone is opener
    assert taken is opener
    assert words_of(table, 5) == ["other"]


def test_thread_is_its_process() -> None:
    """Two threads of one process are one writer, started when the process was."""
    machine = Machine()
    machine.run(5, 100, "tool", threads=2)
    machine.programs[6] = Program(5, 150, ("tool",), threads=2)
    table = machine.table()

    assert table.find(6).id == table.find(5).id
    assert table.find(6).process.pid == 5


def test_parents_are_known() -> None:
    """Up to, and without, the first process; a tool call stands where it was set."""
    machine = Machine()
    machine.run(2, 10, "agent")
    machine.run(3, 20, "make", parent=2, environ=("A=b", "WORKSPACEFS_RUN=r", "C=d"))
    machine.run(4, 30, "cc", parent=3)
    table = machine.table()

    cc = table.find(4).process
    assert cc.parent is not None
    make = table.find_by_id(cc.parent)
    assert make is not None
    assert make.parent is not None
    agent = table.find_by_id(make.parent)

    assert agent is not None
    assert (make.arguments, make.run) == ((b"make",), "r")
    assert (agent.arguments, agent.parent) == ((b"agent",), None)


def test_variable_in_another_value_is_not_taken() -> None:
    """Only one that begins a variable counts."""
    machine = Machine()
    machine.run(5, 1, "a", environ=("X=WORKSPACEFS_RUN=no", "NO_WORKSPACEFS_AGENT=no"))

    process = machine.table().find(5).process

    assert (process.run, process.agent) == ("", "")


def test_process_that_cannot_be_looked_at_is_a_number() -> None:
    """Outside of our numbering, or gone: nothing fails."""
    table = Machine().table()

    assert table.find(0).process.pid == 0
    assert table.find(77).process.pid == 77
    assert table.find(77).process.executable == b""


def test_half_an_argument_is_not_kept() -> None:
    """A command line that is longer than what is read ends with a whole argument."""
    machine = Machine()
    machine.run(5, 1, "a", "b" * 20_000)

    assert words_of(machine.table(), 5) == ["a"]


def test_many_processes_do_not_fill_the_memory() -> None:
    """Old ones are forgotten; who comes again is looked at again."""
    machine = Machine()
    machine.run(5, 1, "kept")
    table = machine.table()
    for number in range(10, 20_000):
        table.find(number)

    assert words_of(table, 5) == ["kept"]
    assert len(table._seen) < 10_000


def test_real_process_is_told() -> None:
    """As the kernel of this machine spells it."""
    process = ProcessTable().find(os.getpid()).process

    assert process.pid == os.getpid()
    assert process.executable == os.readlink("/proc/self/exe").encode()
    assert process.start_ns > 10**18
    assert process.parent is not None
