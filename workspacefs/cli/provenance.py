"""Who a commit made by the command line itself comes from."""

from __future__ import annotations

import argparse
import os
import pwd
import socket

from workspacefs.cli.context import Context
from workspacefs.cli.parser import given_provenance
from workspacefs.objects.commits import Provenance


def new_provenance(options: argparse.Namespace, context: Context) -> Provenance:
    """Return the provenance of what is done now: account and host, flags, environment."""
    given = given_provenance(options, context.environ)
    return Provenance(author=own_name(), host=socket.gethostname(), **given)


def own_name() -> str:
    """Return "user@host" of this process."""
    return f"{_account()}@{socket.gethostname()}"


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # an account that has no name, as in containers
        return str(os.geteuid())
