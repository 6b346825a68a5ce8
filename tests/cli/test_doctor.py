"""doctor: each check says what it found and what to do, and the trial leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

from tests.harness import Machine
from workspacefs.cli.checks import (
    Level,
    check_device,
    check_kernel,
    check_modules,
    check_space,
    check_state_dir,
)
from workspacefs.cli.trial import try_mount
from workspacefs.errors import ExitCode
from workspacefs.statedir import StateDir


def test_absent_device_says_how_to_get_it(tmp_path: Path) -> None:
    """With modprobe on a machine, with flags in a container."""
    finding = check_device(str(tmp_path / "fuse"))

    assert finding.level is Level.FAIL
    assert "modprobe fuse" in finding.advice
    assert "--device /dev/fuse --cap-add SYS_ADMIN" in finding.advice


def test_file_in_place_of_the_device_is_told(tmp_path: Path) -> None:
    """As left by a wrong bind mount."""
    (tmp_path / "fuse").write_text("")

    assert check_device(str(tmp_path / "fuse")).level is Level.FAIL


def test_library_that_does_not_load_is_named() -> None:
    """With the reason, and what to install."""

    def load(name: str) -> object:
        if name == "pyfuse3":
            raise ImportError("libfuse3.so.3: cannot open shared object file")
        return object()

    finding = check_modules(load)

    assert finding.level is Level.FAIL
    assert "pyfuse3 (libfuse3.so.3" in finding.found
    assert "fuse3" in finding.advice


def test_old_kernel_is_a_warning() -> None:
    """It may work; we have not tried."""
    assert check_kernel("4.19.0-generic").level is Level.WARN
    assert check_kernel("6.1.0").level is Level.OK


def test_state_directory_is_looked_at(tmp_path: Path) -> None:
    """Absent is fine, open to others is told."""
    assert check_state_dir(StateDir(str(tmp_path / "absent"))).level is Level.OK
    tmp_path.chmod(0o755)
    assert check_state_dir(StateDir(str(tmp_path))).level is Level.WARN
    assert check_space(StateDir(str(tmp_path / "a" / "b"))).found


def test_trial_works_and_leaves_nothing(machine: Machine) -> None:
    """A whole round on this machine, then no mount and no directory of it."""
    document = machine.json("doctor")

    assert document["ok"] is True
    checks = {row["name"]: row["level"] for row in document["checks"]}  # type: ignore[attr-defined]
    assert checks["trial mount"] == "ok"
    assert "workspacefs-doctor" not in Path("/proc/self/mountinfo").read_text()


def test_trial_that_fails_says_at_which_step() -> None:
    """A step is not begun when the time is over."""
    finding = try_mount(dict(os.environ), timeout_s=0.0)

    assert finding.level is Level.FAIL
    assert finding.found == "no time was left for init, of 0 s"


def test_finding_decides_the_exit_code(machine: Machine, tmp_path: Path) -> None:
    """A state directory that cannot be used: exit code 1."""
    (tmp_path / "file").write_text("")

    document = machine.json(
        *("doctor", "--no-mount", "--state-dir", tmp_path / "file" / "state"),
        code=ExitCode.FAILED,
    )

    assert document["ok"] is False
