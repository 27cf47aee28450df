"""The series of clients' connections over HTTP/2.

The codes are those of RFC 9113 section 7 in lower case.  The codes and kinds that occur in ordinary operation exist
from the start; others begin with what they count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from gateway.http.http2.budget import Kind
from gateway.http.http2.counts import SessionCounts
from gateway.http.http2.frames import ErrorCode
from gateway.ops.families import counter, gauge

_RESETS: Final = (ErrorCode.REFUSED_STREAM, ErrorCode.CANCEL, ErrorCode.PROTOCOL_ERROR, ErrorCode.INTERNAL_ERROR)
_GOAWAYS: Final = (ErrorCode.NO_ERROR, ErrorCode.PROTOCOL_ERROR, ErrorCode.ENHANCE_YOUR_CALM)


def http2_families(counts: SessionCounts) -> Iterator[Metric]:
    """What a look at the sessions shows."""
    yield gauge(
        "durable_gateway_http2_connections",
        "Client connections open now that speak HTTP/2. Excludes those in a TLS handshake.",
        (),
        [((), counts.connections)],
    )
    yield gauge(
        "durable_gateway_http2_streams",
        "Requests open now over HTTP/2, live reads included. Excludes those whose answer is sent.",
        (),
        [((), counts.streams)],
    )
    yield counter(
        "durable_gateway_http2_resets",
        "Requests over HTTP/2 that the gateway ended by RST_STREAM, by the error code: refused_stream beyond "
        "http2_streams, cancel for a client that does not keep up, protocol_error for a malformed request, no_error "
        "where the rest of a body is not needed. Excludes those that clients take back.",
        ("code",),
        (((code.name.lower(),), counts.resets[code]) for code in dict.fromkeys((*_RESETS, *counts.resets))),
    )
    yield counter(
        "durable_gateway_http2_goaways",
        "Connections over HTTP/2 that the gateway sent GOAWAY, by the error code: no_error in a drain and when idle, "
        "enhance_your_calm for a flood or a head that does not end in time. Excludes those that clients end.",
        ("code",),
        (((code.name.lower(),), counts.goaways[code]) for code in dict.fromkeys((*_GOAWAYS, *counts.goaways))),
    )
    yield counter(
        "durable_gateway_http2_floods",
        "Connections over HTTP/2 that the gateway ended because a kind of frame came more often than its allowance. "
        "Excludes connections ended for another error.",
        ("kind",),
        (((kind.value,), counts.floods[kind]) for kind in Kind),
    )
