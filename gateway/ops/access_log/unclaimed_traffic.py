"""Counts upstream requests and bytes that belong to no single client request, until a line of the access log includes
them.

Sums are kept by place: route, stream, and partition (readers with equal credentials).  A stream's one live request
serves all of its readers, so the next line of any of these readers claims the sum.  A sum that is not claimed in time
gets a line of its own.  A sum stays unclaimed if the stream has no live readers.  Examples are a stream whose last
reader has left, a write whose client has left, and a stream that was warmed (fetched ahead of its first read).  The
module owns the sums.  It uses no clock and writes no lines.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import RecordedStream

LIVE: Final = frozenset({Mode.LONGPOLL, Mode.SSE})
MOST_PLACES: Final = 4_096
"""The most sums, in addition to the sums of followed streams (streams with a live request at the origin).  Beyond this
number, the oldest sum gets its line before its time.
"""


@dataclass(slots=True)
class Unclaimed:
    """The sum of one place since `since`, in monotonic seconds."""

    place: RecordedStream
    mode: Mode
    """The mode of the upstream requests; a live mode if any of these requests was live."""
    since: float
    requests: int = 0
    fetched_bytes: int = 0


class Ledger:
    """The sums by place, oldest first."""

    def __init__(self, most: int = MOST_PLACES) -> None:
        self._most = most
        self.sums: OrderedDict[RecordedStream, Unclaimed] = OrderedDict()
        """The sums by place.  Callers may test whether this is empty, and must not change it."""

    def __repr__(self) -> str:
        return f"<Ledger {len(self.sums)} unclaimed>"

    def __len__(self) -> int:
        return len(self.sums)

    @property
    def oldest(self) -> float | None:
        """The time at which the oldest sum began; None without sums."""
        first = next(iter(self.sums.values()), None)
        return first.since if first is not None else None

    def add(self, place: RecordedStream, mode: Mode, requests: int, fetched_bytes: int, now: float) -> Unclaimed | None:
        """Add to the sum of a place.  If there are too many sums, returns the oldest sum, for which the caller has to
        write a line.
        """
        found = self.sums.get(place)
        if found is None:
            found = self.sums[place] = Unclaimed(place, mode, now)
        elif mode in LIVE and found.mode not in LIVE:
            found.mode = mode
        found.requests += requests
        found.fetched_bytes += fetched_bytes
        return self.sums.popitem(last=False)[1] if len(self.sums) > self._most else None

    def claim(self, place: RecordedStream) -> Unclaimed | None:
        """Remove and return the sum of a place."""
        return self.sums.pop(place, None)

    def due(self, until: float) -> Iterator[Unclaimed]:
        """Remove and yield the sums that began at `until` or earlier."""
        while self.sums and next(iter(self.sums.values())).since <= until:
            yield self.sums.popitem(last=False)[1]
