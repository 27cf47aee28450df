"""Bodies in both directions with h2 as the client, for any pieces, windows and turns: each arrives whole and in order.

Input that h2 refuses from a client is refused by the session too.
"""

from __future__ import annotations

import h2.events
import h2.settings
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.http2 import frames
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.http2.session import Session
from gateway.http.http2.streams import BodyEnded, DataReceived, RequestReceived
from tests.effort import examples
from tests.http.http2.exchange import EITHER_SIDES, IDS, PATTERN, Exchange, any_frame, begun, check_refusals
from tests.http.http2.peer import GET, NO_SETTINGS, POST, Server, block, request

SIZES = st.sampled_from([0, 1, 100, 5_000, 16_384, 16_385, 70_000, 150_000])


class WithClient(Exchange[Session]):
    """A session whose client is h2."""

    def __init__(self, windows: int) -> None:
        super().__init__(Session(128, SessionCounts()), is_client=True)
        self.uploads: dict[int, bytes] = {}
        self.downloads: dict[int, bytes] = {}
        self.settings_sent = 1
        self.settings_heard = 0
        self.resize(windows)

    def resize(self, window: int) -> None:
        """Change the windows of all answers.  h2 applies one acknowledgement to all settings that it has sent, so
        earlier ones have to be acknowledged first."""
        while self.settings_heard < self.settings_sent:
            self.carry_up(1 << 20)
            self.carry_down(1 << 20)
        self.settings_sent += 1
        self.peer.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

    def begin(self, upload: int) -> None:
        id_ = self.peer.get_next_available_stream_id()
        self.peer.send_headers(id_, POST if upload else GET, end_stream=not upload)
        if upload:
            self.to_send[id_] = PATTERN[id_ % 251 :][:upload]

    def upload(self) -> None:
        for id_ in list(self.to_send):
            self.send_from_peer(id_)

    def answer(self, id_: int, parts: list[int]) -> None:
        """Write the next part of an answer, and its end after the last part once the request is whole."""
        self.write_part(id_, parts, may_end=id_ in self.whole or not self.streams[id_].is_receiving)

    def carry_up(self, size: int) -> None:
        self.up += self.peer.data_to_send()
        piece, self.up = self.up[:size], self.up[size:]
        events = self.session.receive(piece, 0.0, 1)
        while self.session.has_more:
            events += self.session.receive(b"", 0.0, 1)
        for event in events:
            match event:
                case RequestReceived(stream):
                    self.streams[stream.id] = stream
                    self.uploads[stream.id] = b""
                    self.session.send_head(stream, block([(":status", "200")]))
                case DataReceived(stream, part, flow):
                    self.uploads[stream.id] += part
                    self.held.append((stream, flow))
                case BodyEnded(stream):
                    self.whole.add(stream.id)
        assert self.session.failed is None

    def carry_down(self, size: int) -> None:
        self.down += b"".join(self.session.take_out())
        piece, self.down = self.down[:size], self.down[size:]
        for event in self.peer.receive_data(piece):
            if isinstance(event, h2.events.DataReceived):
                self.downloads[event.stream_id] = self.downloads.get(event.stream_id, b"") + event.data
                self.owed.append((event.stream_id, event.flow_controlled_length))
            self.settings_heard += isinstance(event, h2.events.SettingsAcknowledged)
            assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated)


@settings(max_examples=examples(30, 120), deadline=None)
@given(
    st.sampled_from([0, 1, 1_000, 65_535, 1 << 20]),
    st.lists(st.tuples(SIZES, st.lists(SIZES, max_size=4)), min_size=1, max_size=6),
    st.data(),
)
def test_every_body_arrives_whole_and_in_order(
    windows: int, plans: list[tuple[int, list[int]]], draw: st.DataObject
) -> None:
    exchange = WithClient(windows)
    for upload, _ in plans:
        exchange.begin(upload)
    ids = [1 + 2 * at for at in range(len(plans))]
    parts = {id_: list(pieces) for id_, (_, pieces) in zip(ids, plans, strict=True)}
    steps = ["up", "down", "part", "take", "upload", "block", "window"]
    for _ in range(draw.draw(st.integers(0, 40), label="steps")):
        match draw.draw(st.sampled_from(steps)):
            case "up":
                exchange.carry_up(draw.draw(st.sampled_from([1, 9, 1_000, 1 << 20])))
            case "down":
                exchange.carry_down(draw.draw(st.sampled_from([1, 9, 1_000, 1 << 20])))
            case "part" if exchange.streams:
                id_ = draw.draw(st.sampled_from(sorted(exchange.streams)))
                exchange.answer(id_, parts[id_])
            case "take":
                exchange.acknowledge()
            case "upload":
                exchange.upload()
            case "block":
                exchange.session.is_blocked = not exchange.session.is_blocked
                exchange.session.send_queued()
            case "window":
                exchange.resize(draw.draw(st.sampled_from([0, 1, 10_000, 65_535])))
    # Then all bodies are allowed to finish.
    exchange.session.is_blocked = False
    exchange.resize(1 << 16)
    for _ in range(400):
        exchange.upload()
        exchange.carry_up(1 << 20)
        for id_ in list(exchange.streams):
            exchange.answer(id_, parts[id_])
        exchange.session.send_queued()
        exchange.carry_down(1 << 20)
        exchange.acknowledge()
        if not exchange.session.streams and len(exchange.streams) == len(ids):
            break
    assert not exchange.session.streams
    for id_, (upload, _) in zip(ids, plans, strict=True):
        assert exchange.uploads[id_] == PATTERN[id_ % 251 :][:upload]
        assert exchange.downloads.get(id_, b"") == exchange.written[id_]
        assert exchange.streams[id_].queued_bytes == 0


_FRAMES = st.one_of(
    st.builds(request, IDS, st.sampled_from([GET, POST, [*GET, ("X", "y")], [("x", "y")]]), ends=st.booleans()),
    any_frame([*range(8), 9, 11, 99]),
    *EITHER_SIDES,
)


@settings(max_examples=examples(100, 800), deadline=None)
@given(st.lists(_FRAMES, min_size=1, max_size=8))
def test_input_that_h2_refuses_is_refused(sequence: list[bytes]) -> None:
    second = begun(is_client=False)
    second.receive_data(frames.PREFACE + NO_SETTINGS)
    second.clear_outbound_data_buffer()
    check_refusals(second, Server(), sequence)
