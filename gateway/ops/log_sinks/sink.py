"""What a sink is: it is given whole lines, one batch after the other, and says of each whether it is kept."""

from __future__ import annotations

import logging
from typing import Protocol

_log = logging.getLogger("gateway.log")


class Sink(Protocol):
    """Takes lines.  There is one writer, and it waits for each batch before it gives the next."""

    async def write(self, lines: bytes) -> bool:
        """Keep these lines, each ended by a newline; False when that was given up.  Never raises but CancelledError,
        and then nobody knows."""

    async def close(self) -> None:
        """Let go of what is held open.  Nothing is written after that."""


class Trouble:
    """What is said of a sink that fails: a line when it begins to, and one when it works again, not one a batch."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._said: str | None = None

    def is_so(self, what: str) -> None:
        """The sink fails, for this reason."""
        if what != self._said:
            _log.warning("access log: %s: %s", self._where, what)
        self._said = what

    def is_over(self) -> None:
        """The sink works."""
        if self._said is not None:
            _log.warning("access log: %s: works again", self._where)
        self._said = None
