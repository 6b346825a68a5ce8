"""The mounted sessions that a supervisor answers for: noticing that one died, mounting it again.

Used by the supervisor's one thread; never blocks. Whether a session was given up on purpose is not
asked of its process, which is dead, but of the run directory: see docs/design/0006.
This module must not know who asks the supervisor for what.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote

from workspacefs.client.mountinfo import find_mount
from workspacefs.client.registry import (
    find_given_up,
    find_session,
    give_up_session,
)
from workspacefs.errors import RefusedError, UnavailableError, WorkspaceError
from workspacefs.statedir import StateDir
from workspacefs_daemon.births import Answer, Birth
from workspacefs_daemon.restarts import DEATHS_MAX, DEATHS_WITHIN_S, RestartPolicy
from workspacefs_daemon.spec import SessionSpec, spec_of_mounted
from workspacefs_daemon.zygote import StartedSession

log = logging.getLogger(__name__)

_ON_PURPOSE: Final = (0, -signal.SIGTERM, -signal.SIGINT)

Tell = Callable[[Answer], None]


class _Charge:
    """A session that was mounted, and how to mount it again."""

    def __init__(
        self, spec: SessionSpec, session: str, session_id: str, pid: int, policy: RestartPolicy
    ) -> None:
        self.spec = spec
        self.session = session
        self.session_id = session_id
        self.pid = pid
        self.policy = policy
        self.pidfd: int | None = None
        """Of a process that is not our child."""


class _Restart:
    """A process that is to bring a charge back, and who wants to know what comes of it."""

    def __init__(self, charge: _Charge, birth: Birth) -> None:
        self.charge = charge
        self.birth = birth
        self.answer: Answer | None = None
        self.askers: list[Tell] = []
        self.releasers: list[Tell] = []
        """They want it gone, and hear when its process has ended."""


class Charges:
    """Finds out which of its sessions died, and has them mounted again."""

    def __init__(
        self,
        state: StateDir,
        *,
        fork: Callable[[SessionSpec], StartedSession],
        watch: Callable[[int, Callable[[], None]], None],
        unwatch: Callable[[int], object],
        now_s: Callable[[], float] = time.monotonic,
        is_mounted: Callable[[str], bool] | None = None,
    ) -> None:
        """Begin with none.

        Args:
            state: Where sessions are registered.
            fork: Forks a process that mounts.
            watch: Has something called whenever a file can be read.
            unwatch: Ends that.
            now_s: A clock that never goes back.
            is_mounted: Whether a FUSE mount is at a place, dead or alive.
        """
        self._state = state
        self._fork = fork
        self._watch = watch
        self._unwatch = unwatch
        self._now_s = now_s
        self._is_mounted = is_mounted or _is_fuse_mount
        self._living: dict[str, _Charge] = {}
        self._waiting: list[tuple[float, _Charge]] = []
        self._restarts: dict[int, _Restart] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a session is on its way back."""
        return bool(self._waiting or self._restarts)

    # -- what is mounted -----------------------------------------------------------------------

    def take(
        self,
        spec: SessionSpec,
        mounted: Mapping[str, object],
        pid: int,
        policy: RestartPolicy | None = None,
    ) -> None:
        """Answer for what a child of ours mounted.

        Args:
            spec: What it was asked for.
            mounted: What it said when its mount answered.
            pid: The child.
            policy: What is known of earlier deaths.
        """
        session, base = str(mounted["session"]), mounted.get("base")
        again = spec_of_mounted(
            spec, session=session, base_hex=base if isinstance(base, str) else None
        )
        session_id = str(mounted["session_id"])
        self._living[session_id] = _Charge(
            again, session, session_id, pid, policy or RestartPolicy()
        )

    def adopt(self, spec: SessionSpec, session_id: str, pid: int) -> None:
        """Answer for a session that says itself what it has mounted. Idempotent.

        Args:
            spec: How to mount it again.
            session_id: Under which it is registered.
            pid: Of the process that says so.

        Raises:
            RefusedError: It is not registered, or under another process.
        """
        known = self._living.get(session_id)
        if known is not None and known.pid == pid:
            known.spec = spec
            return
        registered = find_session(self._state, session_id)
        if registered is None or registered.pid != pid:
            raise RefusedError(
                f"process {pid} cannot speak for session {session_id}: it is not the one that is "
                "registered here",
                kind="adopt.foreign",
            )
        charge = _Charge(spec, registered.session, session_id, pid, RestartPolicy())
        self._living[session_id] = charge
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._died(charge, None)  # since it asked
            return
        charge.pidfd = pidfd
        self._watch(pidfd, lambda: self._died(charge, None))

    def ended(self, pid: int, exit_status: int) -> None:
        """Take note that a child of ours has ended."""
        restart = self._restarts.get(pid)
        if restart is not None:
            # What it said before is heard first. It was the only writer: this does not block.
            while restart.answer is None:
                self._hear(restart)
            self._restarts.pop(pid, None)
            error = restart.answer if isinstance(restart.answer, WorkspaceError) else None
            if error is not None and exit_status not in _ON_PURPOSE and not restart.releasers:
                self._not_mounted(restart.charge, error)
            for tell in restart.releasers:
                tell(_told_of(restart.charge))
        for charge in list(self._living.values()):
            if charge.pid == pid and charge.pidfd is None:
                self._died(charge, exit_status)

    # -- bringing back -------------------------------------------------------------------------

    def wait_s(self, longest_s: float) -> float:
        """Return how long to wait until `run_due` has something to do, at most `longest_s`."""
        now_s = self._now_s()
        return min([longest_s, *(max(0.0, due_s - now_s) for due_s, _ in self._waiting)])

    def run_due(self) -> None:
        """Start what is due."""
        now_s = self._now_s()
        due = [charge for due_s, charge in self._waiting if due_s <= now_s]
        self._waiting = [one for one in self._waiting if one[0] > now_s]
        for charge in due:
            if find_given_up(self._state, charge.session_id) is None:
                self._restart(charge)

    def join(self, spec: SessionSpec, tell: Tell) -> bool:
        """Let somebody who asks for a mount have the one that is coming back, if it is that one."""
        for restart in self._restarts.values():
            again = restart.charge.spec
            is_same = (
                again.mountpoint == spec.mountpoint
                and spec.session_name in (None, again.session_name)
                and spec.read_only == again.read_only
                and _is_same_store(again, spec)
            )
            if is_same and restart.answer is None and not restart.releasers:
                restart.askers.append(tell)
                return True
        return False

    def make_way(self, spec: SessionSpec) -> None:
        """Leave it to somebody who asks for a mount: what waits to come back at that place, or in
        that session, does not.
        """

        def is_in_the_way(again: SessionSpec) -> bool:
            is_session = spec.session_name is not None and again.session_name == spec.session_name
            is_place = again.mountpoint == spec.mountpoint
            return is_place or (is_session and _is_same_store(again, spec))

        self._waiting = [one for one in self._waiting if not is_in_the_way(one[1].spec)]

    def release(self, mountpoint: str, tell: Tell) -> None:
        """Bring back no dead session at `mountpoint`, and end what is bringing one back there.

        `tell` hears which one that was, once its process has ended. Nothing is done to a session
        that lives.
        """
        found = [one for _, one in self._waiting if one.spec.mountpoint == mountpoint]
        self._waiting = [one for one in self._waiting if one[1] not in found]
        for charge in list(self._living.values()):
            if charge.spec.mountpoint == mountpoint and not self._is_alive(charge):
                self._forget(charge)  # we have not seen yet that it ended
                found.append(charge)
        for restart in self._restarts.values():
            if restart.charge.spec.mountpoint == mountpoint:
                # It is not reaped yet, so the number is still its own.
                os.kill(restart.birth.pid, signal.SIGKILL)
                restart.releasers.append(tell)
                return
        tell(_told_of(found[0] if found else None))

    def stop(self) -> None:
        """Bring nothing back any more; what is under way finishes without us."""
        for _, charge in self._waiting:
            self._give_up(charge, "the supervisor stopped before it could be mounted again")
        self._waiting = []

    def close_files(self) -> None:
        """Close, in a forked process, what belongs to the supervisor alone."""
        for charge in self._living.values():
            if charge.pidfd is not None:
                os.close(charge.pidfd)
        for restart in self._restarts.values():
            restart.birth.close()

    def _died(self, charge: _Charge, exit_status: int | None) -> None:
        self._forget(charge)
        if self._is_wanted(charge, exit_status):
            self._note_death(charge)

    def _forget(self, charge: _Charge) -> None:
        if self._living.get(charge.session_id) is charge:
            del self._living[charge.session_id]
        if charge.pidfd is not None:
            self._unwatch(charge.pidfd)
            os.close(charge.pidfd)
            charge.pidfd = None

    def _is_alive(self, charge: _Charge) -> bool:
        registered = find_session(self._state, charge.session_id)
        return registered is not None and registered.pid == charge.pid and registered.is_alive()

    def _is_wanted(self, charge: _Charge, exit_status: int | None) -> bool:
        """Tell whether a session ended without anybody having wanted that."""
        if exit_status in _ON_PURPOSE:
            return False
        registered = find_session(self._state, charge.session_id)
        if registered is None or registered.pid != charge.pid:
            return False  # it ended cleanly, or somebody has cleared it away or mounted it anew
        if find_given_up(self._state, charge.session_id) is not None:
            return False
        return self._is_mounted(charge.spec.mountpoint)

    def _note_death(self, charge: _Charge) -> None:
        now_s = self._now_s()
        if charge.policy.note_death(now_s):
            self._waiting.append((now_s, charge))
        else:
            self._give_up(
                charge,
                f"its process died {DEATHS_MAX} times within {DEATHS_WITHIN_S:.0f} seconds",
            )

    def _restart(self, charge: _Charge) -> None:
        try:
            birth = Birth(charge.spec, self._fork(charge.spec))
        except WorkspaceError as exc:
            self._not_mounted(charge, exc)
            return
        except OSError as exc:
            error = UnavailableError(f"no process can be started: {exc}", kind="session.fork")
            self._not_mounted(charge, error)
            return
        log.warning(
            "session.restarting", extra={"session": charge.session, "session_pid": birth.pid}
        )
        restart = _Restart(charge, birth)
        self._restarts[birth.pid] = restart
        self._watch(birth.ready_fd, lambda: self._hear(restart))

    def _hear(self, restart: _Restart) -> None:
        charge, birth = restart.charge, restart.birth
        if not birth.hear():
            return
        self._unwatch(birth.ready_fd)
        birth.close()
        answer = restart.answer = birth.answer(self._state)
        # What could not mount is tried again when its process has ended: it holds locks till then.
        if not isinstance(answer, WorkspaceError) and not restart.releasers:
            del self._restarts[birth.pid]
            charge.policy.note_mounted()
            self.take(charge.spec, answer, birth.pid, charge.policy)
            log.warning(
                "session.restarted",
                extra={"session": charge.session, "duration_ms": birth.duration_ms},
            )
        for tell in restart.askers:
            tell(answer)

    def _not_mounted(self, charge: _Charge, error: WorkspaceError) -> None:
        if error.kind == "session.died":
            self._note_death(charge)
            return
        log.warning(
            "session.not_restarted",
            extra={"session": charge.session, "kind": error.kind, "reason": str(error)},
        )
        if error.kind == "session.mounted":
            return  # by hand, elsewhere
        pause_s = charge.policy.pause_after(error)
        if pause_s is None:
            self._give_up(charge, f"it could not be mounted again: {error}")
            return
        self._waiting.append((self._now_s() + pause_s, charge))

    def _give_up(self, charge: _Charge, why: str) -> None:
        log.error("session.given_up", extra={"session": charge.session, "reason": why})
        try:
            give_up_session(self._state, charge.session_id, why)
        except OSError as exc:
            log.warning("session.not_noted", extra={"errno": exc.errno})


def _is_same_store(one: SessionSpec, other: SessionSpec) -> bool:
    """Tell whether two store URLs are the same, as far as the disk need not be asked."""
    return _plain_url(one.store_url) == _plain_url(other.store_url)


def _plain_url(url: str) -> str:
    path = unquote(url.removeprefix("file://"), errors="surrogateescape")
    return os.path.normpath(path) if path.startswith("/") else url


def _told_of(charge: _Charge | None) -> Mapping[str, object]:
    return {
        "session": None if charge is None else charge.session,
        "store_url": None if charge is None else charge.spec.store_url,
    }


def _is_fuse_mount(mountpoint: str) -> bool:
    mount = find_mount(mountpoint)
    return mount is not None and mount.is_fuse
