"""What the request path tells about itself, without knowing who listens.

The engine and the layers below it take a `MetricsRecorder`; `gateway.ops.metrics.Metrics` is the one in production.  Every
call is synchronous, cheap and never fails.  What has a state that can be looked at (flights, tapes, connections) is
not told here: it is read when somebody asks.  `NoMetrics` listens and says nothing: tests read its counts.

Routes are named as the configuration names them, so that there are only so many; `NO_ROUTE` stands for what was asked
where no route is, or was not yet chosen.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode

NO_ROUTE: Final = "-"
"""No route can be called so."""


class MetricsRecorder(Protocol):
    """Takes note of what happened."""

    def request(
        self,
        mode: Mode,
        outcome: Outcome,
        duration_s: float,
        route: str = NO_ROUTE,
        *,
        first_byte_s: float | None = None,
        sent_bytes: int = 0,
        saved_bytes: int = 0,
        trace_id: str | None = None,
        requests: int = 1,
    ) -> None:
        """A client's request has been answered, or its connection dropped, `duration_s` after it was read.

        `first_byte_s` is how long after the reading its answer began, None where it never did; `sent_bytes` are those
        of its body that were handed to the connection, `saved_bytes` how many more the body had before it was coded;
        `trace_id` is the trace's 32 hex digits, where it is in one.  `requests` are so many that were all answered so.
        """

    def hits(
        self, mode: Mode, outcome: Outcome, n: int, body_bytes: int, route: str = NO_ROUTE, *, saved_bytes: int = 0
    ) -> None:
        """`n` requests have been answered at once, with `body_bytes` in all: counted together, a little later."""

    def upstream_request(self, mode: Mode, route: str = NO_ROUTE) -> None:
        """A request is being sent to the origin; each try counts."""

    def upstream_head(self, mode: Mode, status: int, first_byte_s: float, route: str = NO_ROUTE) -> None:
        """The head of the origin's answer has come, `first_byte_s` after the request began to be sent."""

    def upstream_failure(self, mode: Mode, fault: str, route: str = NO_ROUTE) -> None:
        """A request to the origin came to nothing; `fault` is the name of the error's class."""

    def upstream_bytes(self, n: int, mode: Mode = Mode.OTHER, route: str = NO_ROUTE) -> None:
        """Body bytes have come from the origin."""

    def downstream_bytes(self, n: int) -> None:
        """Body bytes have been handed to a client's connection."""

    def subscribers(self, mode: Mode, delta: int, route: str = NO_ROUTE) -> None:
        """Live clients have come (positive) or gone (negative)."""

    def delivered(self, readers: int, delay_s: float, route: str = NO_ROUTE) -> None:
        """What a follower had brought was handed to so many live readers, `delay_s` after it came."""

    def cache(self, bytes_: int, tapes: int) -> None:
        """What the tapes hold now: stream bytes, and how many tapes."""

    def eviction(self, n: int = 1, route: str = NO_ROUTE) -> None:
        """Tapes have been dropped to stay within the byte budget."""

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        """A body of `plain_bytes` has been compressed to `coded_bytes`, once for all who will ask for it."""

    def slow_consumer(self, *, is_closed: bool = True) -> None:
        """A client did not keep up: it was closed, or sent back to read from the tape at its own pace."""

    def retry(self, route: str = NO_ROUTE) -> None:
        """A request to the origin is being tried again."""

    def reconnect(self, route: str = NO_ROUTE, *, is_planned: bool) -> None:
        """A follower's live request has ended, as planned or by a failure, and is made anew."""

    def log_drops(self, n: int = 1) -> None:
        """Records of the access log were given up, because those before them were not taken fast enough."""


class NoMetrics:
    """A `MetricsRecorder` for tests: `counts` by tuples of words, such as `("request", "catchup", "hit")` or `("retry",)`.

    Routes are left out, because what is tested with it has one.
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
        *,
        first_byte_s: float | None = None,
        sent_bytes: int = 0,
        saved_bytes: int = 0,
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

    def retry(self, route: str = NO_ROUTE) -> None:
        self.counts["retry",] += 1

    def reconnect(self, route: str = NO_ROUTE, *, is_planned: bool) -> None:
        self.counts["reconnect", "planned" if is_planned else "lost"] += 1

    def log_drops(self, n: int = 1) -> None:
        self.counts["log_drops",] += n
