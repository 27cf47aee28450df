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
        "Open client connections that use HTTP/2. Excludes connections in a TLS handshake.",
        (),
        [((), counts.connections)],
    )
    yield gauge(
        "durable_gateway_http2_streams",
        "Open requests over HTTP/2, including live reads. Excludes requests whose answer has been sent.",
        (),
        [((), counts.streams)],
    )
    yield counter(
        "durable_gateway_http2_resets",
        "HTTP/2 requests that the gateway ended with RST_STREAM, by error code. Examples: refused_stream (more than "
        "http2_streams), cancel (the client read too slowly), protocol_error (a malformed request), no_error (the "
        "rest of the request body was not needed). Excludes requests that the client reset.",
        ("code",),
        (((code.name.lower(),), counts.resets[code]) for code in dict.fromkeys((*_RESETS, *counts.resets))),
    )
    yield counter(
        "durable_gateway_http2_goaways",
        "HTTP/2 connections to which the gateway sent GOAWAY, by error code. Examples: no_error (in a drain, or an "
        "idle connection), enhance_your_calm (a flood, or a head that was too late). Excludes connections that the "
        "client ended.",
        ("code",),
        (((code.name.lower(),), counts.goaways[code]) for code in dict.fromkeys((*_GOAWAYS, *counts.goaways))),
    )
    yield counter(
        "durable_gateway_http2_floods",
        "HTTP/2 connections that the gateway ended because the client sent too many frames of one kind. Excludes "
        "connections ended because of another error.",
        ("kind",),
        (((kind.value,), counts.floods[kind]) for kind in Kind),
    )


_UPSTREAM_RESETS: Final = (ErrorCode.CANCEL, ErrorCode.PROTOCOL_ERROR)


def upstream_http2_families(counts: SessionCounts) -> Iterator[Metric]:
    """Gauges and counters of HTTP/2 connections with origins."""
    yield gauge(
        "durable_gateway_upstream_http2_connections",
        "Open connections to origins that use HTTP/2, including idle connections. Excludes connections in a TLS "
        "handshake.",
        (),
        [((), counts.connections)],
    )
    yield gauge(
        "durable_gateway_upstream_http2_streams",
        "Open requests to origins over HTTP/2. Excludes requests that wait for a connection.",
        (),
        [((), counts.streams)],
    )
    yield counter(
        "durable_gateway_upstream_http2_resets",
        "HTTP/2 requests to origins that the gateway ended with RST_STREAM, by error code. Examples: cancel (the "
        "client left, or a time limit passed), protocol_error (a malformed reply). Excludes requests that the origin "
        "reset.",
        ("code",),
        (((code.name.lower(),), counts.resets[code]) for code in dict.fromkeys((*_UPSTREAM_RESETS, *counts.resets))),
    )
    yield counter(
        "durable_gateway_upstream_http2_goaways",
        "HTTP/2 connections to origins to which the gateway sent GOAWAY, by error code. Examples: no_error (an idle "
        "connection, or one that is no longer used), enhance_your_calm (a flood, or a head that was too large). "
        "Excludes connections that the origin ended.",
        ("code",),
        (((code.name.lower(),), counts.goaways[code]) for code in dict.fromkeys((*_GOAWAYS, *counts.goaways))),
    )
    yield counter(
        "durable_gateway_upstream_http2_floods",
        "HTTP/2 connections to origins that the gateway ended because the origin sent too many frames of one kind. "
        "Excludes connections ended because of another error.",
        ("kind",),
        (((kind.value,), counts.floods[kind]) for kind in Kind),
    )
