"""Turns of several processes to write to one descriptor, such as a pipe, so that each line stays whole.

A write of more than 4,096 bytes to a pipe may be mixed with another process's.  Each process therefore locks a file
while it writes a batch.  The file has one byte: whether a batch is being written.  A process that dies within its batch
leaves the byte set, and the next one knows that the last line may be incomplete.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = "access-log.turns"
_MODE = 0o600


class WriteTurns:
    """The turns of the processes that share a folder.  Use it on one thread."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self._descriptor = os.open(folder / _NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def __repr__(self) -> str:
        return f"<WriteTurns by descriptor {self._descriptor}>"

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Wait for this process's turn.  Yields whether the process before has died within its turn."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            is_torn = os.pread(self._descriptor, 1, 0) == b"1"
            os.pwrite(self._descriptor, b"1", 0)
            yield is_torn
            os.pwrite(self._descriptor, b"0", 0)
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Take no more turns."""
        os.close(self._descriptor)
