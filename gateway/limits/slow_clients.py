"""Slow clients: one that sends a body or reads an answer makes steady progress, or it is dropped.

A bound on silence alone is met by one byte now and then.  An upload is measured over the whole time that was spent
waiting for the client, so that the origin's slowness does not count; reading is measured window by window, and only
while bytes wait for the client.  The first seconds of an upload are free: connections begin slowly.  The connections
drop the client, by `Clients.keeps_up`: `gateway.server.timeouts` over HTTP/1.1, over HTTP/2
`gateway.server.http2.timeouts` and, for one stream, `gateway.server.http2.channel`.
"""

from __future__ import annotations

import math
from typing import Final

GRACE_S: Final = 5.0
"""How long an upload may be slower than the least rate at its beginning."""


def upload_time_left(waited_s: float, received_bytes: int, min_rate: int, idle_timeout_s: float) -> float:
    """Seconds that an upload may go on waiting for its client, before it is slower than `min_rate` bytes a second;
    infinite if there is no least rate.

    `waited_s` is the time already spent waiting in all.  The grace is not longer than `idle_timeout_s`.
    """
    if not min_rate:
        return math.inf
    return min(GRACE_S, idle_timeout_s) + received_bytes / min_rate - waited_s


def keeps_up(taken_bytes: int, window_s: float, min_rate: int) -> bool:
    """Whether a client that took this many bytes in a window, while more waited for it, keeps up with `min_rate` bytes
    a second.  Without a least rate any progress will do."""
    return taken_bytes > 0 and taken_bytes >= window_s * min_rate


class ReadingWindow:
    """How much a client takes while bytes wait for it, in a window of waiting time.

    Time in which nothing waits does not count, so the window may be spread over many short waits: a small buffer that
    is emptied in time, again and again, is still read slowly.  `now` is seconds of any clock.
    """

    __slots__ = ("_began", "_taken_bytes", "_unsent_bytes", "_waited_s")

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._taken_bytes = 0
        self._began = 0.0
        self._unsent_bytes = 0

    def __repr__(self) -> str:
        return f"<ReadingWindow {self._taken_bytes} bytes in {self._waited_s:g} s>"

    def start_waiting(self, unsent_bytes: int, now: float, window_s: float) -> float:
        """Bytes begin to wait; returns the seconds until the end of the window."""
        self._began, self._unsent_bytes = now, unsent_bytes
        return window_s - self._waited_s

    def stop_waiting(self, unsent_bytes: int, now: float) -> None:
        """They wait no longer, or are counted anew; `start_waiting` must precede."""
        self._waited_s += now - self._began
        self._taken_bytes += self._unsent_bytes - unsent_bytes

    def take_window(self) -> int:
        """The bytes taken in the window that is over; another one begins."""
        taken, self._taken_bytes, self._waited_s = self._taken_bytes, 0, 0.0
        return taken
