"""The key that commits of a mount are signed with: looked at before anything is mounted."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from workspacefs.config import load_signing_key


def checked_signing_key(environ: Mapping[str, str]) -> str | None:
    """Return the path of the key to sign with, which can be read; None: nothing is signed.

    Raises:
        WorkspaceError: It cannot be used; see signing/key_files.py.
    """
    path = load_signing_key(environ)
    if path is not None:
        # By name: it loads a part of the library that those without a key need not wait for.
        importlib.import_module("workspacefs.signing.key_files").read_key_file(path)
    return path
