"""Header forwarding: which headers pass in each direction, and which the gateway adds (RFC 9110 section 7.6).

The functions select request headers for the origin, reply headers for the client, and reply headers to store with a
stream.  They also detect loops.  `gateway.protocol.client_address` reads the client's address from forwarding headers.

A Connection header may contain the names of further headers to drop.  The gateway never drops two kinds of headers in
this way: the protocol's own headers, and the headers that it uses for keys, routes, framing or loop detection.
Otherwise a client could make the gateway and the origin interpret one request differently.
"""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.errors import LoopDetected
from gateway.protocol.names import ACCEL_BUFFERING, SSE_TYPE, media_type

Headers = CIMultiDict[str] | CIMultiDictProxy[str]

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "gateway-fleet",
        "gateway-fleet-orders",
        "gateway-hop",
        "gateway-hop-outcome",
        "gateway-hop-record",
        "gateway-hop-saved",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Fields that apply to a single connection, in lower case."""

_NOT_FORWARDED: Final = HOP_BY_HOP | {"host", "expect"}

_UNTRUSTED: Final = _NOT_FORWARDED | {
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
}
"""`_NOT_FORWARDED`, and the forwarding headers that an untrusted client may have made up."""

_NEVER_NOMINATED: Final = frozenset(
    {
        "authorization",
        "cache-control",
        "cdn-loop",
        "content-encoding",
        "content-length",
        "content-type",
        "cookie",
        "etag",
        "forwarded",
        "host",
        "if-none-match",
        "set-cookie",
        "vary",
        "via",
        "x-forwarded-for",
        "x-forwarded-proto",
    }
)
PROTOCOL_PREFIXES: Final = ("stream-", "producer-")

_UNSTORABLE: Final = frozenset(
    {
        "accept-ranges",
        "age",
        "alt-svc",
        "cache-control",
        "cache-status",
        "cdn-cache-control",
        "clear-site-data",
        "content-encoding",
        "content-length",
        "content-md5",
        "content-range",
        "content-type",
        "date",
        "etag",
        "expires",
        "last-modified",
        "location",
        "nel",
        "pragma",
        "report-to",
        "retry-after",
        "server",
        "server-timing",
        "set-cookie",
        "set-cookie2",
        "surrogate-control",
        "surrogate-key",
        "traceparent",
        "traceresponse",
        "tracestate",
        "vary",
        "via",
        "warning",
        "www-authenticate",
        "x-cache",
        "x-cache-hits",
        "x-request-id",
        "x-served-by",
        "x-timer",
    }
)
_NEVER_REPLAYED: Final = HOP_BY_HOP | _UNSTORABLE
_UNSTORABLE_PREFIXES: Final = (*PROTOCOL_PREFIXES, "ratelimit", "x-accel-", "x-ratelimit-")

_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NODE: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z:\[\]]+")
"""A host, with or without a port, or a pseudonym."""
_MOST_NODES: Final = 8
_LONGEST_CHAIN: Final = 256
_LONGEST_KEPT_HOST: Final = 256
"""The longest host whose Forwarded member is cached.  Longer hosts are not valid names."""


def joined(headers: Headers, name: str) -> str | None:
    """Return all lines of a header joined into one; None if there are none (RFC 9110 section 5.3)."""
    lines = headers.getall(name, None)
    return ", ".join(lines) if lines is not None else None


def nominated(headers: Headers) -> frozenset[str]:
    """Return the names, in lower case, of the message's headers that its Connection header makes hop-by-hop."""
    listed = {name.strip() for name in ",".join(headers.getall("Connection", ())).lower().split(",")}
    # Intersect with the message's own headers, which are few.  The Connection header may have 16,000 names.
    names = listed.intersection(map(str.lower, headers))
    return frozenset(name for name in names if name not in _NEVER_NOMINATED and not name.startswith(PROTOCOL_PREFIXES))


def end_to_end(headers: Headers, dropped: frozenset[str] = HOP_BY_HOP) -> CIMultiDict[str]:
    """Return the headers without those in `dropped`, and without those in the Connection header."""
    if "Connection" in headers:
        dropped |= nominated(headers)
    return CIMultiDict([(name, value) for name, value in headers.items() if name.lower() not in dropped])


def request_headers_for_origin(
    headers: Headers,
    *,
    node: str,
    client: str | None,
    host: str,
    scheme: str,
    http_version: str,
    is_from_proxy: bool = False,
) -> CIMultiDict[str]:
    """Return the client's request headers as the origin should receive them.

    Drops hop-by-hop headers, Host (the origin has its own) and Expect (the gateway has answered it).  Appends to Via
    (RFC 9110 section 7.6.3), Forwarded (RFC 7239) and CDN-Loop (RFC 8586).  `client` is the peer's address without a
    port, None if unknown.  `host` is the host that the client asked for.  `http_version` is the version of the client's
    request, such as `1.1`.

    Also drops headers that CGI and similar interfaces, which do not distinguish underscores from hyphens (RFC 3875
    section 4.1.18), would take for headers of the protocol or for other dropped headers.

    Every proxy appends one member to Forwarded, so an origin that counts from the end knows which proxy wrote each
    member.  X-Forwarded-For is such a list too, but each other X-Forwarded-* header is the claim of one party.  If a
    trusted proxy wrote these headers (`is_from_proxy`), they pass, and the proxy is appended to X-Forwarded-For.
    X-Forwarded-* headers of the client itself are dropped, because the origin would read them as the gateway's own
    statements.
    """
    dropped = _NOT_FORWARDED if is_from_proxy else _UNTRUSTED
    passed = end_to_end(headers, dropped)
    for name in [one for one in passed if "_" in one]:
        read = name.lower().replace("_", "-")
        # Trusted proxies write their headers with hyphens, so one with underscores comes from the client.
        if read in _UNTRUSTED or read.startswith(PROTOCOL_PREFIXES):
            passed.popall(name, None)
    if is_from_proxy and "X-Forwarded-For" in passed:
        _append(passed, "X-Forwarded-For", client or "unknown")
        # Drop Forwarded, because this proxy writes only X-Forwarded-For, and may have forwarded its client's Forwarded
        # unchanged.
        passed.popall("Forwarded", None)
    _append(passed, "Via", f"{http_version} {node}")
    forwarded = _forwarded if len(host) <= _LONGEST_KEPT_HOST else _forwarded.__wrapped__
    _append(passed, "Forwarded", forwarded(client, host, scheme))
    _append(passed, "CDN-Loop", node)
    return passed


def passed_nodes(headers: Headers) -> tuple[str, ...]:
    """Return the gateways that a request has passed, by its CDN-Loop header (RFC 8586), in lower case, each once.

    Invalid names are skipped.  The result is sorted, because the order does not matter for loops.  Raises LoopDetected
    if the list is longer than any sensible chain.
    """
    lines = headers.getall("CDN-Loop", ())
    if not lines:
        return ()
    if sum(map(len, lines)) > _LONGEST_CHAIN:
        raise LoopDetected
    members = {member.partition(";")[0].strip().lower() for line in lines for member in line.split(",")}
    nodes = sorted(member for member in members if _NODE.fullmatch(member))
    if len(nodes) > _MOST_NODES:
        raise LoopDetected
    return tuple(nodes)


def is_looping(headers: Headers, node: str) -> bool:
    """Return whether this request has already passed through `node` (RFC 8586).

    If requests pass through several gateways, each of them therefore needs its own node name.
    """
    wanted, lines = node.lower(), headers.getall("CDN-Loop", ())
    # Do not read a list that is too long.  Reading it would be slow, and `passed_nodes` refuses it in any case.
    return sum(map(len, lines)) > _LONGEST_CHAIN or any(
        member.partition(";")[0].strip().lower() == wanted for line in lines for member in line.split(",")
    )


def response_headers_for_client(headers: Headers, *, node: str, http_version: str) -> CIMultiDict[str]:
    """Return the origin's reply headers as the client should receive them: end-to-end headers, with one more Via
    member.

    An event stream gets `X-Accel-Buffering: no`, unless the origin set that header, so that nginx does not buffer it.
    """
    dropped = HOP_BY_HOP if "Connection" not in headers else HOP_BY_HOP | nominated(headers)
    passed = CIMultiDict([(name, value) for name, value in headers.items() if name.lower() not in dropped])
    content_type = passed.get("Content-Type")
    if content_type is not None and media_type(content_type) == SSE_TYPE:
        passed.setdefault(ACCEL_BUFFERING, "no")
    _append(passed, "Via", f"{http_version} {node}")
    return passed


def storable_headers(headers: Headers) -> CIMultiDict[str]:
    """Return the reply headers that apply to the whole stream, such as CORS headers, nosniff or Content-Disposition.

    They are stored and sent with later answers.  Headers of one reply (dates, validators, lengths, codings, cookies,
    positions, traces) and headers that the gateway sets itself are left out.
    """
    dropped = _NEVER_REPLAYED | nominated(headers) if "Connection" in headers else _NEVER_REPLAYED
    return CIMultiDict(
        [
            (name, value)
            for name, value in headers.items()
            if (lower := name.lower()) not in dropped and not lower.startswith(_UNSTORABLE_PREFIXES)
        ]
    )


def _append(headers: CIMultiDict[str], name: str, member: str) -> None:
    """Append a member to a list header, and join all its lines into one."""
    if name in headers:
        member = ", ".join([*(value for value in headers.getall(name) if value.strip()), member])
    headers[name] = member


@lru_cache(maxsize=1024)
def _forwarded(client: str | None, host: str, scheme: str) -> str:
    return f"for={_node_identifier(client)};host={_quoted(host)};proto={scheme}"


def _quoted(text: str) -> str:
    """Return a token unchanged, and other text as a quoted string (RFC 9110 section 5.6.4)."""
    if _TOKEN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _node_identifier(client: str | None) -> str:
    """Return a node identifier (RFC 7239 section 6): an IPv4 address, an IPv6 address in brackets and quotes, or
    `unknown`."""
    try:
        # The zone of a link-local address (`fe80::1%eth0`) has no meaning on another machine.
        address = ipaddress.ip_address((client or "").partition("%")[0])
    except ValueError:
        return "unknown"
    return f'"[{address}]"' if address.version == 6 else str(address)


TRACEPARENT: Final = r"(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
"""Matches a valid `traceparent`; the first group is the trace id."""

_WHOLE: Final = re.compile(TRACEPARENT)


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace id in a `traceparent` (W3C Trace Context section 3.2); None if it is absent or invalid."""
    match = _WHOLE.fullmatch(traceparent) if traceparent is not None else None
    return match[1] if match is not None else None
