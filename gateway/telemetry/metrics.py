"""The metrics interface of the request path.

The engine and the layers below it take a `MetricsRecorder`; production uses `gateway.ops.metrics.Metrics`.  Every call
is synchronous and cheap and never fails.  State that can be read at any time (flights, tapes, connections) is not
reported here; it is read at scrape time.  `NoMetrics` only counts calls, for tests.

Routes are labelled with their configured names, which bounds the number of labels.  `NO_ROUTE` stands for requests
without a route, or before one was chosen.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple, Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode

NO_ROUTE: Final = "-"
"""No route can have this name."""


class Sent(NamedTuple):
    """How much of an answer a client was sent, and when."""

    first_byte_s: float | None = None
    """The time from reading the request to the start of the answer; None if there was none."""
    body_bytes: int = 0
    """The body bytes handed to the connection."""
    saved_bytes: int = 0
    """The bytes that content coding saved."""


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
        """A client's request was answered, or its connection dropped, `duration_s` after it was read.

        `trace_id` is the trace's 32 hex digits, if there is a trace.  `requests` counts requests answered identically.
        """

    def hits(
        self, mode: Mode, outcome: Outcome, n: int, body_bytes: int, route: str = NO_ROUTE, *, saved_bytes: int = 0
    ) -> None:
        """`n` requests were answered from memory, with `body_bytes` in all; reported together, a little later."""

    def upstream_request(self, mode: Mode, route: str = NO_ROUTE) -> None:
        """A request is being sent to the origin; each attempt counts."""

    def upstream_head(self, mode: Mode, status: int, first_byte_s: float, route: str = NO_ROUTE) -> None:
        """The head of the origin's answer arrived, `first_byte_s` after sending began."""

    def upstream_failure(self, mode: Mode, fault: str, route: str = NO_ROUTE) -> None:
        """A request to the origin failed; `fault` is the name of the error's class."""

    def upstream_bytes(self, n: int, mode: Mode = Mode.OTHER, route: str = NO_ROUTE) -> None:
        """Body bytes were received from the origin."""

    def downstream_bytes(self, n: int) -> None:
        """Body bytes were handed to a client's connection."""

    def subscribers(self, mode: Mode, delta: int, route: str = NO_ROUTE) -> None:
        """Live clients arrived (positive) or left (negative)."""

    def delivered(self, readers: int, delay_s: float, route: str = NO_ROUTE) -> None:
        """Bytes from a follower were handed to `readers` live readers, `delay_s` after they arrived."""

    def cache(self, bytes_: int, tapes: int) -> None:
        """The current contents of the cache: stream bytes, and the number of tapes."""

    def eviction(self, n: int = 1, route: str = NO_ROUTE) -> None:
        """Tapes were dropped to stay within the byte budget."""

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        """A body of `plain_bytes` was compressed to `coded_bytes`, once for all its readers."""

    def slow_consumer(self, *, is_closed: bool = True) -> None:
        """A client did not keep up: it was closed, or moved back to reading from the tape at its own pace."""

    def client_limited(self, limit: str) -> None:
        """A request was refused, or its client dropped, by a limit per client; `limit` is its key in the section
        `limits`."""

    def unshared(self, reason: str, route: str = NO_ROUTE) -> None:
        """A read was relayed because answers of the origin may not be shared; `reason` is one of a fixed set."""

    def rate_limited(self, limit: str, route: str = NO_ROUTE) -> None:
        """A request was refused by the configured rate limit of this name."""

    def retry(self, route: str = NO_ROUTE) -> None:
        """A request to the origin is being retried."""

    def reconnect(self, route: str = NO_ROUTE, *, is_planned: bool) -> None:
        """A follower's live request ended, as planned or by a failure, and is being sent again."""

    def log_drops(self, n: int = 1) -> None:
        """Access-log records were dropped because the sink did not keep up."""


class NoMetrics:
    """A `MetricsRecorder` for tests: `counts` by tuples of words, such as `("request", "catchup", "hit")` or
    `("retry",)`.

    Routes are left out, because tests use one.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.cache_bytes = 0
        self.tapes = 0

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

    def cache(self, bytes_: int, tapes: int) -> None:
        self.cache_bytes = bytes_
        self.tapes = tapes

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
