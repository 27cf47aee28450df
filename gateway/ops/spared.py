"""The load that the origin was spared: the shares of clients' reads, and of the bytes they got, that cost it nothing.

    requests spared = 1 - requests sent to origins for reads / reads that clients began
    bytes spared    = 1 - body bytes that origins sent / body bytes of answers before compression

Both sides of a share are counted over the same window.  Reads are catch-up, long-poll, SSE and HEAD on either side;
writes, which cost the origin one request each, are left out.  A request to an origin counts when it is sent, so a read
counts when it begins: the sum is the reads that have ended and the live ones that are open.  Counting only ended reads
would show a thousand newly connected SSE readers as no reads, next to the origin requests that they cause.  A live read
that does not wait, or is relayed, counts when it ends.  Bytes are not split by mode: answers to writes have next to
none.

A window without reads has no requests share; a window without bytes has no bytes share.  A share can be below 0: more
requests went to the origin than reads came to the gateway.  `grafana.spared` has the same definition in PromQL.
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
    """The counts on both sides: since the start, or in a window."""

    reads: int = 0
    """Reads that clients began."""
    origin_requests: int = 0
    """Requests sent to origins for reads."""
    answer_bytes: int = 0
    """Body bytes of answers before compression."""
    origin_bytes: int = 0
    """Body bytes from origins."""

    @classmethod
    def of(cls, routes: Iterable[RouteFigures], downstream_bytes: int) -> Self:
        """The sums over routes since the start; `downstream_bytes` are the body bytes sent to clients."""
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
        """The counts since `before`.  A removed route takes its counts with it, so negative differences become 0."""
        return Tally(
            max(0, self.reads - before.reads),
            max(0, self.origin_requests - before.origin_requests),
            max(0, self.answer_bytes - before.answer_bytes),
            max(0, self.origin_bytes - before.origin_bytes),
        )

    @property
    def requests_spared(self) -> float | None:
        """None without a read; below 0 if more requests went to the origin than reads came."""
        return 1 - self.origin_requests / self.reads if self.reads else None

    @property
    def bytes_spared(self) -> float | None:
        """None without a byte; below 0 if the origin sent more than the clients got."""
        return 1 - self.origin_bytes / self.answer_bytes if self.answer_bytes else None
