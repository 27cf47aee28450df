"""The spool: bytes read while planning, so that tasks need not request them from the origin again.

The driver counts the messages of a batch, so it has their bytes.  It keeps them in an unnamed file, which disappears
with the process in every case.  A task of the same user on the same machine opens the file below `/proc` by the
driver's process id, and verifies the nonce at its beginning.  Any other task, and one planned again after a restart,
walks the stream.  The spool is a bounded optimisation and never required.
"""

from __future__ import annotations

import atexit
import os
import secrets
import stat
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NONCE_BYTES: Final = 16
_MOST_RETAINED: Final = 2


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes in a spool."""

    path: str
    nonce: bytes
    at: int
    size: int

    def read(self) -> bytes | None:
        """The bytes; None if this process cannot read them."""
        # On another machine the path may be anything, such as another user's pipe: never block on it.
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
    """The bytes of one batch, at most `limit`; safe to use from several threads."""

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
        """Store these bytes; None if there is no room."""
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
            return None  # a full disk must not stop the batch
        return Extent(f"/proc/{os.getpid()}/fd/{self._file.fileno()}", self._nonce, at, len(data))

    def close(self) -> None:
        """Discard the bytes."""
        if self._file is not None:
            self._file.close()
            self._file = None


_retained: list[Spool] = []


def retain(spool: Spool) -> None:
    """Keep the last few spools for their tasks, and close older ones: the planning process outlives its batch."""
    _retained.append(spool)
    _close_all_but(_MOST_RETAINED)


def _close_all_but(count: int) -> None:
    while len(_retained) > count:
        _retained.pop(0).close()


# Python reports files that are still open when it ends.
atexit.register(_close_all_but, 0)
