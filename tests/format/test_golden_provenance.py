"""The note `writers` and `settings.json`, as this release and all later ones must read them."""

from __future__ import annotations

from pathlib import Path

from workspacefs.ids import FileId
from workspacefs.layers.writers import FileWriters, Process, SeenProcess, process_id_of
from workspacefs.workspace.settings import Settings, decode_settings
from workspacefs.workspace.writers import Writers, decode_writers, writers_note

GOLDEN = Path(__file__).parent / "golden"

MAKE = Process(
    40, 1_700_000_000_000_000_000, b"/usr/bin/make", (b"make", b"all"), "call", "run", "a"
)
CC = Process(
    41, 1_700_000_001_000_000_000, b"/usr/bin/cc", (b"cc", b"--token", b"***"), "call", "run", "a",
    process_id_of(MAKE),
)  # fmt: skip
WRITERS = Writers(
    (SeenProcess(MAKE, 0), SeenProcess(CC, 1_700_000_002_000_000_000)),
    {
        FileId(5 << 24): FileWriters(True, (process_id_of(CC),)),
        FileId((5 << 24) + 1): FileWriters(False, (process_id_of(CC), process_id_of(MAKE))),
    },
    left_out=2,
)


def test_writers_are_read_and_written_as_ever() -> None:
    golden = bytes.fromhex((GOLDEN / "writers.hex").read_text())

    assert decode_writers(golden) == WRITERS
    assert writers_note(WRITERS) == golden


def test_settings_are_read_as_ever() -> None:
    golden = (GOLDEN / "settings.json").read_bytes()

    assert decode_settings(golden, url="x") == Settings(("agent", "ticket", "tool_call"))
