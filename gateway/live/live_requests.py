"""LiveRequests for live requests at origins: each followed stream takes one, and each relayed live read.

A live request has a connection to the origin for minutes.  Relayed ones are as many as clients care to send, over
HTTP/2 even on one connection, so they share the bounds of followed streams: in all, and of one client network.
"""

from __future__ import annotations

import random

from gateway.errors import TooManyRequests
from gateway.limits.client_net import UNKNOWN
from gateway.limits.retry_after import UNKNOWN_WAIT_S, retry_after_s
from gateway.limits.usage import Tally
from gateway.telemetry.metrics import MetricsRecorder


class LiveRequests:
    """What the nets of clients have taken, and how many live reads are relayed."""

    def __init__(self, most: int, metrics: MetricsRecorder, rng: random.Random) -> None:
        self.most = most
        """The most live requests at once."""
        self.most_per_client = most
        """The most of them that one client net may have caused."""
        self.relayed = 0
        """Relayed live reads."""
        self._by_client = Tally()
        self._metrics = metrics
        self._rng = rng

    def __repr__(self) -> str:
        return f"<LiveRequests {self.relayed} relayed, {self._by_client}>"

    def has_share(self, net: str) -> bool:
        """Whether the net may cause one more live request."""
        return net == UNKNOWN or self._by_client[net] < self.most_per_client

    def refusal(self) -> TooManyRequests:
        """Count a live read of a net without a share left; returns the error for it."""
        self._metrics.client_limited("client_followed_streams")
        return TooManyRequests(retry_after_s(UNKNOWN_WAIT_S, self._rng), "Too many live streams")

    def take(self, net: str) -> None:
        """Charge a live request to the net; `give_back` must follow."""
        if net != UNKNOWN:
            self._by_client.add(net)

    def give_back(self, net: str) -> None:
        """A live request that `take` charged has ended."""
        if net != UNKNOWN:
            self._by_client.remove(net)

    def begin_relayed(self, net: str) -> RelayedLive:
        """Take a place for a live read that is relayed; `RelayedLive.end` must follow."""
        return RelayedLive(self, net)


class RelayedLive:
    """The place of one relayed live read."""

    __slots__ = ("_net", "_requests")

    def __init__(self, requests: LiveRequests, net: str) -> None:
        self._requests = requests
        self._net = net
        requests.relayed += 1
        requests.take(net)

    def __repr__(self) -> str:
        return f"<RelayedLive of {self._net!r}>"

    def end(self) -> None:
        """The live read has ended."""
        self._requests.relayed -= 1
        self._requests.give_back(self._net)
