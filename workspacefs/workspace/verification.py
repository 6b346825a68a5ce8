"""Checking a history by what it says itself: ids, parents, signatures. Asks nobody but the store.

A commit's id is the hash of its body, and the body names its parents and, by id, the whole tree; so
what an id covers cannot be changed by whoever has the store, and a signature says who vouches for
it. What a branch is at is said by the branch alone: that it was set back to an older commit shows
only to whoever remembers a newer one (`must_have`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from workspacefs.errors import IntegrityError
from workspacefs.ids import CommitId, commit_id_of
from workspacefs.objects.commits import Commit, decode_commit, encode_commit
from workspacefs.objects.refs import Locator, Ref

Checker = Callable[[bytes, bytes, bytes], bool]
"""(public key, signature, body) → whether it is one."""


class RecordSource(Protocol):
    """Gives bodies of commits."""

    def load_commit_record(self, ref: Ref) -> tuple[bytes, tuple[Locator | None, ...]]:
        """Return the body of a commit and the locators of its references."""
        ...


@dataclass(frozen=True, slots=True)
class BadCommit:
    """A commit that is not what it must be."""

    commit_id: CommitId
    reason: str


@dataclass(slots=True)
class Verification:
    """What was found in a history."""

    commits: int = 0
    signed: dict[bytes, int] = field(default_factory=dict)
    """Good signatures by trusted keys, by key."""
    untrusted: dict[bytes, int] = field(default_factory=dict)
    """Good signatures by other keys."""
    unsigned: int = 0
    first_unsigned: CommitId | None = None
    """One of the unsigned ones, the newest on its way; None: there are none."""
    bad: list[BadCommit] = field(default_factory=list)

    @property
    def is_all_signed(self) -> bool:
        """Whether trusted keys have signed every commit."""
        return not (self.bad or self.unsigned or self.untrusted)


def verify_history(
    head: Ref,
    source: RecordSource,
    is_signed: Checker,
    *,
    trusted: Mapping[bytes, str],
    must_have: Collection[CommitId] = (),
) -> Verification:
    """Check a commit and all that it descends from; reads each of them once.

    What is damaged or missing ends its line of history, and is told as bad; the rest is checked.

    Args:
        head: Where to begin.
        source: Where they are.
        is_signed: Checks one signature.
        trusted: Names by public key.
        must_have: Commits that the history must have: heads that somebody remembers.

    Raises:
        UnavailableError: The store does not answer.
    """
    found = Verification()
    seen = {head.id}
    waiting = [head]
    while waiting:
        ref = waiting.pop()
        found.commits += 1
        commit_id = CommitId(ref.id)
        try:
            body, locators = source.load_commit_record(ref)
            if commit_id_of(body) != ref.id:
                raise IntegrityError("its id is not the hash of its body", kind="commit.id")
            commit = decode_commit(body, locators, what=f"commit {ref.id.hex()[:12]}")
        except IntegrityError as exc:
            found.bad.append(BadCommit(commit_id, str(exc)))
            continue
        _note(found, commit_id, commit, is_signed, trusted)
        for parent in commit.parents:
            if parent.id not in seen:
                seen.add(parent.id)
                waiting.append(parent)
    for commit_id in must_have:
        if commit_id not in seen:
            found.bad.append(
                BadCommit(commit_id, "it is not in this history, which was cut or set back")
            )
    return found


def _note(
    found: Verification,
    commit_id: CommitId,
    commit: Commit,
    is_signed: Checker,
    trusted: Mapping[bytes, str],
) -> None:
    signature = commit.signature
    if signature is None:
        found.unsigned += 1
        found.first_unsigned = found.first_unsigned or commit_id
        return
    body, _ = encode_commit(commit.unsigned())
    if not is_signed(signature.public_key, signature.value, body):
        found.bad.append(
            BadCommit(
                commit_id,
                "its signature is not one of this commit by key "
                f"{signature.public_key.hex()[:16]}: one of the two was changed",
            )
        )
        return
    counts = found.signed if signature.public_key in trusted else found.untrusted
    counts[signature.public_key] = counts.get(signature.public_key, 0) + 1
