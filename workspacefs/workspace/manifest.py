"""`workspace.json`: what a workspace is, written once when it is made.

One line of JSON like a ref's: ASCII, sorted keys, no blanks, a newline at the end; `check` is the
BLAKE3 of the same line without it. Members: docs/format.md.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from workspacefs.chunking.parameters import MIB, ChunkParameters
from workspacefs.errors import IntegrityError, RefusedError
from workspacefs.trees.parameters import TreeParameters

MANIFEST_KEY: Final = "workspace.json"
FORMAT_VERSION: Final = 1
_HASH: Final = "blake3-keyed"
_CHUNKER: Final = "fastcdc-nc1"
_AVG_MAX: Final = 4 * MIB
_PAGE_MAX: Final = 8 * MIB
"""No chunk may be longer than 16 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Identity and parameters of one workspace."""

    workspace_id: str
    """32 hex digits, random."""
    created_ns: int
    tree: TreeParameters
    chunker: ChunkParameters

    @classmethod
    def new(cls, *, created_ns: int) -> Manifest:
        """Return a manifest with a fresh identity, a fresh tree seed and default sizes."""
        return cls(
            workspace_id=secrets.token_hex(16),
            created_ns=created_ns,
            tree=TreeParameters(seed=secrets.randbits(64)),
            chunker=ChunkParameters(),
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the value that is stored."""
    tree, chunker = manifest.tree, manifest.chunker
    document: dict[str, object] = {
        "format": FORMAT_VERSION,
        "workspace_id": manifest.workspace_id,
        "created_ns": manifest.created_ns,
        "hash": _HASH,
        "tree": {
            "seed": f"{tree.seed:016x}",
            "boundary_bits": tree.boundary_bits,
            "single_leaf_max": tree.single_leaf_max,
        },
        "chunker": {
            "algorithm": _CHUNKER,
            "whole_max_bytes": chunker.whole_max_bytes,
            "bands": [list(band) for band in chunker.bands],
            "largest_avg_bytes": chunker.largest_avg_bytes,
            "page_bytes": chunker.page_bytes,
        },
    }
    return _line({**document, "check": _check_of(document)})


def decode_manifest(value: bytes, *, url: str) -> Manifest:
    """Return the manifest that `value` encodes.

    Raises:
        RefusedError: It is of a newer format (kind "format.newer").
        IntegrityError: It is damaged.
    """
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as exc:
        raise _damaged(url, "is not JSON") from exc
    if not isinstance(document, dict):
        raise _damaged(url, "is not the description of a workspace")
    version = document.get("format")
    if type(version) is int and version > FORMAT_VERSION:
        # Before the checksum: a newer format may spell that differently.
        raise RefusedError(
            f"{url} has format version {version}, this program knows {FORMAT_VERSION}; "
            "use a newer release of workspacefs",
            kind="format.newer",
            format=version,
        )
    check = document.pop("check", None)
    if check != _check_of(document) or _line({**document, "check": check}) != value:
        raise _damaged(url, "does not match its checksum")
    try:
        return _manifest_of(document)
    except (KeyError, TypeError, ValueError) as exc:
        raise _damaged(url, "has members that no workspace has") from exc


def _manifest_of(document: dict[str, object]) -> Manifest:
    tree, chunker = document["tree"], document["chunker"]
    if not isinstance(tree, dict) or not isinstance(chunker, dict):
        raise TypeError
    if document["hash"] != _HASH or chunker["algorithm"] != _CHUNKER or document["format"] != 1:
        raise ValueError
    bands = tuple(
        (_size(file_max), _size(avg, 1024, _AVG_MAX)) for file_max, avg in chunker["bands"]
    )
    manifest = Manifest(
        workspace_id=bytes.fromhex(str(document["workspace_id"])).hex(),
        created_ns=int(str(document["created_ns"])),
        tree=TreeParameters(
            seed=int(tree["seed"], 16),
            boundary_bits=_size(tree["boundary_bits"], 1, 16),
            single_leaf_max=_size(tree["single_leaf_max"], 1, 1 << 16),
        ),
        chunker=ChunkParameters(
            whole_max_bytes=_size(chunker["whole_max_bytes"], 1, 1 << 20),
            bands=bands,
            largest_avg_bytes=_size(chunker["largest_avg_bytes"], 1024, _AVG_MAX),
            page_bytes=_size(chunker["page_bytes"], 1024, _PAGE_MAX),
        ),
    )
    if not 0 <= manifest.tree.seed < 1 << 64:
        raise ValueError
    return manifest


def _size(value: object, low: int = 1024, high: int = 1 << 62) -> int:
    if type(value) is int and low <= value <= high:
        return value
    raise ValueError


def _check_of(document: dict[str, object]) -> str:
    return blake3(_line(document)).hexdigest()


def _line(document: dict[str, object]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"


def _damaged(url: str, why: str) -> IntegrityError:
    return IntegrityError(f"{MANIFEST_KEY} of {url} {why}", kind="workspace.damaged", url=url)
