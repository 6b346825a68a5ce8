"""Refs of proposals never change silently, and a forged one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3

from workspacefs.errors import IntegrityError
from workspacefs.ids import CommitId, FileId, commit_id_of
from workspacefs.objects.commits import Commit, Provenance, encode_commit
from workspacefs.objects.entry import Entry, Subtree
from workspacefs.refs import Claim, Decision, ProposalRecord, RefRecord
from workspacefs.refs.record import decode_ref, encode_ref

GOLDEN = Path(__file__).parent / "golden" / "refs"
BODY = encode_commit(
    Commit(
        root=Entry(b"", 0o40755, 0, 0, 0, 5, 5, FileId(1), 2, Subtree()),
        parents=(), message="work", time_ns=5,
    )
)[0]  # fmt: skip
OPEN = ProposalRecord(
    branch="main",
    base=CommitId(b"b" * 32),
    who=Provenance(author="a@h", agent="coder", session="s", run="r", tool_call="t", model="m"),
    message="why ü",
    created_ns=6,
    claim=Claim(action="accept", by="b@h", since_ns=7, tip=CommitId(b"t" * 32), paths=("d",)),
)
ACCEPTED = ProposalRecord(
    branch="main",
    base=None,
    who=Provenance(author="a@h"),
    message="why",
    created_ns=6,
    state="accepted",
    decision=Decision(
        by="b@h", agent="x", decided_ns=8, reason="ok", result=CommitId(b"r" * 32),
        paths=("d", "e/\udcff"),
    ),
)  # fmt: skip


def record_of(proposal: ProposalRecord) -> RefRecord:
    return RefRecord(
        commit_id=commit_id_of(BODY), commit_body=BODY, write_id="00ff", moved_at_ns=9,
        moved_by="a@h", proposal=proposal,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "proposal"), [("proposal-open", OPEN), ("proposal-accepted", ACCEPTED)]
)
def test_proposals_are_written_and_read_as_ever(name: str, proposal: ProposalRecord) -> None:
    """To the byte."""
    golden = (GOLDEN / f"{name}.json").read_bytes()

    assert encode_ref(record_of(proposal)) == golden
    assert decode_ref(golden, key="k") == record_of(proposal)


@pytest.mark.parametrize(
    "members",
    [
        {"state": "closed"},
        {"state": "accepted"},
        {"branch": ""},
        {"base": "00"},
        {"who": {}},
        {"claim": None},
        {"claim": {"action": "accept"}},
        {"decision": None},
        {"more": 1},
    ],
)
def test_forged_proposals_are_refused(members: dict[str, object]) -> None:
    """What no proposal says, with a check that fits."""
    document = json.loads(encode_ref(record_of(OPEN)))
    document["proposal"].update(members)
    del document["check"]

    def line() -> bytes:
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"

    document["check"] = blake3(line()).hexdigest()
    with pytest.raises(IntegrityError, match="refs/x"):
        decode_ref(line(), key="refs/x")
