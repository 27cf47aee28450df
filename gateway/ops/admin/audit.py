"""The audit log of the admin port: one line for each attempted change and each request that failed authorisation.

Lines go to the logger `gateway.admin.audit` at level INFO (done) or WARNING (refused), whatever the level of other
loggers.  A line has the method, the path, the client's address and the status, then what the change was or why it was
refused.  It never has a token, nor the query of a stream, which may hold a signature.

Refusals are bounded, because an unauthorised client can cause any number of them: `REFUSALS_PER_WINDOW` lines in each
`WINDOW_S`.  The first line after a window says how many were left out.
"""

from __future__ import annotations

import logging
from typing import Final

from gateway.aio.clock import Clock
from gateway.ops.admin.endpoint import Refused

WINDOW_S: Final = 10.0
REFUSALS_PER_WINDOW: Final = 20
_SHOWN_CHARS: Final = 200
"""The most characters of a path, prefix or key in a line: an unauthorised client may send one of 32 KiB."""

_log = logging.getLogger("gateway.admin.audit")
_log.setLevel(logging.INFO)


class Audit:
    """Writes the lines.  Owns the count of refusals in the current window."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._window_ends_at = clock.now()
        self._written = 0
        self._left_out = 0

    def __repr__(self) -> str:
        return f"<Audit {self._written} refusals written, {self._left_out} left out>"

    def done(self, method: str, path: str, remote: str | None, status: int, change: str) -> None:
        """Log a `change` that was made or begun; an empty text if the path says all of it."""
        _log.info("%s %s by %s: %d%s", method, path, remote, status, f": {change}" if change else "")

    def refused(self, method: str, path: str, remote: str | None, refused: Refused) -> None:
        """Log a refused change, or a request that failed authorisation."""
        now = self._clock.now()
        if now >= self._window_ends_at:
            if self._left_out:
                _log.warning("%d more refusals since were not written", self._left_out)
            self._window_ends_at = now + WINDOW_S
            self._written = self._left_out = 0
        if self._written == REFUSALS_PER_WINDOW:
            self._left_out += 1
            return
        self._written += 1
        _log.warning("%s %s by %s: %d: %s", method, shortened(path), remote, refused.status, refused)


def shortened(text: str) -> str:
    """The beginning of a client's text, on one line."""
    printable = text if text.isprintable() else ascii(text)
    return printable if len(printable) <= _SHOWN_CHARS else f"{printable[:_SHOWN_CHARS]}…"
