"""The interface of a sink, which takes batches of whole lines and reports for each batch whether it was kept."""

from __future__ import annotations

import logging
from typing import Final, Protocol

from gateway.aio.clock import Clock

_log = logging.getLogger("gateway.log")

RECOVERED_S: Final = 10.0
"""Seconds without a failure after which a sink has recovered."""


class Sink(Protocol):
    """Takes batches of lines.  A single writer awaits each batch before it writes the next."""

    async def write(self, lines: bytes) -> bool:
        """Keep these lines, each ended by a newline.  Returns False if the lines are lost.

        Raises only CancelledError, after which it is unknown whether the lines were kept.
        """

    async def close(self) -> None:
        """Release all resources.  No call follows."""


class Trouble:
    """Logs a sink's failures.  It writes one line when the sink begins to fail, and one line when the sink has
    recovered, but no line for each batch.

    On a disk that is nearly full, small batches fit and large ones do not.  A sink has therefore recovered only when no
    batch has failed for `RECOVERED_S` seconds.
    """

    def __init__(self, where: str, clock: Clock) -> None:
        self._where = where
        self._clock = clock
        self._said: str | None = None
        self._failed_at = 0.0

    def failed(self, what: str) -> None:
        """Record that the sink fails for this reason."""
        if what != self._said:
            _log.warning("access log: %s: %s", self._where, what)
        self._said = what
        self._failed_at = self._clock.now()

    def worked(self) -> None:
        """Record that the sink has kept a batch."""
        if self._said is not None and self._clock.now() - self._failed_at >= RECOVERED_S:
            _log.warning("access log: %s: works again", self._where)
            self._said = None
