"""`python -m workspacefs.cli` is `workspacefs`."""

from __future__ import annotations

import sys

from workspacefs.cli.main import main

sys.exit(main())
