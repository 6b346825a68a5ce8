"""What shall become of a session by itself: when it pauses, and when it is put away or deleted.

Only what a policy says stands here; when one fires: workspace/policies.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final

from workspacefs.errors import UsageError

TIME_MAX_S: Final = 100 * 365 * 24 * 3600
_EPHEMERAL: Final = "ephemeral"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPolicy:
    """Times are whole seconds, at least 1; None: never."""

    idle_pause_s: int | None = None
    """It pauses after so long without a request of a program."""
    ttl_s: int | None = None
    """It pauses so long after it was mounted, whoever uses it."""
    archive_after_s: int | None = None
    """It is archived when its ref has not moved, and nobody has had it mounted, for so long."""
    delete_after_s: int | None = None
    """It is deleted then."""
    ephemeral: bool = False
    """It is deleted when it is unmounted, with what was not committed."""

    def changed(self, changes: Mapping[str, object]) -> SessionPolicy:
        """Return the policy with some members changed.

        Raises:
            UsageError: There is no such member, or it cannot have that value.
        """
        known = asdict(self)
        for name, value in changes.items():
            if name not in known or not _may_be(name, value):
                raise UsageError(
                    f"a session cannot have {name:.40} = {value!r:.40}", kind="policy.invalid"
                )
        return replace(self, **changes)  # type: ignore[arg-type]  # compared just above

    def document(self) -> dict[str, object]:
        """Return all members, as what JSON can say."""
        return asdict(self)


NO_POLICY: Final = SessionPolicy()


def policy_json(policy: SessionPolicy) -> dict[str, object]:
    """Return what a ref says of a policy: what is set, and nothing of the rest."""
    return {name: value for name, value in asdict(policy).items() if value}


def policy_of(stored: object) -> SessionPolicy:
    """Return the policy that a ref says.

    Raises:
        ValueError: It is malformed, or says nothing.
    """
    if not isinstance(stored, dict) or not stored or not all(stored.values()):
        raise ValueError("malformed")
    try:
        return NO_POLICY.changed(stored)
    except UsageError as exc:
        raise ValueError("malformed") from exc


def _may_be(name: str, value: object) -> bool:
    if name == _EPHEMERAL:
        return type(value) is bool
    return value is None or (type(value) is int and 1 <= value <= TIME_MAX_S)
