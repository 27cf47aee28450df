"""What the request path tells about itself, without knowing who listens.

The engine and the layers below it take a `Recorder`; `gateway.ops.metrics.Metrics` is the one in production.  Every
call is synchronous, cheap and never fails.  `Silent` listens and says nothing: tests read its counts.
"""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode


class Recorder(Protocol):
    """Takes note of what happened."""

    def request(self, mode: Mode, outcome: Outcome, duration_s: float) -> None:
        """A client's request has been answered, or its connection dropped, `duration_s` after it was read."""

    def hits(self, mode: Mode, outcome: Outcome, n: int, body_bytes: int) -> None:
        """`n` requests have been answered at once, with `body_bytes` in all: counted together, a little later."""

    def upstream_request(self, mode: Mode) -> None:
        """A request is being sent to the origin; each try counts."""

    def upstream_bytes(self, n: int) -> None:
        """Body bytes have come from the origin."""

    def downstream_bytes(self, n: int) -> None:
        """Body bytes have been handed to a client's connection."""

    def subscribers(self, mode: Mode, delta: int) -> None:
        """Live clients have come (positive) or gone (negative)."""

    def cache(self, bytes_: int, tapes: int) -> None:
        """What the tapes hold now: stream bytes, and how many tapes."""

    def eviction(self, n: int = 1) -> None:
        """Tapes have been dropped to stay within the byte budget."""

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        """A body of `plain_bytes` has been compressed to `coded_bytes`, once for all who will ask for it."""

    def slow_consumer(self) -> None:
        """A live client has been closed because it did not keep up."""

    def retry(self) -> None:
        """A request to the origin is being tried again."""


class Silent:
    """A `Recorder` for tests: `counts` by tuples of words, such as `("request", "catchup", "hit")` or `("retry",)`."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.cache_bytes = 0
        self.tapes = 0

    def request(self, mode: Mode, outcome: Outcome, duration_s: float) -> None:
        self.counts["request", mode.value, outcome.value] += 1

    def hits(self, mode: Mode, outcome: Outcome, n: int, body_bytes: int) -> None:
        self.counts["request", mode.value, outcome.value] += n
        self.counts["downstream_bytes",] += body_bytes

    def upstream_request(self, mode: Mode) -> None:
        self.counts["upstream_request", mode.value] += 1

    def upstream_bytes(self, n: int) -> None:
        self.counts["upstream_bytes",] += n

    def downstream_bytes(self, n: int) -> None:
        self.counts["downstream_bytes",] += n

    def subscribers(self, mode: Mode, delta: int) -> None:
        self.counts["subscribers", mode.value] += delta

    def cache(self, bytes_: int, tapes: int) -> None:
        self.cache_bytes = bytes_
        self.tapes = tapes

    def eviction(self, n: int = 1) -> None:
        self.counts["eviction",] += n

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        self.counts["coded", coding.value] += 1

    def slow_consumer(self) -> None:
        self.counts["slow_consumer",] += 1

    def retry(self) -> None:
        self.counts["retry",] += 1
