"""The metric families of HTTP/2 connections, with clients and with origins.

Error codes have the names of RFC 9113 section 7, in lower case.  The series for codes and kinds of ordinary operation
exist from the start.  All other series begin with their first event.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from gateway.http.http2.flood_limits import Kind, SessionCounts
from gateway.http.http2.frames import ErrorCode
from gateway.ops.families import counter, gauge

_RESETS: Final = (ErrorCode.REFUSED_STREAM, ErrorCode.CANCEL, ErrorCode.PROTOCOL_ERROR, ErrorCode.INTERNAL_ERROR)
_GOAWAYS: Final = (ErrorCode.NO_ERROR, ErrorCode.PROTOCOL_ERROR, ErrorCode.ENHANCE_YOUR_CALM)


def http2_families(counts: SessionCounts) -> Iterator[Metric]:
    """Gauges and counters of HTTP/2 connections with clients."""
    yield gauge(
        "durable_gateway_http2_connections",
        "Open client connections that use HTTP/2. Excludes those in a TLS handshake.",
        (),
        [((), counts.connections)],
    )
    yield gauge(
        "durable_gateway_http2_streams",
        "Open requests over HTTP/2, live reads included. Excludes those whose answer is sent.",
        (),
        [((), counts.streams)],
    )
    yield counter(
        "durable_gateway_http2_resets",
        "Requests over HTTP/2 that the gateway ended with RST_STREAM, by error code: refused_stream beyond "
        "http2_streams, cancel for a client that does not keep up, protocol_error for a malformed request, no_error "
        "where the rest of a body is not needed. Excludes requests that clients reset.",
        ("code",),
        (((code.name.lower(),), counts.resets[code]) for code in dict.fromkeys((*_RESETS, *counts.resets))),
    )
    yield counter(
        "durable_gateway_http2_goaways",
        "HTTP/2 connections to which the gateway sent GOAWAY, by error code: no_error in a drain and when idle, "
        "enhance_your_calm for a flood or a head that does not end in time. Excludes those that clients end.",
        ("code",),
        (((code.name.lower(),), counts.goaways[code]) for code in dict.fromkeys((*_GOAWAYS, *counts.goaways))),
    )
    yield counter(
        "durable_gateway_http2_floods",
        "HTTP/2 connections that the gateway ended because a kind of frame came more often than allowed. Excludes "
        "connections ended for another error.",
        ("kind",),
        (((kind.value,), counts.floods[kind]) for kind in Kind),
    )


_UPSTREAM_RESETS: Final = (ErrorCode.CANCEL, ErrorCode.PROTOCOL_ERROR)


def upstream_http2_families(counts: SessionCounts) -> Iterator[Metric]:
    """Gauges and counters of HTTP/2 connections with origins."""
    yield gauge(
        "durable_gateway_upstream_http2_connections",
        "Open connections to origins that use HTTP/2, idle ones included. Excludes those in a TLS handshake.",
        (),
        [((), counts.connections)],
    )
    yield gauge(
        "durable_gateway_upstream_http2_streams",
        "Requests to origins that are open on those connections. Excludes requests that wait for a connection.",
        (),
        [((), counts.streams)],
    )
    yield counter(
        "durable_gateway_upstream_http2_resets",
        "Requests to origins over HTTP/2 that the gateway ended with RST_STREAM, by error code: cancel when the client "
        "has left or time has run out, protocol_error for a malformed answer. Excludes requests that origins reset.",
        ("code",),
        (((code.name.lower(),), counts.resets[code]) for code in dict.fromkeys((*_UPSTREAM_RESETS, *counts.resets))),
    )
    yield counter(
        "durable_gateway_upstream_http2_goaways",
        "HTTP/2 connections to origins to which the gateway sent GOAWAY, by error code: no_error when idle or no "
        "longer used, enhance_your_calm for a flood or too large a head. Excludes those that origins end.",
        ("code",),
        (((code.name.lower(),), counts.goaways[code]) for code in dict.fromkeys((*_GOAWAYS, *counts.goaways))),
    )
    yield counter(
        "durable_gateway_upstream_http2_floods",
        "HTTP/2 connections to origins that the gateway ended because a kind of frame came more often than allowed. "
        "Excludes connections ended for another error.",
        ("kind",),
        (((kind.value,), counts.floods[kind]) for kind in Kind),
    )
