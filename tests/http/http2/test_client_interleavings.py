"""Bodies in both directions with h2 as the origin, for any pieces, windows and turns: each arrives whole and in order.

Input that h2 refuses from an origin is refused by the session too.
"""

from __future__ import annotations

import h2.events
import h2.settings
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.http.http2 import frames
from gateway.http.http2.blocks import request_block
from gateway.http.http2.client_session import ClientSession
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.streams import BodyEnded, DataReceived, ReplyReceived
from tests.effort import examples
from tests.http.http2.exchange import EITHER_SIDES, IDS, PATTERN, Exchange, any_frame, begun, check_refusals
from tests.http.http2.peer import NO_SETTINGS, OK, REQUEST_HEAD, Client, block, goaway, reply, window

SIZES = st.sampled_from([0, 1, 100, 5_000, 16_384, 16_385, 70_000, 290_000])


class WithOrigin(Exchange[ClientSession]):
    """A session whose origin is h2."""

    def __init__(self, windows: int) -> None:
        super().__init__(ClientSession(SessionCounts()), is_client=False)
        self.peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: windows})
        self.requests: dict[int, bytes] = {}
        """What the origin has received of each request's body."""
        self.replies: dict[int, bytes] = {}
        """What the session has received of each reply's body."""

    def begin(self, *, has_body: bool, download: int) -> int:
        stream = self.session.send_request(request_block(REQUEST_HEAD, "http"), ends=not has_body)
        self.streams[stream.id] = stream
        self.to_send[stream.id] = PATTERN[stream.id % 251 :][:download]
        return stream.id

    def reply(self) -> None:
        """Send what the windows allow of each reply whose request has arrived."""
        for id_ in [id_ for id_ in self.to_send if id_ in self.requests]:
            self.send_from_peer(id_)

    def carry_up(self, size: int) -> None:
        self.up += b"".join(self.session.take_out())
        piece, self.up = self.up[:size], self.up[size:]
        for event in self.peer.receive_data(piece):
            match event:
                case h2.events.RequestReceived():
                    assert event.stream_id is not None
                    self.requests[event.stream_id] = b""
                    self.peer.send_headers(event.stream_id, [(":status", "200"), ("date", str(event.stream_id))])
                case h2.events.DataReceived():
                    assert event.stream_id is not None
                    self.requests[event.stream_id] += event.data
                    self.owed.append((event.stream_id, event.flow_controlled_length))
            assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated)

    def carry_down(self, size: int) -> None:
        self.down += self.peer.data_to_send()
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


@settings(max_examples=examples(20, 80), deadline=None)
@given(
    st.sampled_from([0, 1, 1_000, 65_535, 1 << 20]),
    st.lists(st.tuples(SIZES, st.lists(SIZES, max_size=4)), min_size=1, max_size=6),
    st.data(),
)
def test_every_body_arrives_whole_and_in_order(
    windows: int, plans: list[tuple[int, list[int]]], draw: st.DataObject
) -> None:
    exchange = WithOrigin(windows)
    parts = {exchange.begin(has_body=bool(pieces), download=size): list(pieces) for size, pieces in plans}
    steps = ["up", "down", "part", "take", "reply", "block"]
    for _ in range(draw.draw(st.integers(0, 40), label="steps")):
        match draw.draw(st.sampled_from(steps)):
            case "up":
                exchange.carry_up(draw.draw(st.sampled_from([1, 9, 1_000, 1 << 20])))
            case "down":
                exchange.carry_down(draw.draw(st.sampled_from([1, 9, 1_000, 1 << 20])))
            case "part":
                id_ = draw.draw(st.sampled_from(sorted(parts)))
                exchange.write_part(id_, parts[id_])
            case "take":
                exchange.acknowledge()
            case "reply":
                exchange.reply()
            case "block":
                exchange.session.is_blocked = not exchange.session.is_blocked
                exchange.session.send_queued()
    # Then all bodies are allowed to finish.
    exchange.session.is_blocked = False
    exchange.peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 16})
    for _ in range(400):
        for id_ in parts:
            exchange.write_part(id_, parts[id_])
        exchange.session.send_queued()
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
        assert exchange.requests[id_] == exchange.written[id_]


_HEADS = st.sampled_from(
    [OK, [(":status", "103")], [*OK, ("content-length", "3")], [*OK, ("X", "y")], [("x", "y")], [*OK, (":path", "/")]]
)
_FRAMES = st.one_of(
    st.builds(reply, IDS, _HEADS, ends=st.booleans()),
    st.builds(goaway, IDS),
    any_frame([*range(10), 11, 99]),
    *EITHER_SIDES,
)


@settings(max_examples=examples(100, 600), deadline=None)
@given(st.lists(_FRAMES, min_size=1, max_size=8), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255))))
@example([window(0, 1 << 31 | 1)], [])
def test_input_that_h2_refuses_is_refused(sequence: list[bytes], mutations: list[tuple[int, int]]) -> None:
    second = begun(is_client=True)
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
    check_refusals(second, client, (*sequence[:-1], bytes(mutated)))


def test_a_block_is_decoded_even_if_its_stream_was_reset() -> None:
    """Later blocks refer to the table."""
    origin = begun(is_client=False)
    client = Client(is_greeted=False)
    dropped, other = client.ask(), client.ask()
    origin.receive_data(b"".join(client.session.take_out()))
    client.session.reset(dropped, ErrorCode.CANCEL)
    for id_ in (dropped.id, other.id):
        origin.send_headers(id_, [(":status", "200"), ("x-name", "value")], end_stream=True)
    (event,) = [one for one in client.take(origin.data_to_send()) if isinstance(one, ReplyReceived)]
    assert (event.stream, event.head.headers["X-Name"]) == (other, "value")
    assert block(OK) == b"\x88"
