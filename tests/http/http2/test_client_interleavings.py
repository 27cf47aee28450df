"""Bodies in both directions with h2 as the origin, for any pieces, windows and turns: each arrives whole and in order.

Input that h2 refuses from an origin is refused by the session too.
"""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.http2 import frames
from gateway.http.http2.blocks import request_block
from gateway.http.http2.client_session import ClientSession
from gateway.http.http2.counts import SessionCounts
from gateway.http.http2.events import BodyEnded, DataReceived, ReplyReceived
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.streams import Stream
from tests.http.http2.peer import (
    NO_SETTINGS,
    OK,
    REQUEST_HEAD,
    Client,
    block,
    data,
    frame,
    frames_in,
    goaway,
    ping,
    reply,
    reset,
    resets_in,
    setting,
    window,
)

PATTERN = bytes(range(251)) * 1_200
SIZES = st.sampled_from([0, 1, 100, 5_000, 16_384, 16_385, 70_000, 290_000])


class Exchange:
    """A session, h2 as the origin, and the bytes between them."""

    def __init__(self, windows: int) -> None:
        self.origin = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self.origin.initiate_connection()
        self.origin.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: windows})
        self.session = ClientSession(SessionCounts())
        self.up = self.down = b""
        self.streams: dict[int, Stream] = {}
        self.requests: dict[int, bytes] = {}
        """What the origin has received of each request's body."""
        self.replies: dict[int, bytes] = {}
        """What the session has received of each reply's body."""
        self.to_reply: dict[int, bytes] = {}
        """What the origin has not sent yet."""
        self.whole: set[int] = set()
        self.owed: list[tuple[int, int]] = []
        """The bytes that the origin has read and not acknowledged."""
        self.held: list[tuple[Stream, int]] = []
        """The bytes that the session has read and not acknowledged."""

    def begin(self, *, has_body: bool, download: int) -> int:
        stream = self.session.begin(request_block(REQUEST_HEAD, "http"), ends=not has_body)
        self.streams[stream.id] = stream
        self.to_reply[stream.id] = PATTERN[stream.id % 251 :][:download]
        return stream.id

    def reply(self) -> None:
        """Send what the windows allow of each reply whose request has arrived."""
        for id_, rest in list(self.to_reply.items()):
            if id_ not in self.requests:
                continue
            room = min(len(rest), self.origin.local_flow_control_window(id_), self.origin.max_outbound_frame_size)
            if room or not rest:
                self.origin.send_data(id_, rest[:room], end_stream=room == len(rest))
                self.to_reply[id_] = rest[room:]
                if room == len(rest):
                    del self.to_reply[id_]

    def carry_up(self, size: int) -> None:
        self.up += b"".join(self.session.take_out())
        piece, self.up = self.up[:size], self.up[size:]
        for event in self.origin.receive_data(piece):
            match event:
                case h2.events.RequestReceived():
                    assert event.stream_id is not None
                    self.requests[event.stream_id] = b""
                    self.origin.send_headers(event.stream_id, [(":status", "200"), ("date", str(event.stream_id))])
                case h2.events.DataReceived():
                    assert event.stream_id is not None
                    self.requests[event.stream_id] += event.data
                    self.owed.append((event.stream_id, event.flow_controlled_length))
            assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated)

    def carry_down(self, size: int) -> None:
        self.down += self.origin.data_to_send()
        piece, self.down = self.down[:size], self.down[size:]
        for event in self.session.receive(piece, 0.0):
            match event:
                case ReplyReceived(stream, head):
                    assert head.headers["Date"] == str(stream.id)
                    self.replies[stream.id] = b""
                case DataReceived(stream, part, flow):
                    self.replies[stream.id] += part
                    self.held.append((stream, flow))
                case BodyEnded(stream):
                    self.whole.add(stream.id)
        assert self.session.failed is None

    def acknowledge(self) -> None:
        for id_, size in self.owed:
            if size:
                self.origin.acknowledge_received_data(size, id_)
        for stream, size in self.held:
            self.session.acknowledge(stream, size)
        self.owed, self.held = [], []


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([0, 1, 1_000, 65_535, 1 << 20]),
    st.lists(st.tuples(SIZES, st.lists(SIZES, max_size=4)), min_size=1, max_size=6),
    st.data(),
)
def test_every_body_arrives_whole_and_in_order(
    windows: int, plans: list[tuple[int, list[int]]], draw: st.DataObject
) -> None:
    exchange = Exchange(windows)
    parts = {exchange.begin(has_body=bool(pieces), download=size): list(pieces) for size, pieces in plans}
    written = dict.fromkeys(parts, b"")
    steps = ["up", "down", "part", "take", "reply", "block"]
    for _ in range(draw.draw(st.integers(0, 40), label="steps")):
        match draw.draw(st.sampled_from(steps)):
            case "up":
                exchange.carry_up(draw.draw(st.sampled_from([1, 9, 1_000, 1 << 20])))
            case "down":
                exchange.carry_down(draw.draw(st.sampled_from([1, 9, 1_000, 1 << 20])))
            case "part":
                _write_part(exchange, draw.draw(st.sampled_from(sorted(parts))), parts, written)
            case "take":
                exchange.acknowledge()
            case "reply":
                exchange.reply()
            case "block":
                exchange.session.is_blocked = not exchange.session.is_blocked
                exchange.session.pump()
    # Then all bodies are allowed to finish.
    exchange.session.is_blocked = False
    exchange.origin.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 16})
    for _ in range(400):
        for id_ in parts:
            _write_part(exchange, id_, parts, written)
        exchange.session.pump()
        exchange.carry_up(1 << 20)
        exchange.reply()
        exchange.carry_down(1 << 20)
        exchange.acknowledge()
        if not exchange.session.streams:
            break
    exchange.carry_up(1 << 20)
    assert not exchange.session.streams
    assert exchange.whole == set(parts)
    for id_, (size, _) in zip(parts, plans, strict=True):
        assert exchange.replies[id_] == PATTERN[id_ % 251 :][:size]
        assert exchange.requests[id_] == written[id_]


def _write_part(exchange: Exchange, id_: int, parts: dict[int, list[int]], written: dict[int, bytes]) -> None:
    """Write the next part of a request's body, and its end after the last part."""
    stream = exchange.streams[id_]
    if parts[id_]:
        piece = PATTERN[len(written[id_]) % 251 :][: parts[id_].pop(0)]
        written[id_] += piece
        exchange.session.send(stream, piece)
    else:
        exchange.session.end(stream)


_IDS = st.sampled_from([0, 1, 2, 3, 5])
_HEADS = st.sampled_from(
    [OK, [(":status", "103")], [*OK, ("content-length", "3")], [*OK, ("X", "y")], [("x", "y")], [*OK, (":path", "/")]]
)
_FRAMES = st.one_of(
    st.builds(reply, _IDS, _HEADS, ends=st.booleans()),
    st.builds(data, _IDS, st.sampled_from([b"", b"abc"]), ends=st.booleans()),
    st.builds(reset, _IDS),
    st.builds(goaway, _IDS),
    st.builds(window, _IDS, st.sampled_from([0, 1, (1 << 31) - 1])),
    st.builds(setting, st.integers(1, 6), st.sampled_from([0, 1, 2, 1 << 14, 1 << 31])),
    st.builds(frame, st.sampled_from([*range(10), 11, 99]), st.integers(0, 255), _IDS, st.binary(max_size=12)),
    st.just(ping()),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_FRAMES, min_size=1, max_size=8), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255))))
def test_input_that_h2_refuses_is_refused(sequence: list[bytes], mutations: list[tuple[int, int]]) -> None:
    second = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    second.initiate_connection()
    client = Client(is_greeted=False)
    second.update_settings({h2.settings.SettingCodes.ENABLE_PUSH: 0})
    for raw in (NO_SETTINGS, frames.SETTINGS_ACK, frames.SETTINGS_ACK):
        second.receive_data(raw)
        client.take(raw)
    for _ in range(2):
        second.send_headers(
            second.get_next_available_stream_id(),
            [(":method", "GET"), (":scheme", "http"), (":authority", "o"), (":path", "/")],
            end_stream=True,
        )
        client.ask()
    second.clear_outbound_data_buffer()
    client.said()
    mutated = bytearray(sequence[-1])
    for at, byte in mutations:
        if at < len(mutated) and at > 2:
            mutated[at] = byte
    for raw in (*sequence[:-1], bytes(mutated)):
        try:
            second.receive_data(raw)
            refuses = bool(resets_in(frames_in(second.data_to_send())))
        except h2.exceptions.ProtocolError:
            refuses = True
        client.take(raw)
        is_refused = client.session.has_failed or bool(client.resets())
        assert is_refused or not refuses
        if refuses or is_refused or client.session.has_goaway:
            # From here on the two have different states.
            return


def test_a_block_is_decoded_even_if_its_stream_was_reset() -> None:
    """Later blocks refer to the table."""
    origin = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    origin.initiate_connection()
    client = Client(is_greeted=False)
    dropped, other = client.ask(), client.ask()
    origin.receive_data(b"".join(client.session.take_out()))
    client.session.reset(dropped, ErrorCode.CANCEL)
    for id_ in (dropped.id, other.id):
        origin.send_headers(id_, [(":status", "200"), ("x-name", "value")], end_stream=True)
    (event,) = [one for one in client.take(origin.data_to_send()) if isinstance(one, ReplyReceived)]
    assert (event.stream, event.head.headers["X-Name"]) == (other, "value")
    assert block(OK) == b"\x88"
