"""Upstream requests and bytes that belong to no single client request, until a line of the access log has them.

Sums are kept by place (route, stream, partition).  A stream's one live request serves all of its readers, so the next
line of a live read of that stream claims the sum.  If none comes in time, or the stream has no live readers (a follower
lingers, a write went on after its client had left, warming fetched the stream), the sum gets a line of its own.

Owns the sums; knows neither clock nor lines.
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
"""Bound on the sums, beyond those of followed streams; past it the oldest sum gets its line early."""


@dataclass(slots=True)
class Unclaimed:
    """The sum of one place since `since` (monotonic seconds)."""

    place: RecordedStream
    mode: Mode
    """Mode of the upstream requests; a live mode if any of them was live."""
    since: float
    requests: int = 0
    fetched_bytes: int = 0


class Ledger:
    """Sums by place, in the order in which they were begun.  Owns them."""

    def __init__(self, most: int = MOST_PLACES) -> None:
        self._most = most
        self.sums: OrderedDict[RecordedStream, Unclaimed] = OrderedDict()
        """The sums.  Callers look whether there are any, and change nothing."""

    def __repr__(self) -> str:
        return f"<Ledger {len(self.sums)} unclaimed>"

    def __len__(self) -> int:
        return len(self.sums)

    @property
    def oldest(self) -> float | None:
        """When the oldest sum was begun; None without sums."""
        first = next(iter(self.sums.values()), None)
        return first.since if first is not None else None

    def add(self, place: RecordedStream, mode: Mode, requests: int, fetched_bytes: int, now: float) -> Unclaimed | None:
        """Add to the sum of a place.  Returns the oldest sum if there are too many: it needs a line now."""
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
        """Remove and yield the sums begun at `until` or earlier."""
        while self.sums and next(iter(self.sums.values())).since <= until:
            yield self.sums.popitem(last=False)[1]
