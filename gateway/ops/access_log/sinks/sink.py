"""The interface of a sink, which takes batches of whole lines and reports for each batch whether it was kept."""

from __future__ import annotations

import logging
from typing import Protocol

_log = logging.getLogger("gateway.log")


class Sink(Protocol):
    """Takes batches of lines.  A single writer awaits each batch before it writes the next."""

    async def write(self, lines: bytes) -> bool:
        """Keep these lines, each ended by a newline.  Returns False if the lines are lost.

        Raises only CancelledError, after which it is unknown whether the lines were kept.
        """

    async def close(self) -> None:
        """Release all resources.  No call follows."""


class Trouble:
    """Logs a sink's failures.  It writes one line when the sink begins to fail, and one line when the sink recovers,
    but no line for each batch.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._said: str | None = None

    def failed(self, what: str) -> None:
        """Record that the sink fails for this reason."""
        if what != self._said:
            _log.warning("access log: %s: %s", self._where, what)
        self._said = what

    def recovered(self) -> None:
        """Record that the sink works."""
        if self._said is not None:
            _log.warning("access log: %s: works again", self._where)
        self._said = None
