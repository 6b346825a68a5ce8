"""What to mount: the whole order that a session process gets, as plain values.

It travels from the command line to the supervisor as JSON and to the session process by fork.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from workspacefs.backend.s3_url import is_s3_url
from workspacefs.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """One mount to be made. Paths are text as os.fsdecode gives it."""

    store_url: str
    """Absolute: "file:///dir", "s3://bucket/prefix"."""
    mountpoint: str
    """Absolute, free of symbolic links; checked by mountpoints.prepare_mountpoint before use."""
    state_dir: str
    """Absolute; exists and is private."""
    session_name: str | None = None
    """Session to resume, or to begin under this name; None: the usual one of this account."""
    branch: str = "main"
    """Where a new session starts, unless `at_rev` says."""
    at_rev: str | None = None
    """Revision to show instead; goes with `read_only`."""
    subpath: str | None = None
    """Directory of the workspace that is shown as the root, "a/b"; None: all."""
    read_only: bool = False
    allow_other: bool | None = None
    """Whether other accounts may enter; None: only when we are root."""
    foreground: bool = False
    """Whether a person waits for the process: it was not forked from a supervisor."""
    store_environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What leads to a far store, keys and tokens included: never logged, in no command line."""
    transfer_socket: str | None = None
    """Where the transfer process of a far store listens; set by the supervisor."""
    restarts: bool = False
    """Whether the session is brought back when its process dies; set by the supervisor."""
    prefetch: str = "adaptive"
    """How much of a far store is fetched before it is asked for: see PREFETCH_MODES."""
    store_timeout_s: float = 60.0
    """Longest wait for bytes of a far store; then the program gets EIO."""
    early_upload: bool = True
    """Whether content is stored in a far store before it is committed."""
    sees_writers: bool = True
    """Whether it is noted which processes change which files."""
    steals: bool = False
    """Whether to take the session from whoever has it mounted."""
    autosave_s: float | None = None
    """Longest time that work stays on this machine alone; None: until it is committed."""
    policy: Mapping[str, object] = field(default_factory=dict)
    """What the session's policy shall say from now on, by member of SessionPolicy."""
    puts_away: bool = False
    """Whether to mount nothing: the session is stored, and deleted from this machine."""
    drops_checkpoints: bool = False
    """Whether it is, though it has checkpoints."""
    forks: Mapping[str, object] | None = None
    """Arguments of a fork (docs/protocol.md): nothing is mounted, the session is forked."""
    cache_limit_bytes: int | None = None
    """How large the cache of this account may grow; None: as it was, or its default."""
    signing_key: str | None = None
    """File of the key that commits are signed with, absolute; None: they are not signed. The key
    itself is read when something is signed, and goes nowhere."""
    metrics: str | None = None
    """Where to serve figures for Prometheus: a port of 127.0.0.1, or the path of a socket."""

    @property
    def mounts_nothing(self) -> bool:
        """Whether the process ends when it has done one thing, with no mount."""
        return self.puts_away or self.forks is not None

    @property
    def is_far(self) -> bool:
        """Whether the store is reached through a transfer process."""
        return is_s3_url(self.store_url)

    def path_in_workspace(self, path: str) -> bytes:
        """Return what a path below the mountpoint is called in the workspace; "" stays so: all."""
        inside = path.strip("/")
        return os.fsencode(f"{self.subpath}/{inside}" if self.subpath and inside else inside)


PREFETCH_MODES: Final = ("none", "metadata", "adaptive")
"""none: nothing but what is asked for; metadata: names and attributes of the whole tree as well;
adaptive: also data, as reading goes on, and in the order that an earlier mount read it."""

_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "store_url": (str,),
    "mountpoint": (str,),
    "state_dir": (str,),
    "session_name": (str, type(None)),
    "branch": (str,),
    "at_rev": (str, type(None)),
    "subpath": (str, type(None)),
    "read_only": (bool,),
    "allow_other": (bool, type(None)),
    "foreground": (bool,),
    "store_environ": (dict,),
    "transfer_socket": (str, type(None)),
    "restarts": (bool,),
    "prefetch": (str,),
    "store_timeout_s": (float, int),
    "early_upload": (bool,),
    "sees_writers": (bool,),
    "steals": (bool,),
    "autosave_s": (float, int, type(None)),
    "policy": (dict,),
    "puts_away": (bool,),
    "forks": (dict, type(None)),
    "drops_checkpoints": (bool,),
    "cache_limit_bytes": (int, type(None)),
    "signing_key": (str, type(None)),
    "metrics": (str, type(None)),
}


_OF_THE_MOUNT: Final = (
    "prefetch",
    "store_timeout_s",
    "early_upload",
    "autosave_s",
    "sees_writers",
    "allow_other",
    "signing_key",
    "subpath",
)


def mount_options(spec: SessionSpec) -> dict[str, object]:
    """Return what a fork's mount should have as this one has it, as what JSON can say."""
    return {name: getattr(spec, name) for name in _OF_THE_MOUNT}


def spec_of_mounted(spec: SessionSpec, *, session: str, base_hex: str | None) -> SessionSpec:
    """Return how to mount again what was mounted: the same session, the same commit of a view.

    Never by stealing: whoever took the session over since shall keep it.
    """
    if spec.read_only:
        return dataclasses.replace(spec, at_rev=base_hex, steals=False)
    return dataclasses.replace(spec, session_name=session, steals=False)


def spec_document(spec: SessionSpec) -> dict[str, object]:
    """Return a spec as what JSON can say."""
    return dataclasses.asdict(spec)


def spec_from_document(document: Mapping[str, object]) -> SessionSpec:
    """Return the spec that a document from outside describes.

    Raises:
        UsageError: A member is missing, unknown or of the wrong type.
    """
    for name, value in document.items():
        if name not in _KINDS or type(value) not in _KINDS[name]:
            shown = "…" if name == "store_environ" else f"{value!r:.40}"
            raise UsageError(f"a mount cannot have {name:.40} = {shown}", kind="mount.malformed")
    missing = {"store_url", "mountpoint", "state_dir"} - document.keys()
    if missing:
        raise UsageError(f"a mount needs {', '.join(sorted(missing))}", kind="mount.malformed")
    spec = SessionSpec(**document)  # type: ignore[arg-type]  # types were compared just above
    if not all(type(one) is str for pair in spec.store_environ.items() for one in pair):
        raise UsageError("store_environ holds something else than texts", kind="mount.malformed")
    if spec.prefetch not in PREFETCH_MODES:
        raise UsageError(
            f"--prefetch is one of {', '.join(PREFETCH_MODES)}, not {spec.prefetch:.40}",
            kind="mount.malformed",
        )
    return dataclasses.replace(spec, subpath=_plain_subpath(spec.subpath))


def _plain_subpath(text: str | None) -> str | None:
    parts = [part for part in (text or "").split("/") if part not in ("", ".")]
    if ".." in parts or "\0" in (text or ""):
        raise UsageError(
            f"--subpath {text} leads out of the workspace; give a directory's path from its root",
            kind="mount.subpath",
        )
    return "/".join(parts) or None
