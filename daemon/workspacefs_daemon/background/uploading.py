"""Uploading in the background what a long session writes, so that its commit is short."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import trio

from workspacefs.errors import WorkspaceError
from workspacefs.ids import FileId
from workspacefs.workspace.early_upload import EarlyUpload
from workspacefs_daemon.mounted import Mounted

log = logging.getLogger(__name__)

PERIOD_S: Final = 10.0
"""How often it looks; also how long a file must have been at rest."""
_WORTH_BYTES: Final = 16 << 20
"""With less than this to be uploaded a commit is short anyway."""
_BATCH_BYTES: Final = 64 << 20
_BATCH_FILES: Final = 2000


async def upload_early(early: EarlyUpload, mounted: Mounted, *, period_s: float = PERIOD_S) -> None:
    """Upload content that has come to rest; runs until cancelled."""
    seen_bytes = 0
    while True:
        await trio.sleep(period_s)
        written_bytes = mounted.fs.files.written_bytes
        if written_bytes - seen_bytes < _WORTH_BYTES or mounted.committing.locked():
            continue
        try:
            left_bytes = await _upload(early, mounted, period_s)
        except WorkspaceError as exc:
            log.info("upload.put_off", extra={"kind": exc.kind, "reason": str(exc)})
        else:
            seen_bytes = written_bytes - left_bytes


async def _upload(early: EarlyUpload, mounted: Mounted, period_s: float) -> int:
    """Upload what is at rest; return the bytes that are not yet."""
    before_ns = mounted.services.now_ns() - int(period_s * 1e9)
    with mounted.viewed() as pending:
        files = await mounted.blocking.job(
            partial(early.files_at_rest, pending, before_ns=before_ns)
        )
    began, total_bytes = trio.current_time(), sum(size for _, size in files)
    if total_bytes < _WORTH_BYTES:
        return _WORTH_BYTES
    while files:
        batch: list[FileId] = []
        size_bytes = 0
        while files and size_bytes < _BATCH_BYTES and len(batch) < _BATCH_FILES:
            file_id, size = files.pop()
            batch.append(file_id)
            size_bytes += size
        if mounted.committing.locked():
            return total_bytes  # it uploads by itself what it reads
        # A view for each batch: as long as one is held, the layers' database only grows.
        with mounted.viewed() as pending:
            await mounted.blocking.job(partial(early.upload, pending, batch))
    log.info(
        "upload.done",
        extra={
            "bytes": total_bytes,
            "duration_ms": round((trio.current_time() - began) * 1000, 3),
        },
    )
    return 0
