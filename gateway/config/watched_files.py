"""Watch files that other programs replace while the gateway serves: certificates, keys, authorities.

A renewal replaces the file, or a symbolic link to its directory, without a signal to the gateway.  So the files are
polled.  A file has changed if its device, inode, size or modification time differs; links are followed.

A certificate and its key are two files, and one is replaced before the other.  So a change is reported once two polls
in a row have seen the same state.  By then the second file is in place too; otherwise it is reported as a further
change.
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
"""Seconds between two polls."""

Stamp = tuple[tuple[str, tuple[int, int, int, int] | None], ...]
"""State of some files: the path of each, with device, inode, size in bytes and modification time in nanoseconds, or
None for a file that cannot be examined."""


def stamp(files: Iterable[str]) -> Stamp:
    """The current state of the files.  Blocks on the disk."""
    return tuple((file, _state(file)) for file in files)


def _state(file: str) -> tuple[int, int, int, int] | None:
    try:
        state = os.stat(file)  # noqa: PTH116 - the configured text may not be a valid path
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


class Watch:
    """Calls `changed` once for each change of the files; every poll calls `files` for their paths.

    If `changed` raises ConfigReadTimeout, it is called again after the next poll.

    The disk may hang, so polls run in a `ConfigReader`'s thread.
    """

    def __init__(
        self, files: Callable[[], tuple[str, ...]], changed: Callable[[], Awaitable[object]], clock: Clock
    ) -> None:
        self._files = files
        self._changed = changed
        self._clock = clock
        self._paths: tuple[str, ...] = ()
        # One reader for all polls, so that a disk that hangs blocks one thread only.
        self._reader = ConfigReader(lambda: stamp(self._paths), clock)
        self.polls = 0
        """Polls that have ended."""

    def __repr__(self) -> str:
        return f"<Watch {len(self._files())} files, {self.polls} polls>"

    async def run(self, known: Stamp | None = None) -> None:
        """Poll until cancelled.

        `known` is the `stamp` of the files before they were read, so a change since then is reported.  Without it the
        first poll is the baseline.
        """
        seen = await self._poll()
        known = seen if known is None else known
        while True:
            await pause(self._clock, POLL_S)
            before, seen = seen, await self._poll()
            if seen is not None and seen == before and seen != known:
                # Report each change once, even if the files cannot be used: their repair is a further change.
                # Files that were not read in time change no further, so they are reported again.
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
