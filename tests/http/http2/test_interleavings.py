"""Bodies both ways over h2's client, in whatever pieces, windows and turns: each comes whole and in order.

And a second opinion: what h2 does not take from a client, the session does not take either.
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
from gateway.http.http2.counts import SessionCounts
from gateway.http.http2.events import Begun, Ended, Part
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Stream
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
    window,
)

PATTERN = bytes(range(251)) * 1_200
SIZES = st.sampled_from([0, 1, 100, 5_000, 16_384, 16_385, 70_000, 150_000])


class Exchange:
    """A client and a session, and the bytes between them."""

    def __init__(self, windows: int) -> None:
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.session = Session(128, SessionCounts())
        self.client.initiate_connection()
        self.up = self.down = b""
        self.streams: dict[int, Stream] = {}
        self.uploads: dict[int, bytes] = {}
        self.downloads: dict[int, bytes] = {}
        self.to_send: dict[int, bytes] = {}
        """What the client has not sent yet of each body."""
        self.whole: set[int] = set()
        self.owed: list[tuple[int, int]] = []
        """What the client has taken and not acknowledged."""
        self.held: list[tuple[Stream, int]] = []
        """What the server has taken and not acknowledged."""
        self.settings_sent = 1
        self.settings_heard = 0
        self.resize(windows)

    def resize(self, window: int) -> None:
        """Change the windows of all answers.  h2 takes the acknowledgement of settings for one of all that it has sent:
        those of before have to be acknowledged first."""
        while self.settings_heard < self.settings_sent:
            self.carry_up(1 << 20)
            self.carry_down(1 << 20)
        self.settings_sent += 1
        self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})

    def begin(self, upload: int) -> None:
        id_ = self.client.get_next_available_stream_id()
        self.client.send_headers(id_, POST if upload else GET, end_stream=not upload)
        if upload:
            self.to_send[id_] = PATTERN[id_ % 251 :][:upload]

    def upload(self) -> None:
        for id_, rest in list(self.to_send.items()):
            room = min(len(rest), self.client.local_flow_control_window(id_), self.client.max_outbound_frame_size)
            if room > 0:
                self.client.send_data(id_, rest[:room], end_stream=room == len(rest))
                self.to_send[id_] = rest[room:]
                if room == len(rest):
                    del self.to_send[id_]

    def carry_up(self, size: int) -> None:
        self.up += self.client.data_to_send()
        piece, self.up = self.up[:size], self.up[size:]
        for event in self.session.receive(piece, 0.0):
            match event:
                case Begun(stream):
                    self.streams[stream.id] = stream
                    self.uploads[stream.id] = b""
                    self.session.send_head(stream, block([(":status", "200")]))
                case Part(stream, part, flow):
                    self.uploads[stream.id] += part
                    self.held.append((stream, flow))
                case Ended(stream):
                    self.whole.add(stream.id)
        assert self.session.failed is None

    def carry_down(self, size: int) -> None:
        self.down += b"".join(self.session.take_out())
        piece, self.down = self.down[:size], self.down[size:]
        for event in self.client.receive_data(piece):
            if isinstance(event, h2.events.DataReceived):
                self.downloads[event.stream_id] = self.downloads.get(event.stream_id, b"") + event.data
                self.owed.append((event.stream_id, event.flow_controlled_length))
            self.settings_heard += isinstance(event, h2.events.SettingsAcknowledged)
            assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated)

    def acknowledge(self) -> None:
        for id_, size in self.owed:
            if size:
                self.client.acknowledge_received_data(size, id_)
        for stream, size in self.held:
            self.session.acknowledge(stream, size)
        self.owed, self.held = [], []


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([0, 1, 1_000, 65_535, 1 << 20]),
    st.lists(st.tuples(SIZES, st.lists(SIZES, max_size=4)), min_size=1, max_size=6),
    st.data(),
)
def test_every_body_comes_whole_and_in_order(
    windows: int, plans: list[tuple[int, list[int]]], draw: st.DataObject
) -> None:
    exchange = Exchange(windows)
    for upload, _ in plans:
        exchange.begin(upload)
    ids = [1 + 2 * at for at in range(len(plans))]
    parts = {id_: list(pieces) for id_, (_, pieces) in zip(ids, plans, strict=True)}
    written = dict.fromkeys(ids, b"")
    steps = ["up", "down", "part", "take", "upload", "block", "window"]
    for _ in range(draw.draw(st.integers(0, 40), label="steps")):
        match draw.draw(st.sampled_from(steps)):
            case "up":
                exchange.carry_up(draw.draw(st.sampled_from([1, 9, 1_000, 1 << 20])))
            case "down":
                exchange.carry_down(draw.draw(st.sampled_from([1, 9, 1_000, 1 << 20])))
            case "part" if exchange.streams:
                _write_part(exchange, draw.draw(st.sampled_from(sorted(exchange.streams))), parts, written)
            case "take":
                exchange.acknowledge()
            case "upload":
                exchange.upload()
            case "block":
                exchange.session.is_blocked = not exchange.session.is_blocked
                exchange.session.pump()
            case "window":
                exchange.resize(draw.draw(st.sampled_from([0, 1, 10_000, 65_535])))
    # Then all is let go on.
    exchange.session.is_blocked = False
    exchange.resize(1 << 16)
    for _ in range(400):
        exchange.upload()
        exchange.carry_up(1 << 20)
        for id_ in list(exchange.streams):
            _write_part(exchange, id_, parts, written)
        exchange.session.pump()
        exchange.carry_down(1 << 20)
        exchange.acknowledge()
        if not exchange.session.streams and len(exchange.streams) == len(ids):
            break
    assert not exchange.session.streams
    for id_, (upload, _) in zip(ids, plans, strict=True):
        assert exchange.uploads[id_] == PATTERN[id_ % 251 :][:upload]
        assert exchange.downloads.get(id_, b"") == written[id_]
        assert exchange.streams[id_].queued_bytes == 0


def _write_part(exchange: Exchange, id_: int, parts: dict[int, list[int]], written: dict[int, bytes]) -> None:
    """The next part of an answer; the end behind the last, once the request is whole."""
    stream = exchange.streams[id_]
    if parts[id_]:
        piece = PATTERN[len(written[id_]) % 251 :][: parts[id_].pop(0)]
        written[id_] += piece
        exchange.session.send(stream, piece)
    elif id_ in exchange.whole or not stream.is_receiving:
        exchange.session.end(stream)


_IDS = st.sampled_from([0, 1, 2, 3, 5])
_FRAMES = st.one_of(
    st.builds(request, _IDS, st.sampled_from([GET, POST, [*GET, ("X", "y")], [("x", "y")]]), ends=st.booleans()),
    st.builds(data, _IDS, st.sampled_from([b"", b"abc"]), ends=st.booleans()),
    st.builds(reset, _IDS),
    st.builds(window, _IDS, st.sampled_from([0, 1, (1 << 31) - 1])),
    st.builds(setting, st.integers(1, 6), st.sampled_from([0, 1, 2, 1 << 14, 1 << 31])),
    st.builds(frame, st.sampled_from([*range(8), 9, 11, 99]), st.integers(0, 255), _IDS, st.binary(max_size=12)),
    st.just(ping()),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(_FRAMES, min_size=1, max_size=8))
def test_what_h2_refuses_is_refused(sequence: list[bytes]) -> None:
    second = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    second.initiate_connection()
    second.receive_data(frames.PREFACE + NO_SETTINGS)
    second.clear_outbound_data_buffer()
    server = Server()
    for raw in sequence:
        try:
            second.receive_data(raw)
            refuses = _resets(second.data_to_send())
        except h2.exceptions.ProtocolError:
            refuses = True
        server.take(raw)
        is_refused = server.session.has_failed or bool(server.resets())
        assert is_refused or not refuses
        if refuses or is_refused:
            # From here on each has another state.
            return


def _resets(raw: bytes) -> bool:
    while raw:
        high, low, kind, _, _ = frames.read_head(raw)
        if kind == frames.RST_STREAM:
            return True
        raw = raw[frames.HEAD_BYTES + (high << 16 | low) :]
    return False
