"""workspace.json never changes silently."""

from __future__ import annotations

from pathlib import Path

from workspacefs.chunking.parameters import ChunkParameters
from workspacefs.trees.parameters import TreeParameters
from workspacefs.workspace.manifest import Manifest, decode_manifest, encode_manifest

GOLDEN = Path(__file__).parent / "golden" / "workspace" / "workspace.json"

MANIFEST = Manifest(
    workspace_id="00112233445566778899aabbccddeeff",
    created_ns=1_700_000_000_123_456_789,
    tree=TreeParameters(seed=0x0123456789ABCDEF),
    chunker=ChunkParameters(),
)


def test_manifest_is_written_as_ever() -> None:
    """The default parameters are part of what is pinned."""
    assert encode_manifest(MANIFEST) == GOLDEN.read_bytes()


def test_golden_manifest_is_read() -> None:
    """Old workspaces open."""
    assert decode_manifest(GOLDEN.read_bytes(), url="x") == MANIFEST
