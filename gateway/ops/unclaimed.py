"""What the origin was asked, and has sent, for nobody in particular, until a line of the access log tells of it.

By place: a stream's one live request is made for all of its readers, so the first line on a live read of that stream
that is written afterwards takes what has gathered.  Where none comes in time, or the stream has no live readers (a
follower lingers, a write was sent on after its client had left, streams are fetched before anybody asks), what has
gathered has a line of its own.

Owner of the sums; knows neither clock nor lines.
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
"""Places of which something waits, beside those of streams that are followed; beyond it the one that waits longest has
its line."""


@dataclass(slots=True)
class Unclaimed:
    """What has gathered for one place since `since` (monotonic seconds)."""

    place: RecordedStream
    mode: Mode
    """How the origin was asked: the live way, where any of it came so."""
    since: float
    requests: int = 0
    fetched_bytes: int = 0


class Ledger:
    """Sums by place, in the order in which they were begun."""

    def __init__(self, most: int = MOST_PLACES) -> None:
        self._most = most
        self._sums: OrderedDict[RecordedStream, Unclaimed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sums)

    @property
    def oldest(self) -> float | None:
        """Since when the first of them has been waiting."""
        first = next(iter(self._sums.values()), None)
        return first.since if first is not None else None

    def add(self, place: RecordedStream, mode: Mode, requests: int, fetched_bytes: int, now: float) -> Unclaimed | None:
        """Add to a place's sum; one that is to have its line for that, because there is no room for another."""
        found = self._sums.get(place)
        if found is None:
            found = self._sums[place] = Unclaimed(place, mode, now)
        elif mode in LIVE and found.mode not in LIVE:
            found.mode = mode
        found.requests += requests
        found.fetched_bytes += fetched_bytes
        return self._sums.popitem(last=False)[1] if len(self._sums) > self._most else None

    def claim(self, place: RecordedStream) -> Unclaimed | None:
        """Take what has gathered for a place."""
        return self._sums.pop(place, None)

    def due(self, until: float) -> Iterator[Unclaimed]:
        """Take, one by one, what has waited since `until` or longer."""
        while self._sums and next(iter(self._sums.values())).since <= until:
            yield self._sums.popitem(last=False)[1]
