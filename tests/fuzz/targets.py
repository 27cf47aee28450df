"""One target for each parser of foreign bytes: a function of bytes that fails if an invariant does not hold.

A target allows the documented errors and no others.  Bytes that arrive in pieces give the same events however they are
cut, what was parsed and is written again is parsed to the same, and what is held stays within a bound.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from multidict import CIMultiDict
from pydantic import SecretStr

from gateway.config import sizes, values
from gateway.errors import LoopDetected
from gateway.http.http2.blocks import request_block
from gateway.http.http2.client_session import ClientSession
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.http2.frames import PREFACE, settings
from gateway.http.http2.session import Session
from gateway.http.http2.streams import BodyEnded, DataReceived, ReplyReceived, RequestReceived, StreamReset
from gateway.http.reply_lines import Head
from gateway.http.reply_parser import MOST_FRAMING_BYTES, ReplyBroken, ReplyParser
from gateway.http.request_parser import Mark, RequestHead, RequestParser
from gateway.protocol import (
    cache_status,
    client_address,
    coding,
    cursor,
    etag,
    freshness_headers,
    names,
    target,
)
from gateway.protocol.client_hello import BadServerName, ClientHello, read_client_hello
from gateway.protocol.freshness_headers import surrogate_keys
from gateway.protocol.header_forwarding import (
    passed_nodes,
    request_headers_for_origin,
    response_headers_for_client,
    trace_id_of,
)
from gateway.protocol.json_body import ArrayUnwrapper, NotAnArray, unwrap
from gateway.protocol.sharing import SharingRules, cure
from gateway.protocol.sse import Control, SseParser, SseTooLarge, encode_control, encode_data, parse_control
from tests.fuzz import s2_targets
from tests.fuzz.invariants import is_bounded, joined, same_in_slices

Target = Callable[[bytes], None]

TARGETS: Final[dict[str, Target]] = dict(s2_targets.TARGETS)
_NO_CONTROL: Final = re.compile(r"[\r\n\0]")


def _target(fuzzed: Target) -> Target:
    TARGETS[fuzzed.__name__] = fuzzed
    return fuzzed


def _text(data: bytes) -> str:
    """Text as the server reads it from the wire."""
    return data.decode("utf-8", "surrogateescape")


def _fields(name: str, data: bytes) -> CIMultiDict[str]:
    """A line of the field for each line of the data."""
    return CIMultiDict([(name, line.strip(" \t\r\0")) for line in _text(data).split("\n")])


# -- HTTP/1.1


@_target
def request(data: bytes) -> None:
    """`http/request_parser.py`: no event follows BROKEN, bodies are as long as announced."""

    def run(pieces: list[bytes]) -> list[Any]:
        parser, events = RequestParser(), []
        for piece in pieces:
            events += parser.feed(piece)
        parser.close()
        shown = [
            (event.method, event.target, event.version, list(event.headers.items()), event.keeps_alive, event.length)
            if isinstance(event, RequestHead)
            else event
            for event in events
        ]
        assert Mark.BROKEN not in events[:-1]
        return joined(shown)

    events = same_in_slices(data, run)
    left: int | None = None
    for event in events:
        if isinstance(event, tuple):
            left = event[-1]
            assert all(_NO_CONTROL.search(name + value) is None for name, value in event[3])
        elif isinstance(event, bytes) and left is not None:
            left -= len(event)
            assert left >= 0
        elif event is Mark.END:
            assert not left
    is_bounded(sum(len(event) for event in events if isinstance(event, bytes)), data, 1, 0)


def _name(field: tuple[str, str]) -> str:
    return field[0].lower()


def _reply(data: bytes, *, is_head: bool) -> None:
    def run(pieces: list[bytes]) -> tuple[list[Any], bool]:
        parser, events, is_broken = ReplyParser(), [], False
        parser.expect(is_head=is_head)
        try:
            for piece in pieces:
                if not parser.is_awaited:
                    break
                events += parser.feed(piece)
            else:
                events += parser.feed_eof() if parser.is_awaited else []
        except ReplyBroken:
            is_broken = True
        parser.close()
        # Lines that replies share precede the reply's own; only fields of one name have an order (RFC 9110 §5.3).
        shown = [
            (one.status, one.reason, sorted(one.headers.items(), key=_name), one.content_length)
            if isinstance(one, Head)
            else one
            for one in events
        ]
        # How much of a body comes before an error depends on where its pieces end.
        return ([], True) if is_broken else (joined(shown), False)

    # Endless framing is bounded by the piece, so the bound is met at another byte in other pieces.
    events, is_broken = same_in_slices(data, run) if len(data) < MOST_FRAMING_BYTES else run([data])
    if not is_broken and events:
        status, reason, headers, length = events[0]
        assert 200 <= status <= 999
        assert _NO_CONTROL.search(reason) is None
        assert all(_NO_CONTROL.search(name + value) is None for name, value in headers)
        body = b"".join(one for one in events if isinstance(one, bytes))
        assert not (body and (is_head or status in (204, 304)))
        if length is not None and body:
            assert len(body) == length


@_target
def reply(data: bytes) -> None:
    """`http/reply_parser.py`, after a GET and after a HEAD."""
    _reply(data, is_head=False)
    _reply(data, is_head=True)


# -- HTTP/2


@_target
def http2(data: bytes) -> None:
    """`http/http2/session.py`: frames after the preface; what is written and held is bounded."""

    def run(pieces: list[bytes]) -> list[Any]:
        session = Session(8, SessionCounts())
        shown: list[Any] = []
        sent = 0
        for piece in [PREFACE + settings({}), *pieces]:
            for event in session.receive(piece, 0.0):
                match event:
                    case RequestReceived():
                        shown.append((event.stream.id, event.request.method, event.request.target))
                    case DataReceived():
                        shown.append((event.stream.id, len(event.data)))
                        session.acknowledge(event.stream, event.size)
                    case BodyEnded() | StreamReset():
                        shown.append((event.stream.id, type(event).__name__))
            sent += sum(map(len, session.take_out()))
            assert len(session.streams) <= 8
        # No more than an answer of one small frame for each frame, and the server's own settings.
        is_bounded(sent, data, 13, 4_096)
        return [*shown, session.failed]

    same_in_slices(data, run)


@_target
def http2_reply(data: bytes) -> None:
    """`http/http2/client_session.py`: frames of an origin that is asked twice; what is written and held is bounded."""

    def run(pieces: list[bytes]) -> list[Any]:
        session = ClientSession(SessionCounts())
        shown: list[Any] = []
        for is_head in (False, True):
            session.send_request(
                request_block(b"GET / HTTP/1.1\r\nHost: o\r\n\r\n", "http"), ends=True, is_head=is_head
            )
        sent = -sum(map(len, session.take_out()))
        for piece in [settings({}), *pieces]:
            for event in session.receive(piece, 0.0):
                match event:
                    case ReplyReceived():
                        assert 200 <= event.head.status <= 999
                        shown.append((event.stream.id, event.head.status, list(event.head.headers.items())))
                    case DataReceived():
                        shown.append((event.stream.id, len(event.data)))
                        session.acknowledge(event.stream, event.size)
                    case BodyEnded() | StreamReset():
                        shown.append((event.stream.id, type(event).__name__))
            sent += sum(map(len, session.take_out()))
        is_bounded(sent, data, 13, 4_096)
        return [*shown, session.failed]

    same_in_slices(data, run)


# -- events and JSON


@_target
def sse(data: bytes) -> None:
    """`protocol/sse.py`: events survive being encoded and parsed again."""

    def run(pieces: list[bytes]) -> list[Any]:
        parser, events = SseParser(4_096), []
        try:
            for piece in pieces:
                events += parser.feed(piece)
        except SseTooLarge:
            return ["too large"]
        return events

    events = same_in_slices(data, run) if len(data) < 4_096 else run([data])
    for event in events:
        if isinstance(event, str):
            continue
        is_bounded(len(event.data), data, 1, 0)
        for is_base64 in (True, False):
            again = SseParser().feed(encode_data(event.data, base64=is_base64))
            assert len(again) == 1
        assert again[0].data == event.data
        _control(event.data)


def _control(data: bytes) -> None:
    try:
        control = parse_control(data)
    except ValueError as error:
        assert "\n" not in str(error)
        return
    if control.cursor is None and not control.is_closed:
        control = Control(control.next_offset, "1", control.up_to_date, control.is_closed)
    with suppress(UnicodeEncodeError):
        (event,) = SseParser().feed(encode_control(control))
        expected = Control(control.next_offset, None, True, True) if control.is_closed else control
        assert parse_control(event.data) == expected


@_target
def control(data: bytes) -> None:
    """`protocol/sse.py`: control events."""
    _control(data)


@_target
def json_array(data: bytes) -> None:
    """`protocol/json_body.py`: a valid array keeps its elements; joining two gives both."""

    def run(pieces: list[bytes]) -> bytes | None:
        unwrapper, found = ArrayUnwrapper(), b""
        try:
            for piece in pieces:
                found += unwrapper.feed(piece)
            return found + unwrapper.finish()
        except NotAnArray:
            return None

    inner = same_in_slices(data, run)
    try:
        # Decoded here, because `json` takes bytes with NULs for UTF-16.
        value = json.loads(data.decode())
    except (ValueError, RecursionError):
        return
    if not isinstance(value, list):
        assert inner is None
        return
    assert inner is not None
    assert repr(json.loads((b"[" + inner + b"]").decode())) == repr(value)
    if value:
        assert repr(json.loads((b"[" + inner + b"," + unwrap(data) + b"]").decode())) == repr(value + value)


# -- targets, tags, offsets


@_target
def request_target(data: bytes) -> None:
    """`protocol/target.py`: the canonical form is its own canonical form."""
    try:
        found = target.parse_target(_text(data))
    except target.BadTarget as error:
        assert "\n" not in str(error)
        return
    assert found.path.startswith("/")
    assert found.path.isascii()
    assert found.query.isascii()
    assert _NO_CONTROL.search(found.path + found.query) is None
    assert "/../" not in found.path + "/"
    query = target.upstream_query(found, offset=found.offset, live=found.live, cursor=found.cursor)
    again = target.parse_target(f"{found.path}?{query}")
    assert (again.path, again.query) == (found.path, found.query)
    assert (again.offset, again.live, again.cursor) == (found.offset, found.live, found.cursor)
    is_bounded(len(found.path + query), data, 4, 64)


@_target
def etags(data: bytes) -> None:
    """`protocol/etag.py`: If-None-Match and an origin's tag."""
    text = _text(data)
    tag = etag.mint("i", "0", "1", is_closed=False)
    accepted = coding.AcceptedCodings(coding.Coding.GZIP, frozenset({coding.Coding.GZIP}))
    assert isinstance(etag.matches(text, tag), bool)
    kept = etag.without_codings(text, accepted)
    is_bounded(len(kept or ""), text, 4, 16)
    etag.matched_coding(text, tag, accepted)
    etag.stream_identity({"ETag": text}, "0", "1")
    assert etag.matches(f"{tag}, {tag}", tag)
    minted = etag.mint(text, text, text, is_closed=True)
    assert minted.count('"') == 2


@_target
def offset(data: bytes) -> None:
    """`protocol/names.py` and `protocol/cursor.py`."""
    text = _text(data)
    if names.is_well_formed(text):
        assert len(text) <= names.MAX_OFFSET_CHARS
        assert text.isascii()
        assert not set(text) & set(",&=?/ \r\n")
        assert names.is_before(names.START, text) is (text != names.START)
    found = cursor.parse_cursor(text)
    assert found is None or 0 <= found <= 2**53


# -- fields


@_target
def fields(data: bytes) -> None:
    """`freshness_headers`, `coding`, `surrogate`, `trace_context`, `cache_status`, `forwarding`: no field raises."""
    text = _text(data)
    is_bounded(len(freshness_headers.parse_cache_control(text)), text, 1, 0)
    fresh = freshness_headers.freshness_from_headers(CIMultiDict({"Cache-Control": text, "Age": text}))
    assert 0 <= fresh.fresh_s <= 31_536_000
    ttl = freshness_headers.parse_ttl(text)
    assert ttl is None or 0 <= ttl <= freshness_headers.MAX_TTL_S
    freshness_headers.parse_expires_at(text)
    rules = SharingRules(frozenset({"authorization"}), frozenset({"id"}))
    for name in ("Cache-Control", "Set-Cookie", "Vary", "Access-Control-Allow-Origin"):
        reply = CIMultiDict({"Vary": "Origin", name: text})
        rules.varies_by_origin(reply)
        if (ground := rules.why_alone(reply, is_stored=True)) is not None:
            assert cure(ground, reply, rules)
    accepted = coding.negotiate(text, text, tuple(coding.Coding))
    assert accepted.best is None or accepted.best in accepted.codings
    coding.is_compressible(text)
    is_bounded(sum(map(len, surrogate_keys(_fields("Cache-Tag", data)))), text, 1, 0)
    trace = trace_id_of(text)
    assert trace is None or re.fullmatch(r"[0-9a-f]{32}", trace)
    rendered = cache_status.cache_status(text, cache_status.Outcome.HIT, detail=text)
    assert rendered.isascii()
    assert rendered.isprintable()
    headers = _fields("Connection", data)
    headers.extend(_fields("Forwarded", data))
    with suppress(LoopDetected):
        passed_nodes(_fields("CDN-Loop", data))
    sent = request_headers_for_origin(
        headers, node="n", client="192.0.2.1", host=text, scheme="http", http_version="1.1"
    )
    assert "Connection" not in sent
    assert "Connection" not in response_headers_for_client(headers, node="n", http_version="1.1")


_PROXIES: Final = [client_address.Proxies(("10.0.0.0/8", "unix"), name) for name in ("x-forwarded-for", "forwarded")]


@_target
def forwarded(data: bytes) -> None:
    """`protocol/client_address.py`: the client is an address, and at most one is read from many."""
    for one in _PROXIES:
        headers = _fields("Forwarded" if one is _PROXIES[1] else "X-Forwarded-For", data)
        headers.add("X-Forwarded-Proto", _text(data))
        client = one.client_address("10.0.0.1", headers)
        assert client is not None
        assert re.fullmatch(r"[0-9a-f.:]+", client), client
        assert one.scheme("10.0.0.1", headers, "http") in ("http", "https")
        assert one.client_address("192.0.2.1", headers) == "192.0.2.1"


# -- before HTTP


@_target
def proxy(data: bytes) -> None:
    """`protocol/client_address.py`: incomplete input stays undecided, and more of it decides the same."""

    def first(data: bytes) -> object:
        try:
            return client_address.read_proxy_header(data)
        except client_address.BadProxyHeader:
            return "bad"

    found = first(data)
    if isinstance(found, client_address.ProxyHeader):
        assert found.size <= len(data)
        assert found == first(data[: found.size])
        assert all(first(data[:size]) is None for size in range(min(found.size, 256)))


@_target
def client_hello(data: bytes) -> None:
    """`protocol/client_hello.py`: an incomplete message asks for more bytes than there are."""
    with suppress(BadServerName):
        found = read_client_hello(data)
        if isinstance(found, ClientHello):
            assert found.server_name is None or found.server_name.isascii()
        else:
            assert found > len(data)


# -- configuration


@_target
def config_values(data: bytes) -> None:
    """`config/values.py`: an invalid value is a ValueError of one line; a valid one is its own normal form."""
    text = _text(data)
    for parse in (
        values._address, values.origin_url, values._collector_url, values._log_stream_url, values._route_host,
        values._prefix, values._request_path, values._route_name, values._node_name, values._header_name,
        values._allowed_origin, values._offset_pattern,
    ):  # fmt: skip
        try:
            found = parse(text)
        except ValueError as error:
            assert "\n" not in str(error), parse
        else:
            assert parse(found) == found, parse
    with suppress(ValueError):
        size = sizes.parse_bytes(text)
        assert isinstance(size, int)
        assert sizes.parse_bytes(sizes.format_bytes(size)) == size
    with suppress(ValueError):
        values._partition_key(SecretStr(text))
