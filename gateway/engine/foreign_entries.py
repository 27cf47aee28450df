"""The entries in Redis that no member of this fleet has made.  They are ignored, counted, and reported in the log."""

from __future__ import annotations

import logging
from typing import Final

from gateway.aio.clock import Clock

_LOG_S: Final = 60.0
"""The least seconds between two lines about such entries."""

_log = logging.getLogger("gateway.fleet")


class ForeignEntries:
    """Counts the entries that this process ignores."""

    def __init__(self, shown: str, clock: Clock) -> None:
        """`shown` is the address of Redis, for the operator."""
        self._shown = shown
        self._clock = clock
        self._logged_at: float | None = None
        self.count = 0
        """How many entries were ignored.  An entry that is read again counts again."""

    def __repr__(self) -> str:
        return f"<ForeignEntries {self.count}>"

    def ignore(self) -> None:
        """Record that an entry is ignored."""
        self.count += 1
        now = self._clock.now()
        if self._logged_at is None or now >= self._logged_at + _LOG_S:
            self._logged_at = now
            why = "no member of this fleet has made them"
            _log.error("fleet.redis at %s: entries there are ignored, because %s", self._shown, why)
