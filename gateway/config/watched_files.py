"""Watches files that other programs replace while the gateway serves: certificates, keys, authorities.

A renewal replaces a file, or a symbolic link to its directory, without a signal to the gateway.  Therefore the files
are polled.  A file has changed if its device, inode, size or modification time differs.  Links are followed.

A certificate and its key are two files, which are not replaced at the same moment.  Therefore a change is reported only
when two polls in a row have found the same state.  If the second file is replaced later, another change is reported.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from gateway.aio.clock import Clock, pause
from gateway.config.errors import ConfigError
from gateway.config.reader import ConfigReader, ConfigReadTimeout

POLL_S: Final = 5.0
"""The seconds between two polls."""

Stamp = tuple[tuple[str, tuple[int, int, int, int] | None], ...]
"""The state of some files: for each path the device, the inode, the size in bytes, and the modification time in
nanoseconds; or None if the file cannot be examined."""


def stamp(files: Iterable[str]) -> Stamp:
    """Return the current state of the files.  Blocks on the disk."""
    return tuple((file, _state(file)) for file in files)


def _state(file: str) -> tuple[int, int, int, int] | None:
    try:
        state = os.stat(file)  # noqa: PTH116 - the configured text may not be a valid path
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


class Watch:
    """Calls `changed` once for each change of the files.  Each poll calls `files` for their paths.

    If `changed` raises ConfigReadTimeout, it is called again after the next poll.  Polls run in a thread, because the
    disk may hang.
    """

    def __init__(
        self, files: Callable[[], tuple[str, ...]], changed: Callable[[], Awaitable[object]], clock: Clock
    ) -> None:
        self._files = files
        self._changed = changed
        self._clock = clock
        self._paths: tuple[str, ...] = ()
        # One reader for all polls, so that a disk that hangs blocks only one thread.
        self._reader = ConfigReader(lambda: stamp(self._paths), clock)
        self.polls = 0
        """The number of completed polls."""

    def __repr__(self) -> str:
        return f"<Watch {len(self._files())} files, {self.polls} polls>"

    async def run(self, known: Stamp | None = None) -> None:
        """Poll until cancelled.

        `known` is the `stamp` of the files from before they were read.  Without it, changes are reported relative to
        the first poll.
        """
        seen = await self._poll()
        known = seen if known is None else known
        while True:
            await pause(self._clock, POLL_S)
            before, seen = seen, await self._poll()
            if seen is not None and seen == before and seen != known:
                # Report each change only once, even if the files are unusable: their repair is another change.  But
                # report the same state again if the files were not read in time.
                with suppress(ConfigReadTimeout):
                    await self._changed()
                    known = seen

    async def _poll(self) -> Stamp | None:
        self._paths = self._files()
        try:
            return await self._reader.read() if self._paths else ()
        except ConfigError:
            return None  # the disk hangs; the next poll tries again
        finally:
            self.polls += 1
