"""Audit lines: each change and each refusal is one line of a separate logger.

Audit lines are written at every level of the other loggers.  They never contain a token or a signature.  They leave out
a stream's query, because the query may contain a token or a signature.

An unauthorised client can cause any number of refusals.  Therefore at most `REFUSALS_PER_WINDOW` lines about refusals
are written in each `WINDOW_S` seconds.  The first line after a window states the number of lines that were left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 10.0
REFUSALS_PER_WINDOW: Final = 20
_SHOWN_CHARS: Final = 200
"""The maximum number of characters of a path, prefix or key in a line.  An unauthorised client may send up to 32 KiB,
so longer texts are cut."""


def audit_log(name: str) -> logging.Logger:
    """Return the logger with this name.  The log level of its parent does not affect it."""
    log = logging.getLogger(name)
    log.setLevel(logging.INFO)
    return log


AUDIT: Final = audit_log("gateway.audit")
"""The logger for clients' requests."""


class RefusalLines:
    """Writes lines about refusals, and owns their count in the current window.  `now` returns monotonic seconds."""

    def __init__(self, log: logging.Logger, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._window_ends_at = now()
        self._written = 0
        self._left_out = 0

    def __repr__(self) -> str:
        return f"<RefusalLines {self._written} written, {self._left_out} left out>"

    def has_room(self) -> bool:
        """Return whether another line may be written now, and count the line as written or as left out."""
        now = self._now()
        if now >= self._window_ends_at:
            if self._left_out:
                self._log.warning("%d more refusals since were not written", self._left_out)
            self._window_ends_at = now + WINDOW_S
            self._written = self._left_out = 0
        if self._written == REFUSALS_PER_WINDOW:
            self._left_out += 1
            return False
        self._written += 1
        return True

    def write(self, line: str, *arguments: object) -> None:
        """Write a line about a refusal, if the bound allows."""
        if self.has_room():
            self._log.warning(line, *arguments)


def shortened(text: str) -> str:
    """Return the beginning of a client's text, on one line."""
    printable = text if text.isprintable() else ascii(text)
    return printable if len(printable) <= _SHOWN_CHARS else f"{printable[:_SHOWN_CHARS]}…"
