"""stdout where it cannot be written to: a disk that is full, a reader who has left."""

from __future__ import annotations

import errno
import os
import sys
from typing import Final

CANNOT_WRITE: Final = frozenset(
    {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF, errno.EROFS}
)
"""What an OSError about output has for its number."""


def abandon_stdout() -> None:
    """Have what is still held for stdout go nowhere: Python would fail on it again, aloud, when it flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
