"""A sink that writes to a file and rotates it by size and time.

Rotation renames the file, for example `access.log` to `access.log.20261121T193505Z`.  Files that are renamed in the
same second also get a number.  The newest `keep_files` renamed files are kept, by the times and numbers in their names.
A time in the future comes from a clock that was ahead, so such a file counts as older than all others.

Periods end at multiples of `rotate_s` since 1970, so 86,400 s means midnight UTC.  A file that exists at the start
belongs to the period of its last change, so that restarts neither delay nor repeat a rotation.

Rotation takes place when a batch is written, so a gateway without requests makes no empty files.  A batch is never
split over two files.  If another program moves or removes the file, the sink opens a new file.  `logrotate` therefore
needs no signal, and may also truncate the file.  If a write fails midway, the sink removes the part that was written.
If a crash has cut off a line, the sink ends this line, so every other line is whole.  If a file cannot be rotated, the
sink logs the failure and keeps writing to the file.

A file has one writer, which holds a lock on it (flock(2)).  Two writers would destroy each other's lines when they
remove partial writes.  The workers of one gateway share a file: each holds the lock while it writes a batch.  The first
worker that finds the file full or its period over rotates it, and the others find a new file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from gateway.aio.clock import Clock
from gateway.ops.access_log.sinks.sink import Trouble
from gateway.ops.access_log.sinks.thread import WorkThread

_MODE = 0o640
_LOCK_TRIES = 20
_LOCK_PAUSE_S = 0.05
"""The pause between two tries to lock the file.  The tries take one second in total, because another process may be
about to close the file.
"""
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_ROTATED = re.compile(r"\.([0-9]{8}T[0-9]{6}Z)(?:-([0-9]{4,}))?")


class FileSink:
    """The sink with its open file, its thread, and the rotated files."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        rotate_bytes: int,
        rotate_s: float,
        keep_files: int,
        is_shared: bool = False,
    ) -> None:
        """Open or create the file.  Raises OSError.  With 0 bytes or 0 seconds there is no rotation by size or time.
        `is_shared`: other workers of the gateway write to the same file."""
        self._is_shared = is_shared
        self._path = path
        self._clock = clock
        self._rotate_bytes = rotate_bytes
        self._rotate_s = rotate_s
        self._keep_files = keep_files
        self._trouble = Trouble(str(path), clock)
        self._rotation_trouble = Trouble(f"{path} cannot be rotated", clock)
        self._descriptor = -1
        self._size = 0
        self._period = 0
        self._open()
        self._end_turn()
        self._thread = WorkThread("access-log")

    async def write(self, lines: bytes) -> bool:
        return await self._thread.run(partial(self._write, lines, self._clock.wall()))

    async def close(self) -> None:
        """Close the file after the write in progress."""
        # Do not wait, because a hanging disk must not delay the shutdown.
        self._thread.stop(self._close_file)

    # -- on the thread

    def _write(self, lines: bytes, wall: float) -> bool:
        try:
            if self._is_shared:
                self._begin_turn()
            self._prepare(len(lines), wall)
            self._append(lines)
        except OSError as error:
            self._trouble.failed(error.strerror or str(error))
            return False
        finally:
            self._end_turn()
        self._trouble.worked()
        return True

    def _begin_turn(self) -> None:
        """Lock the file.  Read the values that other workers may have changed: the file's end, and its period."""
        if self._descriptor < 0:
            return
        # Only workers of this gateway hold the lock, and only for a batch.
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        state = os.fstat(self._descriptor)
        if state.st_size != self._size and self._is_current_file() and _is_torn(self._path):
            os.write(self._descriptor, b"\n")
        self._period = self._period_of(state.st_mtime)

    def _end_turn(self) -> None:
        if self._is_shared and self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def _prepare(self, size: int, wall: float) -> None:
        period, must_rotate = self._period_of(wall), True
        while must_rotate:
            # Another worker may have rotated the file.  Before the next file is locked here, other workers may have
            # filled it, and even rotated it.
            while not self._is_current_file():
                self._close_file()
                self._open()
            is_full = bool(self._rotate_bytes) and self._size + size > self._rotate_bytes
            must_rotate = self._size > 0 and (is_full or period != self._period) and self._rotate(wall)
        self._period = period

    def _rotate(self, wall: float) -> bool:
        """Begin a new file.  If the old file cannot be renamed, keep writing to it, because a large file is better than
        lost lines.  Returns whether the old file was renamed.
        """
        try:
            self._rename_file(wall)
        except OSError as error:
            self._rotation_trouble.failed(error.strerror or str(error))
            return False
        self._close_file()
        self._open()
        try:
            self._remove_old(_stamp(wall))
        except OSError as error:
            self._rotation_trouble.failed(f"old files cannot be removed: {error.strerror or error}")
        else:
            self._rotation_trouble.worked()
        return True

    def _append(self, lines: bytes) -> None:
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            # Use the file's current size, because another program may have truncated the file.  Truncating to a larger
            # size would fill the file with NULs.
            size, written = os.fstat(self._descriptor).st_size, len(lines) - len(rest)
            os.ftruncate(self._descriptor, max(0, size - written))
            raise
        self._size += len(lines)

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            _lock(descriptor)
            if _is_torn(self._path):
                os.write(descriptor, b"\n")
            state = os.fstat(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._size = state.st_size
        self._period = self._period_of(state.st_mtime)

    def _close_file(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_current_file(self) -> bool:
        if self._descriptor < 0:
            return False
        try:
            there, here = self._path.stat(), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        self._size = here.st_size
        return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)

    def _period_of(self, wall: float) -> int:
        return int(wall // self._rotate_s) if self._rotate_s else 0

    def _rename_file(self, wall: float) -> None:
        stamp = _stamp(wall)
        # Never use a number again after its file was removed.  Among the files of one second, the lowest number counts
        # as the oldest, so the new file would be removed next.
        number = max((number + 1 for other, number, _ in self._rotated() if other == stamp), default=0)
        suffix = f"-{number:04d}" if number else ""
        self._path.rename(self._path.with_name(f"{self._path.name}.{stamp}{suffix}"))

    def _remove_old(self, now: str) -> None:
        """Remove all rotated files but the newest `keep_files`.  `now` is the present time, as in the files' names."""
        rotated = sorted((stamp <= now, stamp, number, path) for stamp, number, path in self._rotated())
        for *_, path in rotated[: max(0, len(rotated) - self._keep_files)]:
            with suppress(FileNotFoundError):
                path.unlink()

    def _rotated(self) -> Iterator[tuple[str, int, Path]]:
        """Yield the rotated files, each with the time and the number in its name."""
        name = self._path.name
        for path in self._path.parent.iterdir():
            if path.name.startswith(name) and (match := _ROTATED.fullmatch(path.name[len(name) :])):
                yield match[1], int(match[2] or 0), path


def _stamp(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).strftime("%Y%m%dT%H%M%SZ")


def _lock(descriptor: int) -> None:
    """Become the file's only writer.  Raises OSError if another process is the writer.  Does nothing on a file system
    without locks.
    """
    for left in range(_LOCK_TRIES - 1, -1, -1):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN:
                return
            if not left:
                raise OSError(error.errno, "another process writes it") from None
            time.sleep(_LOCK_PAUSE_S)  # noqa: TID251 - on the sink's thread, or before anything is served
        else:
            return


def _is_torn(path: Path) -> bool:
    """Return whether the file ends within a line."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
    return False
