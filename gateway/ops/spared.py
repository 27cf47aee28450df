"""What the origin was spared: the shares of clients' reads, and of the bytes they got, that cost it nothing.

    requests spared = 1 - requests sent to origins for reads / reads that clients began
    bytes spared    = 1 - body bytes that origins sent / body bytes of answers before they were coded

Both sides of a share are counted over one window.  Reads are catch-up, long-poll, SSE and HEAD on either side; writes,
which cost the origin one request each, are left out.  A request to an origin counts when it is sent, so a read counts
when it begins: reads that have ended, and live ones that are open.  By ended reads alone, a thousand SSE readers who
come would be no reads beside the origin requests that they cause.  A live read that waits for nothing, or is relayed,
counts when it ends.  Of bytes no mode is told apart: answers to writes have next to none.

A window without reads has no share, nor has one without bytes.  A share below 0 is one: the origin was asked more often
than the gateway.  `grafana.spared` says the same in PromQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from gateway.ops.figures import RouteFigures
from gateway.protocol.mode import Mode

READ_MODES: Final = frozenset({Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE, Mode.HEAD})


@dataclass(frozen=True, slots=True)
class Tally:
    """What was counted on both sides: since the start, or in a window."""

    reads: int = 0
    """Reads that clients began."""
    origin_requests: int = 0
    """Requests sent to origins for reads."""
    answer_bytes: int = 0
    """Body bytes of answers before they were coded."""
    origin_bytes: int = 0
    """Body bytes from origins."""

    @classmethod
    def of(cls, routes: Iterable[RouteFigures], downstream_bytes: int) -> Self:
        """The sums over routes since the start; `downstream_bytes` are body bytes as they went to clients."""
        reads = origin_requests = saved_bytes = origin_bytes = 0
        for figures in routes:
            for (mode, _), end in figures.ends.items():
                saved_bytes += end.saved_bytes
                if mode in READ_MODES:
                    reads += end.requests
            reads += sum(open_.value for open_ in figures.subscribers.values())
            for mode in READ_MODES:
                origin_requests += figures.upstream_requests[mode].value
            origin_bytes += sum(count.value for count in figures.upstream_bytes.values())
        return cls(reads, origin_requests, downstream_bytes + saved_bytes, origin_bytes)

    def since(self, before: Tally) -> Tally:
        """What came after `before`.  A route that is gone has taken its counts with it: nothing is less than 0."""
        return Tally(
            max(0, self.reads - before.reads),
            max(0, self.origin_requests - before.origin_requests),
            max(0, self.answer_bytes - before.answer_bytes),
            max(0, self.origin_bytes - before.origin_bytes),
        )

    @property
    def requests_spared(self) -> float | None:
        """None without a read; below 0 where the origin was asked more often than the gateway."""
        return 1 - self.origin_requests / self.reads if self.reads else None

    @property
    def bytes_spared(self) -> float | None:
        """None without a byte; below 0 where the origin sent more than readers got."""
        return 1 - self.origin_bytes / self.answer_bytes if self.answer_bytes else None
