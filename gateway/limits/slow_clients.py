"""The rule for slow clients: the gateway drops a client that sends a body, or reads an answer, too slowly.

A timeout for silence is not enough, because a client could send or read one byte now and then.  Both directions
therefore have a least rate.  The rate of an upload is measured over the time that the gateway waits for the client, so
the slowness of an origin does not count.  The least rate does not apply in the first seconds, because connections start
slowly.  The rate of reading is measured in windows, and only while bytes wait for the client.

The connections enforce the rule: `gateway.server.timeouts` for HTTP/1.1, `gateway.server.http2.timeouts` for HTTP/2,
and `gateway.server.http2.channel` for one HTTP/2 stream.
"""

from __future__ import annotations

import math
from typing import Final

GRACE_S: Final = 5.0
"""The seconds at the beginning of an upload in which the least rate does not apply."""


def upload_time_left(waited_s: float, received_bytes: int, min_rate: int, idle_timeout_s: float) -> float:
    """Return the seconds that an upload may still wait for its client, at a least rate of `min_rate` bytes a second.

    `waited_s` is the time for which the gateway has already waited.  The grace time is at most `idle_timeout_s`.  If
    `min_rate` is 0, there is no least rate, and the result is infinite.
    """
    if not min_rate:
        return math.inf
    return min(GRACE_S, idle_timeout_s) + received_bytes / min_rate - waited_s


def keeps_up(taken_bytes: int, window_s: float, min_rate: int) -> bool:
    """Return whether a client that has taken `taken_bytes` in a window meets the least rate, `min_rate` bytes a second.

    If `min_rate` is 0, one byte is enough.
    """
    return taken_bytes > 0 and taken_bytes >= window_s * min_rate


class ReadingWindow:
    """Counts the bytes that a client takes within a window of waiting time.

    Only time in which bytes wait for the client counts, so one window may consist of many short waits.  Such windows
    detect a client that repeatedly empties a small buffer slowly.  `now` is the seconds of any clock.
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
        """Record that bytes begin to wait for the client; return the seconds until the end of the window."""
        self._began, self._unsent_bytes = now, unsent_bytes
        return window_s - self._waited_s

    def stop_waiting(self, unsent_bytes: int, now: float) -> None:
        """Record the end of a wait that `start_waiting` began, and the number of bytes that are still unsent."""
        self._waited_s += now - self._began
        self._taken_bytes += self._unsent_bytes - unsent_bytes

    def take_window(self) -> int:
        """Return the bytes taken in the window, and begin a new window."""
        taken, self._taken_bytes, self._waited_s = self._taken_bytes, 0, 0.0
        return taken
