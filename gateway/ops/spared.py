"""The load that the origin is spared: the share of clients' reads that cause no request to the origin, and the share of
answered bytes that the origin did not send.

    requests spared = 1 - requests sent to origins for reads / reads that clients began
    bytes spared    = 1 - body bytes that origins sent / body bytes of answers before compression

Both sides of a share are counted over the same window.  Reads are catch-up, long-poll, SSE and HEAD.  Writes are left
out, because the gateway cannot spare the origin a write.

A request to an origin counts when the request is sent.  A read therefore has to count when the read begins: the number
of reads includes the ended reads and the open live reads.  Without the open reads, a thousand new SSE readers would
count as no reads, although their requests to the origin count.  There is one exception: a live read that does not wait,
or is relayed, counts when it ends.  Bytes are not split by mode, because answers to writes have almost no bytes.

The share of requests is undefined if the window has no reads.  The share of bytes is undefined if the window has no
bytes.  A share is below 0 if the origin got more requests than clients began reads, or sent more bytes than the clients
got.  `grafana.spared` has the same definition in PromQL.
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
    """The counts on both sides, since the start or in a window."""

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
        """Return the sums over routes since the start.  `downstream_bytes` are the body bytes sent to clients."""
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
        """Return the counts since `before`.  The counts of a removed route disappear, so negative differences become
        0."""
        return Tally(
            max(0, self.reads - before.reads),
            max(0, self.origin_requests - before.origin_requests),
            max(0, self.answer_bytes - before.answer_bytes),
            max(0, self.origin_bytes - before.origin_bytes),
        )

    @property
    def requests_spared(self) -> float | None:
        """The share of requests spared.  None without a read.  Below 0 if the origin got more requests than the gateway
        got reads.
        """
        return 1 - self.origin_requests / self.reads if self.reads else None

    @property
    def bytes_spared(self) -> float | None:
        """The share of bytes spared.  None without a byte.  Below 0 if the origin sent more than the clients got."""
        return 1 - self.origin_bytes / self.answer_bytes if self.answer_bytes else None
