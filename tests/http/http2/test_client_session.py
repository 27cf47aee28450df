"""Requests and replies on the client's side: what is sent, what replies mean, what an origin may not do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hpack import Decoder

from gateway.http.framing import MOST_INTERIM
from gateway.http.http2 import frames
from gateway.http.http2.blocks import request_block
from gateway.http.http2.client_session import MOST_STREAMS, REPLY_WINDOW
from gateway.http.http2.flow_control import MOST_UNREAD_BYTES
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.http.http2.streams import (
    BodyEnded,
    DataReceived,
    InterimReceived,
    ReplyReceived,
    StreamDrained,
    StreamReset,
)
from gateway.http.reply_parser import MOST_FIELDS, MOST_HEAD_BYTES, MOST_LINE_BYTES
from tests.http.http2.errors import CALM, CLOSED, FLOW, OF_THE_CONNECTION, PROTOCOL, SIZE
from tests.http.http2.peer import (
    NO_SETTINGS,
    OK,
    Client,
    Headers,
    data,
    frame,
    goaway,
    ping,
    reply,
    request,
    reset,
    setting,
    u32,
    window,
)

EARLY_HINTS: Headers = [(":status", "103")]


def test_the_first_bytes_are_preface_settings_and_a_larger_window() -> None:
    client = Client(is_greeted=False)
    raw = b"".join(client.session.take_out())
    assert raw.startswith(frames.PREFACE + frames.frame_head(18, frames.SETTINGS, 0, 0))
    assert frame(frames.SETTINGS, 0, 0, b"")[3:4] in raw
    assert not client.session.is_greeted


def test_a_reply_has_head_body_and_end() -> None:
    client = Client()
    stream = client.ask()
    events = client.take(
        reply(1, [*OK, ("content-length", "3"), ("etag", '"a"')], ends=False), data(1, b"ab"), data(1, b"c", ends=True)
    )
    head = events[0]
    assert isinstance(head, ReplyReceived)
    assert (head.head.status, head.head.reason, head.head.content_length) == (200, "OK", 3)
    assert head.head.headers["ETag"] == '"a"'
    assert head.head.is_delimited
    assert [event.data for event in events if isinstance(event, DataReceived)] == [b"abc"]
    assert events[-1] == BodyEnded(stream)
    assert not client.session.streams


def test_interim_replies_are_bounded_by_rate() -> None:
    client = Client()
    stream = client.ask()
    for second in range(1_000):
        client.now = float(second)
        (event,) = client.take(reply(1, [(":status", "102"), ("x", str(second))], ends=False))
        assert isinstance(event, InterimReceived)
        assert (event.interim.status, event.interim.headers["x"]) == (102, str(second))
    client.take(reply(1, EARLY_HINTS, ends=False) * (MOST_INTERIM + 1))
    assert stream.reset_code is PROTOCOL


def test_interim_replies_and_trailers_are_no_part_of_the_reply() -> None:
    client = Client()
    stream = client.ask()
    events = client.take(
        reply(1, EARLY_HINTS, ends=False) * 2, reply(1, ends=False), data(1, b"a"), reply(1, [("grpc-status", "0")])
    )
    kinds = [type(event) for event in events]
    assert kinds == [InterimReceived, InterimReceived, ReplyReceived, DataReceived, BodyEnded]
    assert stream.reset_code is None
    assert not client.session.streams


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        (b"HEAD", [*OK, ("content-length", "9")]),
        (b"GET", [(":status", "304"), ("content-length", "9")]),
        (b"GET", [(":status", "204")]),
    ],
)
def test_a_reply_without_a_body_may_announce_a_length(method: bytes, headers: Headers) -> None:
    for raw in (reply(1, headers), reply(1, headers, ends=False) + data(1, ends=True)):
        client = Client()
        client.ask(method + b" /s HTTP/1.1\r\nHost: o\r\n\r\n")
        events = client.take(raw)
        assert isinstance(events[0], ReplyReceived)
        assert not client.session.streams
        assert client.resets() == []
    client = Client()
    client.ask(method + b" /s HTTP/1.1\r\nHost: o\r\n\r\n")
    client.take(reply(1, headers, ends=False), data(1, b"x"))
    assert client.resets() == [(1, PROTOCOL)]


def test_a_request_of_http_1_becomes_one_of_http_2() -> None:
    head = (
        b"POST /a%20b?x=1 HTTP/1.1\r\nHost: origin:81\r\nAuthorization: secret\r\nX-A: \xc3\xa9\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    client, server = Client(), Decoder()
    client.session.send_request(request_block(head, "https"), ends=False)
    ((kind, flags, stream_id, payload),) = client.said()
    fields = list(server.decode(payload, raw=True))
    assert (kind, flags, stream_id) == (frames.HEADERS, frames.END_HEADERS, 1)
    assert [tuple(field) for field in fields] == [
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":authority", b"origin:81"),
        (b":path", b"/a%20b?x=1"),
        (b"authorization", b"secret"),
        (b"x-a", b"\xc3\xa9"),
    ]
    assert not fields[4].indexable, "no table may keep a secret"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="no status"),
        pytest.param([("x", "y"), *OK], id="a status behind a field"),
        pytest.param([*OK, *OK], id="two statuses"),
        pytest.param([*OK, (":path", "/")], id="a pseudo field of requests"),
        pytest.param([(":status", "20")], id="a status of two digits"),
        pytest.param([(":status", "099")], id="a status below 100"),
        pytest.param([(":status", "+20")], id="a sign"),
        pytest.param([(":status", "101")], id="101"),
        pytest.param([*OK, ("X", "y")], id="upper case"),
        pytest.param([*OK, ("x y", "z")], id="a blank in a name"),
        pytest.param([*OK, ("", "z")], id="an empty name"),
        pytest.param([*OK, ("x", "y\r\nz: a")], id="a line end in a value"),
        pytest.param([*OK, ("x", "y\0")], id="NUL in a value"),
        pytest.param([*OK, ("x", " y")], id="a blank before a value"),
        pytest.param([*OK, ("connection", "close")], id="Connection"),
        pytest.param([*OK, ("transfer-encoding", "chunked")], id="Transfer-Encoding"),
        pytest.param([*OK, ("content-length", "x")], id="a length that is none"),
        pytest.param([*OK, ("content-length", "-1")], id="a negative length"),
        pytest.param([*OK, ("content-length", "1"), ("content-length", "1")], id="a repeated length"),
        pytest.param([*OK, ("content-length", "1" * 19)], id="a length of 19 digits"),
        pytest.param([*OK, *[("x", "y")] * (MOST_FIELDS + 1)], id="too many fields"),
        pytest.param([*OK, ("x", "y" * MOST_LINE_BYTES)], id="too large a field"),
        pytest.param([*OK, *[("x", "y" * 16_000)] * 4, ("x", "y" * 1_600)], id="too large a head"),
    ],
)
def test_a_malformed_reply_resets_its_stream_and_no_other(headers: Headers) -> None:
    client = Client()
    broken, other = client.ask(), client.ask()
    (event,) = client.take(reply(1, headers))
    assert event == StreamReset(broken, is_by_peer=False)
    assert client.resets() == [(1, PROTOCOL)]
    assert isinstance(client.take(reply(other.id))[0], ReplyReceived)


def test_a_reply_may_be_as_large_as_the_bound() -> None:
    client = Client()
    client.ask()
    size = MOST_HEAD_BYTES // MOST_FIELDS - 1
    (event,) = client.take(reply(1, [*OK, *[("x", "y" * size)] * MOST_FIELDS]))
    assert isinstance(event, ReplyReceived)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        pytest.param(data(1, b"x"), PROTOCOL, id="DATA before the head"),
        pytest.param(reply(1, EARLY_HINTS), PROTOCOL, id="an interim reply that ends"),
        pytest.param(reply(1, EARLY_HINTS, ends=False) * (MOST_INTERIM + 1), PROTOCOL, id="too many interim replies"),
        pytest.param(reply(1, [*OK, ("content-length", "3")]), PROTOCOL, id="a length and no body"),
        pytest.param(
            reply(1, [*OK, ("content-length", "3")], ends=False) + data(1, b"abcd"), PROTOCOL, id="more than announced"
        ),
        pytest.param(
            reply(1, [*OK, ("content-length", "3")], ends=False) + data(1, b"ab", ends=True),
            PROTOCOL,
            id="less than announced",
        ),
        pytest.param(reply(1, ends=False) + reply(1, [("x", "y")], ends=False), PROTOCOL, id="trailers without an end"),
        pytest.param(reply(1, ends=False) + reply(1), PROTOCOL, id="a second head"),
        pytest.param(window(1, 0), PROTOCOL, id="a window that grows by nothing"),
        pytest.param(window(1, (1 << 31) - 1), FLOW, id="a window that overflows"),
        pytest.param(
            reply(1, ends=False) + data(1, bytes(1 << 14)) * (REPLY_WINDOW // (1 << 14)) + data(1, b"x"),
            FLOW,
            id="more than the window",
        ),
    ],
)
def test_an_error_of_one_stream_resets_it_and_no_other(raw: bytes, code: ErrorCode) -> None:
    client = Client()
    stream, other = client.ask(), client.ask()
    events = client.take(raw)
    assert events[-1] == StreamReset(stream, is_by_peer=False)
    assert (1, code) in client.resets()
    client.take(data(1, b"late", ends=True), window(1, 5))
    assert isinstance(client.take(reply(other.id))[0], ReplyReceived)


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        *OF_THE_CONNECTION,
        pytest.param(data(3, b"x"), PROTOCOL, id="DATA for an unknown stream"),
        pytest.param(reply(3), PROTOCOL, id="a reply to no request"),
        pytest.param(reply(2), PROTOCOL, id="a stream that the origin begins"),
        pytest.param(request(2), PROTOCOL, id="a request of the origin"),
        pytest.param(reply(1) + data(1, b"x"), CLOSED, id="DATA behind the end"),
        pytest.param(reply(1) + reply(1), CLOSED, id="a second reply"),
        pytest.param(setting(Setting.ENABLE_PUSH, 1), PROTOCOL, id="ENABLE_PUSH"),
        pytest.param(frames.PREFACE, SIZE, id="a client's preface"),
        pytest.param(reply(1, [*OK, *[("x", "y" * 4_000)] * 30]), CALM, id="too much in a field list"),
    ],
)
def test_an_error_of_the_connection_ends_it(raw: bytes, code: ErrorCode) -> None:
    client = Client()
    client.ask()
    client.said()
    client.take(raw)
    assert client.session.failed is code
    kind, _, _, payload = client.said()[-1]
    assert (kind, payload) == (frames.GOAWAY, u32(0) + u32(code))
    assert client.take(reply(1)) == []
    assert not client.session.most_streams


@pytest.mark.parametrize("raw", [b"HTTP/1.1 400 Bad Request\r\n\r\n", reply(1), ping(), frames.SETTINGS_ACK])
def test_an_origin_begins_with_settings(raw: bytes) -> None:
    client = Client(is_greeted=False)
    client.ask()
    for byte in raw:
        client.take(bytes((byte,)))
    assert client.session.failed is not None
    assert not client.session.is_greeted


def test_goaway_ends_the_streams_that_it_does_not_name() -> None:
    client = Client()
    first, second, third = client.ask(), client.ask(), client.ask()
    events = client.take(reply(first.id, ends=False), goaway(first.id))
    assert events[1:] == [StreamReset(second, is_by_peer=True), StreamReset(third, is_by_peer=True)]
    assert second.reset_code is ErrorCode.REFUSED_STREAM
    assert client.session.most_streams == 0
    # What is still under way for the others is no error, and the first goes on.
    client.take(reply(second.id), data(third.id, b"x"))
    assert client.take(data(first.id, b"abc", ends=True))[-1] == BodyEnded(first)
    assert client.session.failed is None


def test_a_first_goaway_of_two_ends_nothing() -> None:
    client = Client()
    stream = client.ask()
    assert client.take(goaway(frames.LAST_STREAM_ID)) == []
    assert client.session.most_streams == 0
    (event,) = client.take(goaway(stream.id), reply(stream.id))
    assert isinstance(event, ReplyReceived)


def test_a_refused_stream_was_not_processed() -> None:
    client = Client()
    stream = client.ask()
    assert client.take(reset(1, ErrorCode.REFUSED_STREAM)) == [StreamReset(stream, is_by_peer=True)]
    assert stream.reset_code is ErrorCode.REFUSED_STREAM
    assert client.take(frame(frames.RST_STREAM, 0, client.ask().id, u32(99)))
    assert client.events[-1].stream.reset_code is ErrorCode.INTERNAL_ERROR  # type: ignore[union-attr]


def test_requests_at_once_are_bounded_by_both_sides() -> None:
    client = Client()
    assert client.session.most_streams == MOST_STREAMS
    client.take(setting(Setting.MAX_CONCURRENT_STREAMS, 3))
    assert client.session.most_streams == 3
    client.take(setting(Setting.MAX_CONCURRENT_STREAMS, 1 << 31))
    assert client.session.most_streams == MOST_STREAMS


def test_unread_bodies_share_a_bound() -> None:
    client = Client()
    streams = [client.ask() for _ in range(12)]
    for stream in streams:
        client.take(reply(stream.id, ends=False))
    client.said()
    unread = 0
    for _ in range(64):
        for stream in streams:
            if stream.receive_window < 1 << 14:
                continue
            (event,) = client.take(data(stream.id, bytes(1 << 14)))
            assert isinstance(event, DataReceived)
            unread += event.size
            client.session.unread(stream, stream.unread_bytes + event.size)
            client.session.acknowledge(stream, event.size)
    assert client.session.failed is None
    assert MOST_UNREAD_BYTES < unread <= MOST_UNREAD_BYTES + len(streams) * REPLY_WINDOW
    assert client.session.input_bytes == unread
    # A body that is read goes on.
    client.said()
    client.session.unread(streams[0], 0)
    client.session.acknowledge(streams[0], 0)
    assert (frames.WINDOW_UPDATE, streams[0].id) in [(kind, id_) for kind, _, id_, _ in client.said()]


def test_a_body_waits_for_the_origins_windows() -> None:
    client = Client()
    stream = client.ask(ends=False)
    client.said()
    client.session.send_data(stream, bytes(100_000))
    assert sum(len(payload) for kind, _, _, payload in client.said() if kind == frames.DATA) == 65_535
    assert stream.queued_bytes == 100_000 - 65_535
    assert client.take(window(0, 1 << 20), window(1, 1 << 20)) == [StreamDrained(stream)]
    client.session.end_stream(stream)
    assert client.said()[-1] == (frames.DATA, frames.END_STREAM, 1, b"")


def test_the_end_of_a_body_waits_neither_for_the_transport_nor_for_a_window() -> None:
    """An origin that reads a body as a whole opens no window before the end."""
    client = Client()
    other, stream = client.ask(ends=False), client.ask(ends=False)
    for size in (*[1 << 14] * 3, (1 << 14) - 1):
        client.session.send_data(stream, bytes(size))
    client.session.is_blocked = True
    client.session.send_data(other, b"waits")
    client.session.end_stream(stream)
    client.session.is_blocked = False
    client.session.send_queued()
    assert (frames.DATA, frames.END_STREAM, stream.id, b"") in client.said()
    assert other.is_full


def test_a_reply_may_end_before_its_request() -> None:
    client = Client()
    stream = client.ask(ends=False)
    client.take(reply(1))
    client.session.send_data(stream, b"more")
    assert stream.id in client.session.streams
    assert client.take(reset(1, ErrorCode.NO_ERROR)) == [StreamReset(stream, is_by_peer=True)]
    assert stream.reset_code is ErrorCode.NO_ERROR


@pytest.mark.parametrize(
    ("flood", "begin"),
    [
        pytest.param(lambda _: ping(), b"", id="PING"),
        pytest.param(lambda _: NO_SETTINGS, b"", id="SETTINGS"),
        pytest.param(lambda _: setting(Setting.INITIAL_WINDOW_SIZE, 5), b"", id="windows by SETTINGS"),
        pytest.param(lambda _: data(1), reply(1, ends=False), id="empty DATA"),
        pytest.param(
            lambda _: frame(frames.CONTINUATION, 0, 1), frame(frames.HEADERS, 1, 1, b"\x88"), id="CONTINUATION"
        ),
        pytest.param(lambda _: window(0, 1), b"", id="WINDOW_UPDATE"),
        pytest.param(lambda _: goaway(1), b"", id="GOAWAY"),
        pytest.param(lambda _: reset(1), b"", id="RST_STREAM for a stream that is over"),
        pytest.param(lambda _: frame(99, 0, 0), b"", id="unknown frames"),
        pytest.param(lambda client: reply(client.ask().id, []), b"", id="malformed replies"),
        pytest.param(
            lambda _: data(1, b"x"), reply(1, [("x", "y")], ends=False), id="DATA for a stream that was reset"
        ),
    ],
)
def test_a_flood_ends_its_connection(flood: Callable[[Client], bytes], begin: bytes) -> None:
    client = Client()
    client.ask()
    client.take(begin)
    client.said()
    for _ in range(4_000):
        client.take(flood(client))
        assert client.session.out_bytes < 1 << 16
        if client.session.failed:
            break
    assert client.session.failed is CALM
    assert sum(client.counts.floods.values()) == 1


def test_requests_that_clients_cancel_are_not_a_flood_of_the_origin() -> None:
    client = Client()
    for _ in range(3_000):
        stream = client.ask()
        client.take(reply(stream.id, ends=False))
        client.session.reset(stream, ErrorCode.CANCEL)
        client.take(data(stream.id, b"late") * 4)
        assert client.session.failed is None
        client.said()


@pytest.mark.parametrize("size", [1, 80, 16_000])
def test_a_body_within_the_window_of_a_cancelled_request_is_no_flood(size: int) -> None:
    """The origin may have sent all of it before it read the reset (RFC 9113 section 5.1)."""
    client = Client()
    cancelled = [client.ask() for _ in range(3)]
    staying = client.ask()
    for stream in cancelled:
        client.take(reply(stream.id, ends=False))
        client.session.reset(stream, ErrorCode.CANCEL)
    count = min(3_000, REPLY_WINDOW // size)
    for stream in cancelled:
        for _ in range(count):
            client.take(data(stream.id, bytes(size)))
        client.said()
    assert client.session.failed is None
    assert client.take(reply(staying.id))


def test_more_than_the_windows_of_cancelled_requests_is_a_flood() -> None:
    client = Client()
    stream = client.ask()
    client.take(reply(stream.id, ends=False))
    client.session.reset(stream, ErrorCode.CANCEL)
    for _ in range(REPLY_WINDOW // 64 + 4_000):
        client.take(data(stream.id, bytes(64)))
        if client.session.failed:
            break
    assert client.session.failed is CALM


def test_replies_to_requests_that_were_cancelled_long_ago_are_dropped() -> None:
    """An origin that stalled answers what it had read, although its clients have left and others have come since."""
    client = Client()
    cancelled = [client.ask() for _ in range(600)]
    for stream in cancelled:
        client.session.reset(stream, ErrorCode.CANCEL)
    asked = client.ask()
    client.take(*(reply(stream.id, ends=False) + data(stream.id, b"late", ends=True) for stream in cancelled))
    assert client.session.failed is None
    assert client.take(reply(asked.id))
    # Those of a stream that has ended since are an error still.
    client.take(data(asked.id, b"late"))
    assert client.session.failed is CLOSED


def test_resets_of_requests_are_not_a_flood() -> None:
    client = Client()
    for _ in range(3_000):
        client.take(reset(client.ask().id))
    assert client.session.failed is None


def test_resets_behind_whole_replies_are_not_a_flood() -> None:
    """An origin that answers before it has read the request's end asks for no more of it (RFC 9113 section 8.1)."""
    client = Client()
    for _ in range(3_000):
        stream = client.ask(ends=False)
        client.session.send_data(stream, b"x", ends=True)
        client.take(window(0, 1), reply(stream.id), reset(stream.id, ErrorCode.NO_ERROR))
    assert client.session.failed is None
    # Each request accounts for one.
    client.take(reset(stream.id) * 1_000)
    assert client.session.failed is CALM
