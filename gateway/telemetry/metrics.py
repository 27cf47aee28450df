"""The metrics interface of the request path.

The engine and the layers below it use a `MetricsRecorder`.  In production this is `gateway.ops.metrics.Metrics`.  All
calls are synchronous and cheap, and never fail.  State that can be read at any time is not reported here, but is read
when the metrics are scraped.  Examples are shared fetches, streams in memory, and connections.  `NoMetrics` only counts
calls, for tests.

The label of a route is its configured name, so the number of labels is bounded.  `NO_ROUTE` stands for requests without
a route.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple, Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode

NO_ROUTE: Final = "-"
"""The label for requests without a route.  No route can have this name."""


class Sent(NamedTuple):
    """The size of the part of an answer that was sent to a client, and the time until its start."""

    first_byte_s: float | None = None
    """Seconds from reading the request to the start of the answer; None without an answer."""
    body_bytes: int = 0
    """Body bytes given to the connection."""
    saved_bytes: int = 0
    """Bytes that content coding saved."""


NOTHING_SENT: Final = Sent()


class MetricsRecorder(Protocol):
    """Receives events of the request path."""

    def request(
        self,
        mode: Mode,
        outcome: Outcome,
        duration_s: float,
        route: str = NO_ROUTE,
        sent: Sent = NOTHING_SENT,
        *,
        trace_id: str | None = None,
        requests: int = 1,
    ) -> None:
        """Count a client's request.  `duration_s` is the time from reading the request until it was answered, or until
        its connection was dropped.

        `trace_id` is the trace's 32 hex digits, if there is a trace.  `requests` is the number of requests that got the
        same answer.
        """

    def hits(
        self, mode: Mode, outcome: Outcome, n: int, body_bytes: int, route: str = NO_ROUTE, *, saved_bytes: int = 0
    ) -> None:
        """Count `n` answers that were repeated from memory, with `body_bytes` bytes in all.  Such answers are reported
        in batches, shortly after they were sent.
        """

    def upstream_request(self, mode: Mode, route: str = NO_ROUTE) -> None:
        """Count an attempt to send a request to the origin."""

    def upstream_head(self, mode: Mode, status: int, first_byte_s: float, route: str = NO_ROUTE) -> None:
        """Count the head of an origin's answer, which arrived `first_byte_s` seconds after the gateway began to send
        the request."""

    def upstream_failure(self, mode: Mode, fault: str, route: str = NO_ROUTE) -> None:
        """Count a failed request to the origin.  `fault` is the name of the error's class."""

    def upstream_bytes(self, n: int, mode: Mode = Mode.OTHER, route: str = NO_ROUTE) -> None:
        """Count body bytes received from the origin."""

    def downstream_bytes(self, n: int) -> None:
        """Count body bytes given to a client's connection."""

    def subscribers(self, mode: Mode, delta: int, route: str = NO_ROUTE) -> None:
        """Count live clients that arrived (positive) or left (negative)."""

    def delivered(self, readers: int, delay_s: float, route: str = NO_ROUTE) -> None:
        """Count the delivery of a stream's new bytes to `readers` live readers, `delay_s` after the bytes arrived from
        the origin.
        """

    def eviction(self, n: int = 1, route: str = NO_ROUTE) -> None:
        """Count tapes (streams in memory) that were dropped to stay within the byte budget."""

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        """Count a body of `plain_bytes` that was compressed to `coded_bytes`, once for all its readers."""

    def slow_consumer(self, *, is_closed: bool = True) -> None:
        """Count a client that did not keep up.  If `is_closed`, the client was disconnected.  Otherwise, it now reads
        from the tape at its own pace.
        """

    def client_limited(self, limit: str) -> None:
        """Count a request that was refused, or a client that was dropped, because of a limit per client.  `limit` is
        the key in the section `limits`."""

    def unshared(self, reason: str, route: str = NO_ROUTE) -> None:
        """Count a read that was relayed because the origin's answers may not be shared.  `reason` comes from a fixed
        set.
        """

    def rate_limited(self, limit: str, route: str = NO_ROUTE) -> None:
        """Count a request that the configured rate limit with this name has refused."""

    def retry(self, route: str = NO_ROUTE) -> None:
        """Count a retry of a request to the origin."""

    def reconnect(self, route: str = NO_ROUTE, *, is_planned: bool) -> None:
        """Count a live request to the origin that ended and is sent again.  If not `is_planned`, it ended by a
        failure."""

    def log_drops(self, n: int = 1) -> None:
        """Count access-log records that were dropped because the sink was too slow."""


class NoMetrics:
    """A `MetricsRecorder` for tests.  The keys of `counts` are tuples of words, such as `("request", "catchup", "hit")`
    or `("retry",)`.

    The keys leave out the route, because tests use one route.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()

    def request(
        self,
        mode: Mode,
        outcome: Outcome,
        duration_s: float,
        route: str = NO_ROUTE,
        sent: Sent = NOTHING_SENT,
        *,
        trace_id: str | None = None,
        requests: int = 1,
    ) -> None:
        self.counts["request", mode.value, outcome.value] += requests

    def hits(
        self, mode: Mode, outcome: Outcome, n: int, body_bytes: int, route: str = NO_ROUTE, *, saved_bytes: int = 0
    ) -> None:
        self.counts["request", mode.value, outcome.value] += n
        self.counts["downstream_bytes",] += body_bytes

    def upstream_request(self, mode: Mode, route: str = NO_ROUTE) -> None:
        self.counts["upstream_request", mode.value] += 1

    def upstream_head(self, mode: Mode, status: int, first_byte_s: float, route: str = NO_ROUTE) -> None:
        self.counts["upstream_head", mode.value, f"{status // 100}xx"] += 1

    def upstream_failure(self, mode: Mode, fault: str, route: str = NO_ROUTE) -> None:
        self.counts["upstream_failure", mode.value, fault] += 1

    def upstream_bytes(self, n: int, mode: Mode = Mode.OTHER, route: str = NO_ROUTE) -> None:
        self.counts["upstream_bytes",] += n

    def downstream_bytes(self, n: int) -> None:
        self.counts["downstream_bytes",] += n

    def subscribers(self, mode: Mode, delta: int, route: str = NO_ROUTE) -> None:
        self.counts["subscribers", mode.value] += delta

    def delivered(self, readers: int, delay_s: float, route: str = NO_ROUTE) -> None:
        self.counts["delivered",] += readers

    def eviction(self, n: int = 1, route: str = NO_ROUTE) -> None:
        self.counts["eviction",] += n

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        self.counts["coded", coding.value] += 1

    def slow_consumer(self, *, is_closed: bool = True) -> None:
        self.counts["slow_consumer", "closed" if is_closed else "moved"] += 1

    def client_limited(self, limit: str) -> None:
        self.counts["client_limited", limit] += 1

    def unshared(self, reason: str, route: str = NO_ROUTE) -> None:
        self.counts["unshared", reason] += 1

    def rate_limited(self, limit: str, route: str = NO_ROUTE) -> None:
        self.counts["rate_limited", limit] += 1

    def retry(self, route: str = NO_ROUTE) -> None:
        self.counts["retry",] += 1

    def reconnect(self, route: str = NO_ROUTE, *, is_planned: bool) -> None:
        self.counts["reconnect", "planned" if is_planned else "lost"] += 1

    def log_drops(self, n: int = 1) -> None:
        self.counts["log_drops",] += n
