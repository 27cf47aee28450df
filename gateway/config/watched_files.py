"""Files that others replace while the gateway serves: certificates, keys, authorities.

Whoever renews a certificate replaces its file, or a link to the directory that it is in, and tells nobody.  So the
files are looked at from time to time.  A file is another one when its device, inode, size or time of change is another;
links are followed.

Certificate and key are two files, and one is replaced before the other.  A change is therefore told when two looks in a
row have seen the same: by then the other file has come too, or is told as a change of its own.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from gateway.aio.clock import Clock, pause
from gateway.config.errors import ConfigError
from gateway.config.reader import ConfigReader

LOOK_S: Final = 5.0
"""Time between two looks."""

Stamp = tuple[tuple[str, tuple[int, int, int, int] | None], ...]
"""What tells one state of some files from another: of each its path, device, inode, size in bytes and time of change in
nanoseconds; None for what cannot be looked at."""


def stamp(files: Iterable[str]) -> Stamp:
    """The files as they are now.  Waits for the disk."""
    return tuple((file, _state(file)) for file in files)


def _state(file: str) -> tuple[int, int, int, int] | None:
    try:
        state = os.stat(file)  # noqa: PTH116 - what an operator has written may be no path at all
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


class Watch:
    """Calls `changed` once for each change of `files`, which names them anew for every look.

    The disk may not answer: it is looked at in a thread that nobody waits for.
    """

    def __init__(
        self, files: Callable[[], tuple[str, ...]], changed: Callable[[], Awaitable[object]], clock: Clock
    ) -> None:
        self._files = files
        self._changed = changed
        self._clock = clock
        self._asked: tuple[str, ...] = ()
        # One for all looks: while the disk does not answer, it is asked once.
        self._reader = ConfigReader(lambda: stamp(self._asked), clock)
        self.looks = 0
        """How many have come back."""

    def __repr__(self) -> str:
        return f"<Watch {len(self._files())} files, {self.looks} looks>"

    async def run(self, known: Stamp | None = None) -> None:
        """Look, and look again, until cancelled.

        `known` is the `stamp` of the files from before they were read: what has changed since is a change.
        """
        seen = await self._look()
        known = seen if known is None else known
        while True:
            await pause(self._clock, LOOK_S)
            before, seen = seen, await self._look()
            if seen is not None and seen == before and seen != known:
                # Told once, be the files of use or not: the next change is told again.
                known = seen
                await self._changed()

    async def _look(self) -> Stamp | None:
        self._asked = self._files()
        try:
            return await self._reader.read() if self._asked else ()
        except ConfigError:
            return None  # the disk does not answer; it may next time
        finally:
            self.looks += 1
