"""Valid input of a client: frames in, events and frames out."""

from __future__ import annotations

import itertools

import pytest

from gateway.http.http2 import frames
from gateway.http.http2.flow_control import MOST_UNREAD_BYTES, STREAM_UNREAD_BYTES
from gateway.http.http2.frames import ErrorCode, Setting
from gateway.http.http2.streams import (
    BodyEnded,
    ConnectionEvent,
    DataReceived,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from tests.http.http2.peer import (
    GET,
    NO_SETTINGS,
    POST,
    Server,
    block,
    data,
    frame,
    ping,
    request,
    reset,
    setting,
    u32,
    window,
)

PROTOCOL, SIZE, CLOSED = ErrorCode.PROTOCOL_ERROR, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.STREAM_CLOSED
FLOW, CALM = ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.ENHANCE_YOUR_CALM
OPEN = request(1, POST, ends=False)


def test_a_request_and_its_body_become_events() -> None:
    server = Server()
    events = server.take(OPEN, data(1, b"abc"), frame(frames.DATA, frames.PADDED, 1, b"\x02de\0\0"), data(1, ends=True))
    begun, body, ended = events
    assert isinstance(begun, RequestReceived)
    assert not begun.is_whole
    assert isinstance(body, DataReceived)
    assert (body.data, body.size) == (b"abcde", 3 + 5)
    assert isinstance(ended, BodyEnded)


def test_trailers_are_dropped() -> None:
    server = Server()
    events = server.take(OPEN, data(1, b"abc"), request(1, [("x", "y")]))
    assert [type(event) for event in events] == [RequestReceived, DataReceived, BodyEnded]


def test_a_block_may_arrive_in_pieces_of_any_size() -> None:
    server = Server()
    raw = block([*GET, ("x", "y" * 50)])
    pieces = [frame(frames.CONTINUATION, 0, 1, bytes((byte,))) for byte in raw[1:-1]]
    whole = frame(frames.HEADERS, 1, 1, raw[:1]) + b"".join(pieces) + frame(frames.CONTINUATION, 4, 1, raw[-1:])
    for byte in whole[:-1]:
        assert server.take(bytes((byte,))) == []
        assert server.session.is_mid_head
    assert [type(event) for event in server.take(whole[-1:])] == [RequestReceived]
    assert not server.session.is_mid_head


def test_a_partial_body_is_not_a_partial_head() -> None:
    server = Server()
    server.take(OPEN + data(1, b"abcdef")[:-2])
    assert not server.session.is_mid_head


def test_unknown_frames_and_settings_are_ignored() -> None:
    server = Server()
    server.take(frame(99, 255, 7, b"x"), setting(0x99, 5))
    assert server.session.failed is None


def test_a_ping_is_answered() -> None:
    server = Server()
    server.take(ping(b"abcdefgh"))
    assert server.said() == [(frames.PING, frames.ACK, 0, b"abcdefgh")]


def test_settings_are_acknowledged() -> None:
    server = Server()
    server.take(NO_SETTINGS)
    assert server.said() == [(frames.SETTINGS, frames.ACK, 0, b"")]


def test_a_smaller_table_is_acknowledged_by_a_size_update() -> None:
    server = Server()
    server.take(setting(Setting.HEADER_TABLE_SIZE, 0), request(1), request(3))
    server.said()
    server.session.send_head(server.streams[1], b"\x88", ends=True)
    server.session.send_head(server.streams[3], b"\x88", ends=True)
    assert [payload for *_, payload in server.said()] == [b"\x20\x88", b"\x88"]


def test_no_more_heads_are_read_than_asked_for_and_the_rest_is_read_later() -> None:
    server = Server()
    flood = b"".join(request(id_) + reset(id_) for id_ in range(1, 21, 2))
    shown = []
    for piece, most_heads in ((flood[:-1], 3), (b"", 0), (flood[-1:], 0), (b"", 6), (b"", 6)):
        events = server.session.receive(piece, 0.0, most_heads)
        shown.append((len(events), server.session.has_more, server.session.is_mid_head))
    # A request's reset is read with it.
    assert shown == [(6, True, False), (0, True, False), (0, True, False), (12, True, False), (2, False, False)]
    assert server.session.input_bytes == 0


@pytest.mark.parametrize("cut", [0, 5, 11])
def test_no_more_other_frames_are_read_than_asked_for_and_the_rest_is_read_later(cut: int) -> None:
    server = Server()
    body = b"".join(data(1, bytes((n,)) * 1_024) for n in range(20))
    rest, flood = body[len(body) - cut :], request(1, POST, ends=False) + body[: len(body) - cut]
    events = [*server.session.receive(flood, 0.0, 4, 8), *server.session.receive(rest, 0.0, 4, 0)]
    assert (len(events), server.session.has_more) == (9, True)
    assert server.session.input_bytes == 12 * len(data(1, bytes(1_024)))
    events += server.session.receive(b"", 0.0, 4, 8)
    events += server.session.receive(data(1, b"last", ends=True), 0.0, 4, 8)
    assert not server.session.has_more
    received = b"".join(event.data for event in events if isinstance(event, DataReceived))
    assert received == b"".join(bytes((n,)) * 1_024 for n in range(20)) + b"last"
    assert server.session.input_bytes == 0


@pytest.mark.parametrize("cut", [1, 5, 50, 1_000])
def test_kept_input_is_read_later_in_the_order_of_its_arrival(cut: int) -> None:
    server = Server()
    flood = request(1, POST, ends=False) + b"".join(data(1, bytes((n,)) * 9) for n in range(20))
    last = b"".join(data(1, bytes((n,)) * 9, ends=n == 39) for n in range(20, 40))
    events = server.session.receive(flood, 0.0, 1, 8)
    unread = server.session.input_bytes
    for at in range(0, len(last), cut):
        server.session.keep(last[at : at + cut])
    assert server.session.input_bytes == unread + len(last), "what has been read is no longer held"
    for _ in range(4):
        events += server.session.receive(b"", 0.0, 1, 8)
    assert not server.session.has_more
    received = b"".join(event.data for event in events if isinstance(event, DataReceived))
    assert received == b"".join(bytes((n,)) * 9 for n in range(40))
    assert isinstance(events[-1], BodyEnded)


def test_a_long_settings_frame_is_a_flood_by_itself() -> None:
    server = Server()
    server.take(frame(frames.SETTINGS, 0, 0, setting(Setting.INITIAL_WINDOW_SIZE, 5)[9:] * 2_730))
    assert server.session.failed is ErrorCode.ENHANCE_YOUR_CALM


def test_pieces_of_one_byte_become_one_event() -> None:
    server = Server()
    server.take(request(1, POST, ends=False), request(3, POST, ends=False))
    events = server.take(*(data(1, b"x") for _ in range(50)), data(3, b"y"), data(1, b"z", ends=True))
    pieces = [(event.stream.id, event.data, event.size) for event in events if isinstance(event, DataReceived)]
    assert pieces == [(1, b"x" * 50, 50), (3, b"y", 1), (1, b"z", 1)]


def test_the_last_window_of_a_settings_frame_applies() -> None:
    server = Server()
    streams = [request(id_, POST, ends=False) for id_ in range(1, 201, 2)]
    server.take(*streams)
    windows = [1 << 30, *range(200), (1 << 31) - 1, 7]
    server.take(frame(frames.SETTINGS, 0, 0, b"".join(setting(Setting.INITIAL_WINDOW_SIZE, n)[9:] for n in windows)))
    assert {stream.send_window for stream in server.streams.values()} == {7}
    (later,) = server.take(request(201))
    assert isinstance(later, RequestReceived)
    assert later.stream.send_window == 7


def test_an_invalid_setting_ends_the_connection_although_a_valid_one_follows() -> None:
    server = Server()
    values = (1 << 31, 7)
    server.take(frame(frames.SETTINGS, 0, 0, b"".join(setting(Setting.INITIAL_WINDOW_SIZE, n)[9:] for n in values)))
    assert server.session.failed is ErrorCode.FLOW_CONTROL_ERROR


def test_what_waits_to_be_read_after_a_failure_is_dropped() -> None:
    server = Server()
    server.session.receive(request(1) + request(3), 0.0, 1)
    assert server.session.has_more
    server.session.fail(ErrorCode.ENHANCE_YOUR_CALM)
    assert server.session.receive(b"", 0.0, 1) == []
    assert not server.session.has_more


def test_streams_beyond_the_bound_are_refused() -> None:
    server = Server(most_streams=2)
    events = server.take(request(1), request(3), request(5))
    assert len(events) == 2
    assert server.resets() == [(5, ErrorCode.REFUSED_STREAM)]
    server.session.send_head(server.streams[1], b"\x88", ends=True)
    assert len(server.take(request(7))) == 1


def test_a_stream_reset_by_the_client_is_over() -> None:
    server = Server()
    server.take(OPEN)
    (gone,) = server.take(reset(1))
    assert isinstance(gone, StreamReset)
    assert gone.is_by_peer
    server.session.send_data(server.streams[1], b"late", ends=True)
    assert server.said() == []


def test_an_answer_before_the_end_of_the_body_ends_the_stream() -> None:
    server = Server()
    server.take(OPEN, data(1, b"abc"))
    server.session.send_head(server.streams[1], b"\x8c", ends=True)
    assert server.resets() == [(1, ErrorCode.NO_ERROR)]
    server.take(data(1, bytes(1 << 14)), data(1, b"x", ends=True))
    assert server.session.failed is None


# -- windows


def sent(server: Server) -> dict[int, bytes]:
    """DATA by stream."""
    found: dict[int, bytes] = {}
    for kind, _, stream_id, payload in server.said():
        if kind == frames.DATA:
            found[stream_id] = found.get(stream_id, b"") + payload
    return found


def test_an_answer_waits_for_the_window_of_its_stream() -> None:
    server = Server()
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 5), request(1), request(3))
    first, second = server.streams[1], server.streams[3]
    server.session.send_data(first, b"abcdefgh", ends=True)
    assert sent(server) == {1: b"abcde"}
    assert first.is_full
    server.session.send_data(second, b"xyz", ends=True)
    assert sent(server) == {3: b"xyz"}
    assert server.take(window(1, 1)) == []
    (drained,) = server.take(window(1, 100))
    assert drained == StreamDrained(first)
    assert sent(server) == {1: b"fgh"}
    assert not server.session.streams


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(request(1), id="plain"),
        pytest.param(OPEN, id="body not read"),
        pytest.param(request(1) + reset(1), id="reset"),
        pytest.param(request(1) + setting(Setting.INITIAL_WINDOW_SIZE, 100), id="small window"),
        pytest.param(request(1) + setting(Setting.HEADER_TABLE_SIZE, 0), id="size update owed"),
        pytest.param(request(1) + ping(b""), id="failed"),
    ],
)
def test_a_whole_answer_is_written_like_its_head_and_its_pieces(before: bytes) -> None:
    sizes, blocks = (0, 1, 100, 101, 16_384, 16_385), (1, 16_384, 16_385)
    for size, block_bytes, pieces, is_blocked in itertools.product(sizes, blocks, (1, 2), (False, True)):
        body = (bytes(size),) * pieces if size else ()
        whole, parts = Server(), Server()
        for server in (whole, parts):
            server.take(setting(Setting.INITIAL_WINDOW_SIZE, 1 << 20), before)
            server.session.is_blocked = is_blocked
        stream = parts.streams[1]
        whole.session.send_answer(whole.streams[1], bytes(block_bytes), body)
        parts.session.send_head(stream, bytes(block_bytes), ends=not body)
        for at, piece in enumerate(body, 1):
            parts.session.send_data(stream, piece, ends=at == pieces)
        for server in (whole, parts):
            assert server.session.out_bytes == sum(map(len, server.session.out))
        assert whole.said() == parts.said()
        assert repr(whole.session) == repr(parts.session)
        one = whole.streams[1]
        assert (one.is_ended, one.reset_code) == (stream.is_ended, stream.reset_code)
        assert one.queued_bytes == stream.queued_bytes


def test_an_answer_waits_for_the_window_of_the_connection() -> None:
    server = Server()
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 1 << 20), request(1), request(3))
    body = bytes(1 << 16)
    server.session.send_data(server.streams[1], body, ends=True)
    server.session.send_data(server.streams[3], b"xyz", ends=True)
    assert sent(server) == {1: body[:65_535]}
    server.take(window(0, 10))
    assert sent(server) == {1: body[65_535:], 3: b"xyz"}


def test_a_negative_window_is_waited_out() -> None:
    server = Server()
    server.take(request(1))
    server.session.send_data(server.streams[1], bytes(100))
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 0))
    server.session.send_data(server.streams[1], b"abc", ends=True)
    assert sent(server) == {1: bytes(100)}
    server.take(window(1, 100))
    assert sent(server) == {}
    server.take(window(1, 2))
    assert sent(server) == {1: b"ab"}
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 1))
    assert sent(server) == {1: b"c"}


def test_an_end_needs_no_window() -> None:
    server = Server()
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 0), request(1))
    server.session.end_stream(server.streams[1])
    assert server.said()[-1] == (frames.DATA, frames.END_STREAM, 1, b"")


def test_an_end_with_a_negative_window_is_sent_as_trailers() -> None:
    """h2's client treats even an empty DATA frame as an error there, although RFC 9113 section 6.9.1 allows it."""
    server = Server()
    server.take(request(1))
    server.session.send_data(server.streams[1], bytes(100))
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 0))
    server.said()
    server.session.end_stream(server.streams[1])
    assert server.said() == [(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, b"")]
    assert not server.session.streams


def test_a_window_that_shrinks_before_its_turn_is_waited_out() -> None:
    server = Server()
    server.take(request(1))
    server.session.send_data(server.streams[1], bytes(100))
    server.session.is_blocked = True
    server.session.send_data(server.streams[1], b"abc", ends=True)
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 0))
    server.said()
    server.session.is_blocked = False
    server.session.send_queued()
    assert server.said() == []
    server.take(window(1, 103))
    assert sent(server) == {1: b"abc"}


def test_streams_take_turns() -> None:
    server = Server()
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 1 << 20), window(0, 1 << 20), *map(request, (1, 3, 5)))
    server.session.is_blocked = True
    for stream in server.streams.values():
        server.session.send_data(stream, bytes(1 << 15), ends=True)
    server.said()
    server.session.is_blocked = False
    ids = []
    while server.session.can_pump:
        server.session.send_queued()
        ids += [stream_id for _, _, stream_id, _ in server.said()]
    assert ids == [1, 3, 5, 1, 3, 5]


def test_a_stream_that_has_been_drained_is_reported() -> None:
    server = Server()
    server.take(setting(Setting.INITIAL_WINDOW_SIZE, 1 << 20), request(1), request(3))
    first, second = server.streams[1], server.streams[3]
    server.session.send_data(first, bytes(150_000))
    drained = [event.stream for event in server.take(window(0, 1 << 20)) if isinstance(event, StreamDrained)]
    server.said()
    assert first.queued_bytes
    # An answer on another stream, between two writes to the transport.
    for _ in range(5):
        server.session.send_data(second, bytes(1 << 15))
        server.said()
    while server.session.can_pump:
        drained += server.session.send_queued()
        server.said()
    assert first in drained


def test_only_heads_are_written_to_a_full_transport() -> None:
    server = Server()
    server.take(request(1))
    server.session.is_blocked = True
    server.session.send_head(server.streams[1], b"\x88")
    server.session.send_data(server.streams[1], b"abc")
    assert [kind for kind, *_ in server.said()] == [frames.HEADERS]
    assert server.streams[1].is_full


def test_the_window_of_a_body_opens_as_it_is_read() -> None:
    server = Server()
    server.take(OPEN)
    stream = server.streams[1]
    for _ in range(20):
        for part in server.take(data(1, bytes(1 << 14))):
            assert isinstance(part, DataReceived)
            server.session.acknowledge(stream, part.size)
    updates = [(stream_id, int.from_bytes(payload, "big")) for kind, _, stream_id, payload in server.said()]
    assert sum(size for stream_id, size in updates if stream_id == 1) > 18 << 14
    assert sum(size for stream_id, size in updates if not stream_id) >= 16 << 14


def test_the_window_of_an_unread_body_stays_closed() -> None:
    server = Server()
    server.take(OPEN, request(3, POST, ends=False))
    stream = server.streams[1]
    server.session.unread(stream, STREAM_UNREAD_BYTES + 1)
    for part in server.take(data(1, bytes(1 << 14)), data(1, bytes(1 << 14)), data(1, bytes(1 << 14))):
        assert isinstance(part, DataReceived)
        server.session.acknowledge(stream, part.size)
    assert server.said() == []
    server.take(data(3, b"abc"))
    server.session.unread(stream, 0)
    assert server.said() == [(frames.WINDOW_UPDATE, 0, 1, u32(3 << 14))]


def upload(server: Server, stream_id: int, *, unread: int) -> None:
    """Send half a window of a body, and leave `unread` bytes of it unread."""
    stream = server.streams[stream_id]
    for part in server.take(data(stream_id, bytes(1 << 14)), data(stream_id, bytes(1 << 14))):
        assert isinstance(part, DataReceived)
        server.session.unread(stream, unread)
        server.session.acknowledge(stream, part.size)


def test_unread_bodies_share_a_bound() -> None:
    server = Server(most_streams=200)
    ids = range(1, 200, 2)
    server.take(*(request(stream_id, POST, ends=False) for stream_id in ids))
    for stream_id in ids:
        upload(server, stream_id, unread=1 << 15)
    grown = {to for kind, _, to, _ in server.said() if kind == frames.WINDOW_UPDATE and to}
    assert len(grown) == MOST_UNREAD_BYTES >> 15
    # A body that is read goes on meanwhile.
    server.take(request(201, POST, ends=False))
    for _ in range(100):
        upload(server, 201, unread=1 << 15)
        server.session.unread(server.streams[201], 0)
        assert (frames.WINDOW_UPDATE, 0, 201, u32(1 << 15)) in server.said()


@pytest.mark.parametrize("how", ["read", "reset", "answered"])
def test_a_body_that_is_read_or_dropped_makes_room_for_others(how: str) -> None:
    server = Server(most_streams=200)
    server.take(*(request(stream_id, POST, ends=False) for stream_id in (1, 3)))
    first = server.streams[1]
    server.session.unread(first, MOST_UNREAD_BYTES)
    upload(server, 3, unread=1 << 15)
    assert server.said() == []
    match how:
        case "read":
            server.session.unread(first, 0)
        case "reset":
            server.take(reset(1))
        case _:
            server.session.send_head(first, b"\x88", ends=True)
    assert (frames.WINDOW_UPDATE, 0, 3, u32(1 << 15)) in server.said()
    # Reading its bytes afterwards has no effect.
    server.session.unread(first, 0)
    server.session.unread(server.streams[3], 0)
    assert "0 unread" in repr(server.session)


def test_resetting_an_unread_body_opens_the_window_of_the_connection() -> None:
    server = Server()
    for stream_id in range(1, 400, 2):
        server.take(request(stream_id, POST, ends=False))
        # All frames are parsed before any event is handled.
        events = server.take(data(stream_id, bytes(1 << 14)), reset(stream_id))
        (part,) = (event for event in events if isinstance(event, DataReceived))
        server.session.acknowledge(part.stream, part.size)
        server.now += 1
    assert server.session.failed is None


def test_many_begun_bodies_leave_the_window_of_the_connection_open() -> None:
    server = Server()
    # The bytes read of each body are too few to reopen its own window.
    for stream_id in range(1, 256, 2):
        for event in server.take(request(stream_id, POST, ends=False), data(stream_id, bytes(1 << 14))):
            if isinstance(event, DataReceived):
                server.session.acknowledge(event.stream, event.size)
    assert server.session.failed is None
    grown = [int.from_bytes(payload, "big") for kind, _, to, payload in server.said() if kind == frames.WINDOW_UPDATE]
    assert sum(grown) >= 128 << 14 >> 1


def test_padding_opens_the_window_of_its_stream() -> None:
    server = Server()
    server.take(OPEN)
    for _ in range(400):
        server.take(frame(frames.DATA, frames.PADDED, 1, b"\xff" + bytes(255)))
        server.now += 1
    assert server.session.failed is None
    assert server.resets() == []


def test_dropped_data_opens_the_window_of_the_connection() -> None:
    server = Server()
    for stream_id in range(1, 400, 2):
        server.take(request(stream_id, POST, ends=False), data(stream_id, bytes(1 << 14)))
        server.session.reset(server.streams[stream_id], ErrorCode.CANCEL)
        server.take(data(stream_id, bytes(1 << 14)))
        server.session.acknowledge(server.streams[stream_id], 1 << 14)
    assert server.session.failed is None


# -- the end


def test_an_orderly_end_is_announced_first() -> None:
    server = Server()
    server.take(request(1))
    server.session.send_goaway(is_final=False)
    (goaway, ping_) = server.said()
    assert goaway == (frames.GOAWAY, 0, 0, u32((1 << 31) - 1) + u32(0))
    # Requests in flight are still answered.
    assert len(server.take(request(3))) == 1
    assert server.take(frame(frames.PING, frames.ACK, 0, ping_[3])) == [ConnectionEvent.PING_ACK]
    server.session.send_goaway(is_final=True)
    assert server.said() == [(frames.GOAWAY, 0, 0, u32(3) + u32(0))]
    assert server.take(request(5), request(7)) == []
    server.session.send_head(server.streams[3], b"\x88", ends=True)
    assert len(server.said()) == 1
    assert server.session.failed is None


def test_a_client_may_send_goaway_first() -> None:
    server = Server()
    server.take(request(1), frame(frames.GOAWAY, 0, 0, bytes(8) + b"bye"))
    assert server.session.has_goaway
    server.session.send_head(server.streams[1], b"\x88", ends=True)
    assert len(server.said()) == 1
