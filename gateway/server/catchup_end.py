"""Ending a relayed SSE replay once its reader has caught up.

The origin itself replays a stream whose bytes no tape can hold, to each reader separately.  Once such a reader is up to
date, the gateway ends its connection in order.  The reader comes back at the tail and shares the stream's one live
request there; otherwise the origin would hold one live connection for each such reader.
"""

from __future__ import annotations

from typing import Final

from gateway.protocol.names import EVENT_CONTROL
from gateway.protocol.sse import SseParser, SseTooLarge, parse_control

_KEPT_BYTES: Final = 1 << 13
"""Longer than any control event; the bytes kept from the end of the body.  Data events may be of any size."""


class CatchUpEnd:
    """Finds the first chunk of an SSE body (section 5.8) that ends with a control event marked up to date."""

    __slots__ = ("_kept", "is_reached")

    def __init__(self) -> None:
        self._kept = b""
        self.is_reached = False

    def see(self, chunk: bytes) -> None:
        """Look at the next chunk of the body."""
        self._kept = (self._kept + chunk)[-_KEPT_BYTES:]
        self.is_reached = _is_up_to_date(self._kept)


def _is_up_to_date(end: bytes) -> bool:
    lines = end.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if not lines.endswith(b"\n\n"):
        return False
    start = lines.rfind(b"\n\n", 0, -2)
    try:
        events = SseParser(_KEPT_BYTES).feed(lines[start + 2 if start >= 0 else 0 :])
        return any(event.name == EVENT_CONTROL and parse_control(event.data).up_to_date for event in events)
    except (SseTooLarge, ValueError):
        # The relay does not judge the body: go on until the origin ends it.
        return False
