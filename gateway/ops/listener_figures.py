"""The counts of listeners, and their metric families.

When a listener with TLS opens, its counters start at 0, so that alerts can divide the rates of failures by the rate of
all handshakes.  There is a counter for each reason for a failed handshake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge


class ListenerFigures:
    """Counts by listener.  A listener is named by its address in the configuration."""

    def __init__(self) -> None:
        self.handshakes: Counter[str] = Counter()
        self.handshake_failures: Counter[tuple[str, str]] = Counter()
        self.kept: Counter[str] = Counter()
        self.expiries: Callable[[], Iterable[tuple[str, str, float]]] = lambda: ()
        """Reads the certificates in use: the listener, the certificate's first name, and its expiry in Unix seconds."""
        self.refused: Callable[[], Mapping[str, int]] = dict
        """Reads the number of refused connections, by reason."""
        self.waited: Callable[[], int] = int
        """Reads the number of requests that have waited for a later turn of the loop."""
        self.admin: Callable[[], tuple[int, Mapping[str, int]]] = lambda: (0, {})
        """Reads the number of open connections to the admin port, and the number of closed connections by reason."""

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
        """Return the families with their current values."""
        yield counter(
            "durable_gateway_connections_refused",
            "Client connections closed without an answer, by reason: limit (more than max_connections), client (more "
            "than client_connections), displaced (an idle connection made room for a network with fewer connections), "
            "leaving (at the end of a drain), banned (client_refusals_per_s), memory (close to memory_max_bytes), "
            "proxy (a PROXY header was missing, malformed or not trusted). Excludes failed TLS handshakes.",
            ("reason",),
            (((reason,), n) for reason, n in self.refused().items()),
        )
        yield counter(
            "durable_gateway_requests_waited",
            "Requests that had to wait for a later turn of the event loop, because many requests arrived at once, or "
            "many from the same client network. Excludes remembered answers and remembered live reads, which never "
            "wait.",
            (),
            (((), self.waited()),),
        )
        admin_open, admin_closed = self.admin()
        yield gauge(
            "durable_gateway_admin_connections",
            "Open connections to the admin port. Excludes connections of clients.",
            (),
            [((), admin_open)],
        )
        yield counter(
            "durable_gateway_admin_connections_closed",
            "Connections to the admin port that the gateway closed, by reason: limit (more than admin_connections), "
            "head (the request head was too large or too late), write (the peer did not read the answer in time). "
            "Excludes idle connections that timed out.",
            ("reason",),
            (((reason,), n) for reason, n in admin_closed.items()),
        )
        yield counter(
            "durable_gateway_tls_handshakes",
            "Completed TLS handshakes with clients, including resumed sessions. Excludes failed handshakes.",
            ("listener",),
            (((listener,), n) for listener, n in self.handshakes.items()),
        )
        yield counter(
            "durable_gateway_tls_handshake_failures",
            "Failed TLS handshakes with clients, by reason. Includes handshakes that the client gave up. Excludes "
            "connections closed before the handshake because of their PROXY header.",
            ("listener", "reason"),
            self.handshake_failures.items(),
        )
        yield counter(
            "durable_gateway_certificate_failures",
            "Certificate files that proved unusable when they were read again. The previous certificates stay in use. "
            "Excludes files that a new configuration names for the first time: an unusable file makes the gateway "
            "refuse the configuration.",
            ("listener",),
            (((listener,), n) for listener, n in self.kept.items()),
        )
        # Certificates with one name share a series, which shows the earliest expiry.
        soonest: dict[tuple[str, str], float] = {}
        for listener, name, at in self.expiries():
            soonest[listener, name] = min(at, soonest.get((listener, name), at))
        yield gauge(
            "durable_gateway_certificate_expiry_timestamp_seconds",
            "Expiry of a certificate in use, in Unix seconds. The label name has the certificate's first host name. "
            "Excludes certificates of authorities.",
            ("listener", "name"),
            soonest.items(),
        )
