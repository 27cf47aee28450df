"""What planning has read, for the tasks to read again without asking the origin.

The messages of a batch are counted in the driver, so their bytes are there.  They are kept in a file that has no name:
it is gone with the process, however that ends.  A task on the same machine and of the same user finds it below `/proc`
by the driver's process id, and knows it by the nonce that it begins with; any other task, and one that is planned again
after a restart, walks the stream.  So this is a shortcut and nothing else: bounded, and never needed.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Extent:
    """A run of bytes in a spool."""

    path: str
    nonce: bytes
    at: int
    size: int

    def read(self) -> bytes | None:
        """The bytes; None where this process cannot get at them."""
        # On another machine the path may be anything, a pipe of somebody's too: that is neither waited for nor read.
        try:
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # noqa: PTH116  (a descriptor's path, not a file's)
                return None
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            return None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode) or os.pread(file, _NONCE_BYTES, 0) != self.nonce:
                return None
            data = os.pread(file, self.size, self.at)
        except OSError:
            return None
        finally:
            os.close(file)
        return data if len(data) == self.size else None


class Spool:
    """One batch's bytes, at most `limit` of them; safe to use from several threads."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._left = limit
        self._file = None
        if limit > 0 and Path("/proc/self/fd").is_dir():
            self._file = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the batch)
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._at = _NONCE_BYTES
        if self._file is not None:
            os.pwrite(self._file.fileno(), self._nonce, 0)

    def add(self, data: bytes) -> Extent | None:
        """Keep some bytes; None where there is no room."""
        with self._lock:
            if self._file is None or len(data) > self._left:
                return None
            at = self._at
            self._at += len(data)
            self._left -= len(data)
        done = 0
        try:
            while done < len(data):
                done += os.pwrite(self._file.fileno(), data[done:], at + done)
        except OSError:
            return None  # a disk that is full is no reason not to go on
        return Extent(f"/proc/{os.getpid()}/fd/{self._file.fileno()}", self._nonce, at, len(data))

    def close(self) -> None:
        """Let the bytes go."""
        if self._file is not None:
            self._file.close()
            self._file = None
