"""Signing and checking: nothing that was changed after it was signed passes for what it was."""

from __future__ import annotations

import os
import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.unit.files_workspace import FilesWorkspace
from tests.unit.merge_files import do
from workspacefs.errors import (
    BusyError,
    IntegrityError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UsageError,
    WorkspaceError,
)
from workspacefs.ids import CommitId, commit_id_of
from workspacefs.merge.deciding import accept
from workspacefs.merge.landing import LandingMerge
from workspacefs.objects.commits import Commit, Provenance, Signature, decode_commit, encode_commit
from workspacefs.objects.refs import Locator, Ref
from workspacefs.refs import RefKind
from workspacefs.signing.ed25519 import new_key
from workspacefs.signing.key_files import (
    FileSigner,
    is_signed,
    make_key_file,
    public_key_of,
    read_key_file,
    sign_with,
)
from workspacefs.signing.trusted import distrust, load_trusted, parse_public_key, trust_key
from workspacefs.workspace.land import land_commit
from workspacefs.workspace.landing import import_directory
from workspacefs.workspace.proposals import make_proposal
from workspacefs.workspace.verification import Verification, verify_history


class Bodies:
    """Commits by id, as a store gives them that somebody else has written."""

    def __init__(self) -> None:
        self.bodies: dict[bytes, bytes] = {}

    def load_commit_record(self, ref: Ref) -> tuple[bytes, tuple[Locator | None, ...]]:
        if ref.id not in self.bodies:
            raise IntegrityError("it is missing")
        return self.bodies[ref.id], ()

    def add(self, commit: Commit) -> Ref:
        body, _ = encode_commit(commit)
        self.bodies[commit_id_of(body)] = body
        return Ref(commit_id_of(body))

    def load(self, ref: Ref) -> Commit:
        return decode_commit(self.bodies[ref.id], (), what="x")


class Key:
    """Signs without a file."""

    def __init__(self) -> None:
        self._key, self.pem = new_key()
        self.public = self._key.public_key

    def sign(self, body: bytes) -> Signature:
        return Signature(self.public, self._key.sign(body))

    def signed(self, commit: Commit) -> Commit:
        return replace(commit, signature=self.sign(encode_commit(commit.unsigned())[0]))


ANA, BEN = Key(), Key()
TRUSTED = {ANA.public: "ana"}


class History:
    """Three commits of ana's."""

    def __init__(self) -> None:
        made = FilesWorkspace()
        do(made.files, "write f 1")
        _, commit = made.commit(made.files)
        self.store = Bodies()
        self.one = self.store.add(ANA.signed(replace(commit, message="one")))
        self.two = self.store.add(ANA.signed(replace(commit, message="two", parents=(self.one,))))
        self.three = self.store.add(ANA.signed(replace(commit, message="3", parents=(self.two,))))

    def check(self, head: Ref | None = None, *must_have: Ref) -> Verification:
        return verify_history(
            head or self.three, self.store, is_signed, trusted=TRUSTED,
            must_have=[CommitId(ref.id) for ref in must_have],
        )  # fmt: skip

    def bad(self, head: Ref | None = None, *must_have: Ref) -> list[tuple[bytes, str]]:
        return [(one.commit_id, one.reason) for one in self.check(head, *must_have).bad]


def test_good_history_is_counted() -> None:
    """By key; each commit once, also where histories join."""
    history = History()
    commit = history.store.load(history.three)
    side = history.store.add(BEN.signed(replace(commit, message="side", parents=(history.one,))))
    plain = history.store.add(
        replace(commit, message="merge", parents=(history.three, side), signature=None)
    )

    found = history.check(plain)

    assert (found.commits, found.bad) == (5, [])
    assert (found.signed, found.untrusted, found.unsigned) == ({ANA.public: 3}, {BEN.public: 1}, 1)
    assert found.first_unsigned == plain.id
    assert not found.is_all_signed
    assert history.check().is_all_signed


def test_changed_body_under_its_old_id_is_bad() -> None:
    """Whatever byte was changed."""
    history = History()
    body = history.store.bodies[history.two.id]
    for at in range(0, len(body), 7):
        history.store.bodies[history.two.id] = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
        assert [commit for commit, _ in history.bad()] == [history.two.id]


@pytest.mark.parametrize(
    "members",
    [
        {"message": "other"},
        {"parents": ()},
        {"time_ns": 1},
        {"provenance": Provenance(author="eve@h")},
        {"meta": (("reviewed-by", "ana"),)},
    ],
)
def test_changed_commit_with_its_old_signature_is_bad(members: dict[str, object]) -> None:
    """Stored anew under its own id, so only the signature can tell."""
    history = History()
    forged = history.store.add(replace(history.store.load(history.three), **members))  # type: ignore[arg-type]

    ((commit, reason),) = history.bad(forged)

    assert commit == forged.id
    assert "signature" in reason


def test_changed_tree_is_bad() -> None:
    """The body names it by its id."""
    history = History()
    other = FilesWorkspace()
    do(other.files, "write f evil")
    root = other.commit(other.files)[1].root
    forged = history.store.add(replace(history.store.load(history.three), root=root))

    assert [commit for commit, _ in history.bad(forged)] == [forged.id]


def test_signature_of_another_commit_or_key_is_bad() -> None:
    """A replayed one; one by a key that is not the one named beside it."""
    history = History()
    two, three = history.store.load(history.two), history.store.load(history.three)
    assert two.signature is not None
    assert three.signature is not None
    replayed = history.store.add(replace(three, signature=two.signature))
    claimed = Signature(ANA.public, BEN.signed(three).signature.value)  # type: ignore[union-attr]
    named = history.store.add(replace(three, signature=claimed))

    assert [commit for commit, _ in history.bad(replayed)] == [replayed.id]
    assert [commit for commit, _ in history.bad(named)] == [named.id]
    assert not is_signed(b"\xff" * 32, three.signature.value, b"x")


def test_cut_history_is_bad() -> None:
    """A commit that is missing; a branch that was set back, to whoever remembers more."""
    history = History()
    assert history.bad(history.two, history.one) == []
    assert [commit for commit, _ in history.bad(history.two, history.three)] == [history.three.id]

    del history.store.bodies[history.one.id]

    assert [commit for commit, _ in history.bad()] == [history.one.id]


# -- who signs -----------------------------------------------------------------------------------


def signed_by(commit: Commit) -> bytes | None:
    return None if commit.signature is None else commit.signature.public_key


def test_all_that_becomes_history_is_signed(tmp_path: Path) -> None:
    """Imports, merges of landings, accepted proposals; what is told of them is what was stored."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "f").write_text("1\n")
    made = FilesWorkspace()
    made.workspace.signer = ANA
    imported = import_directory(made.workspace, tmp_path / "src", message="import")
    assert signed_by(imported.commit) == ANA.public
    assert made.workspace.resolve("main")[1] == imported.commit
    do(made.files, "write g 1")
    one, two = (made.commit(made.files.fork(n), imported.ref) for n in (1000, 2000))
    made.land(one[0])
    do(made.files, "write h 1")
    other = made.commit(made.files, imported.ref)
    joining = LandingMerge(made.workspace, name="s", provenance=Provenance())
    landed = land_commit(made.workspace, two[0], "main", moved_by="x", join=joining.join)
    assert landed is not None
    proposal = make_proposal(made.workspace, other[0:2], "main", message="m", who=Provenance())
    accept(made.workspace, proposal.id, reviewer=Provenance(author="r@h"))

    head, commit = made.workspace.resolve("main")
    found = verify_history(head, made.workspace.store, is_signed, trusted=TRUSTED)

    assert signed_by(commit) == ANA.public
    assert found.bad == []
    assert found.signed[ANA.public] >= 2
    assert len(commit.parents) == 2


class Unwilling:
    """A key that cannot be read just now."""

    def sign(self, body: bytes) -> Signature:
        raise UnavailableError("the key cannot be read", kind="key.unreadable")


def test_commit_that_cannot_be_signed_is_not_made(tmp_path: Path) -> None:
    """Neither is a commit without a signature."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "f").write_text("1\n")
    made = FilesWorkspace()
    made.workspace.signer = Unwilling()

    with pytest.raises(UnavailableError, match="the key"):
        import_directory(made.workspace, tmp_path / "src", message="import")

    assert made.workspace.refs.find(RefKind.BRANCH, "main") is None
    assert not list(made.backend.iter_keys("ops/"))


# -- key files -----------------------------------------------------------------------------------


def test_key_file_is_ours_alone(tmp_path: Path) -> None:
    """Mode 0600, made once, whole; it signs."""
    path = str(tmp_path / "config" / "key.pem")

    public = make_key_file(path)

    assert os.stat(path).st_mode & 0o7777 == 0o600
    assert os.listdir(os.path.dirname(path)) == ["key.pem"]
    assert public_key_of(path) == public
    key, value = FileSigner(path).sign(b"body")
    assert is_signed(key, value, b"body")
    assert not is_signed(key, value, b"other")
    kept = read_key_file(path)
    with pytest.raises(BusyError):
        make_key_file(path)
    assert read_key_file(path) == kept


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o606])
def test_key_that_others_may_read_signs_nothing(tmp_path: Path, mode: int) -> None:
    """It says so, and what to do."""
    path = tmp_path / "key.pem"
    make_key_file(str(path))
    path.chmod(mode)

    with pytest.raises(RefusedError, match="chmod 600") as caught:
        FileSigner(str(path)).sign(b"x")

    assert caught.value.kind == "key.permissions"


def test_other_files_are_no_keys(tmp_path: Path) -> None:
    """Absent, a directory, garbage, of another algorithm."""
    path = tmp_path / "key.pem"
    cases: list[tuple[bytes | None, type[WorkspaceError]]] = [
        (None, NotFoundError),
        (b"", RefusedError),
        (b"-----BEGIN PRIVATE KEY-----\nMC4=\n-----END PRIVATE KEY-----\n", RefusedError),
        (
            generate_private_key(SECP256R1()).private_bytes(
                Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
            ),
            RefusedError,
        ),
    ]
    for content, error in cases:
        if content is not None:
            path.write_bytes(content)
            path.chmod(0o600)
        with pytest.raises(error, match="key"):
            FileSigner(str(path)).sign(b"x")
    with pytest.raises(RefusedError):
        read_key_file(str(tmp_path))
    assert sign_with(ANA.pem, b"x", path="p").public_key == ANA.public


def test_trusted_keys_are_kept_by_name(tmp_path: Path) -> None:
    """Several of a name; one key has one owner; comments are passed over, nonsense is named."""
    path = str(tmp_path / "c" / "trusted")
    one, two = secrets.token_bytes(32), secrets.token_bytes(32)
    assert load_trusted(path) == {}
    trust_key(path, "ana b", one)
    trust_key(path, "ana b", two)
    trust_key(path, "ana b", two)
    assert load_trusted(path) == {one: "ana b", two: "ana b"}
    with pytest.raises(BusyError, match="ana b"):
        trust_key(path, "eve", one)
    assert distrust(path, one.hex()) == [one]
    assert distrust(path, "ana b") == [two]
    for missing in ("ana b", one.hex()):
        with pytest.raises(NotFoundError):
            distrust(path, missing)
    for name in ("", " x", "#x", "a\nb"):
        with pytest.raises(UsageError):
            trust_key(path, name, one)
    for text in ("", "00", "x" * 64):
        with pytest.raises(UsageError):
            parse_public_key(text)
    Path(path).write_text(f"# team\n\n{one.hex()} ana\n{one.hex()}\n")
    with pytest.raises(UsageError, match="line 4"):
        load_trusted(path)
    with pytest.raises(NotFoundError):
        load_trusted(path + "x", must_exist=True)
