"""What is counted at listeners, and the series of it.

A listener's counters begin at 0 when it opens with TLS, with every reason for which a handshake can fail: alerts divide
the rates of failures by those of all handshakes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge


class ListenerFigures:
    """Counts by listener, which is named by its address in the configuration."""

    def __init__(self) -> None:
        self.handshakes: Counter[str] = Counter()
        self.handshake_failures: Counter[tuple[str, str]] = Counter()
        self.kept: Counter[str] = Counter()
        self.expiries: Callable[[], Iterable[tuple[str, str, float]]] = lambda: ()
        """Looks at what is shown: listener, the certificate's first name, and the Unix second when it expires."""
        self.refused: Callable[[], Mapping[str, int]] = dict
        """Looks at the connections that were refused, by reason."""

    def speaks_tls(self, listener: str, reasons: Sequence[str]) -> None:
        self.handshakes[listener] += 0
        self.kept[listener] += 0
        for reason in reasons:
            self.handshake_failures[listener, reason] += 0

    def handshake(self, listener: str) -> None:
        self.handshakes[listener] += 1

    def handshake_failure(self, listener: str, reason: str) -> None:
        self.handshake_failures[listener, reason] += 1

    def certificates_kept(self, listener: str, n: int) -> None:
        self.kept[listener] += n

    def families(self) -> Iterator[Metric]:
        """The series as they stand."""
        yield counter(
            "durable_gateway_connections_refused",
            "Client connections closed unanswered: limit beyond max_connections, leaving in a drain, proxy for a PROXY "
            "header that is missing, malformed or not trusted. Excludes failed TLS handshakes.",
            ("reason",),
            (((reason,), n) for reason, n in self.refused().items()),
        )
        yield counter(
            "durable_gateway_tls_handshakes",
            "TLS handshakes with clients that were completed, resumed sessions included. Excludes those that failed.",
            ("listener",),
            (((listener,), n) for listener, n in self.handshakes.items()),
        )
        yield counter(
            "durable_gateway_tls_handshake_failures",
            "TLS handshakes with clients that came to nothing, by why. Includes those that clients gave up; excludes "
            "connections that were dropped for their PROXY header before.",
            ("listener", "reason"),
            self.handshake_failures.items(),
        )
        yield counter(
            "durable_gateway_certificate_failures",
            "Certificates in files that could not be used when they were taken anew, so that older ones stay in use. "
            "Excludes those that a configuration names for the first time: it is refused as a whole.",
            ("listener",),
            (((listener,), n) for listener, n in self.kept.items()),
        )
        # Two certificates of one name are told as the one that expires first.
        soonest: dict[tuple[str, str], float] = {}
        for listener, name, at in self.expiries():
            soonest[listener, name] = min(at, soonest.get((listener, name), at))
        yield gauge(
            "durable_gateway_certificate_expiry_timestamp_seconds",
            "When a certificate in use expires, in Unix seconds, by its first host name. "
            "Excludes those of its authorities.",
            ("listener", "name"),
            soonest.items(),
        )
