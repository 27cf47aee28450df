"""What both sides' tests with h2 share: bodies between a session and h2, and frames of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import h2.config
import h2.connection
import h2.exceptions
from hypothesis import strategies as st

from gateway.http.http2 import frames
from gateway.http.http2.client_session import ClientSession
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Stream
from tests.http.http2.peer import Client, Server, data, frame, frames_in, ping, reset, resets_in, setting, window

PATTERN: Final = bytes(range(251)) * 1_200
IDS: Final = st.sampled_from([0, 1, 2, 3, 5])
EITHER_SIDES: Final = (
    st.builds(data, IDS, st.sampled_from([b"", b"abc"]), ends=st.booleans()),
    st.builds(reset, IDS),
    st.builds(window, IDS, st.sampled_from([0, 1, (1 << 31) - 1])),
    st.builds(setting, st.integers(1, 6), st.sampled_from([0, 1, 2, 1 << 14, 1 << 31])),
    st.just(ping()),
)
"""Frames that either side may send."""

_Session = TypeVar("_Session", Session, ClientSession)


def begun(*, is_client: bool) -> h2.connection.H2Connection:
    """One side of a connection by h2, whose preface is written."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=is_client))
    connection.initiate_connection()
    return connection


class Exchange(Generic[_Session]):
    """A session, h2 as its peer, and the bytes between them."""

    def __init__(self, session: _Session, *, is_client: bool) -> None:
        self.session: _Session = session
        self.peer = begun(is_client=is_client)
        self.up = self.down = b""
        self.streams: dict[int, Stream] = {}
        self.whole: set[int] = set()
        """The streams whose body the session has received whole."""
        self.owed: list[tuple[int, int]] = []
        """The bytes that h2 has read and not acknowledged."""
        self.held: list[tuple[Stream, int]] = []
        """The bytes that the session has read and not acknowledged."""
        self.to_send: dict[int, bytes] = {}
        """The bytes of each body that h2 has not sent yet."""
        self.written: dict[int, bytes] = {}
        """What the session has been given of each body."""

    def send_from_peer(self, id_: int) -> None:
        """Send what the windows allow of h2's body, and its end with the last byte."""
        rest = self.to_send[id_]
        room = min(len(rest), self.peer.local_flow_control_window(id_), self.peer.max_outbound_frame_size)
        if room > 0 or not rest:
            self.peer.send_data(id_, rest[:room], end_stream=room == len(rest))
            self.to_send[id_] = rest[room:]
            if room == len(rest):
                del self.to_send[id_]

    def write_part(self, id_: int, parts: list[int], *, may_end: bool = True) -> None:
        """Have the session send the next part of its body, and the end after the last part if it may."""
        written = self.written.setdefault(id_, b"")
        if parts:
            piece = PATTERN[len(written) % 251 :][: parts.pop(0)]
            self.written[id_] += piece
            self.session.send_data(self.streams[id_], piece)
        elif may_end:
            self.session.end_stream(self.streams[id_])

    def acknowledge(self) -> None:
        """Have both sides read what they have received."""
        for id_, size in self.owed:
            if size:
                self.peer.acknowledge_received_data(size, id_)
        for stream, size in self.held:
            self.session.acknowledge(stream, size)
        self.owed, self.held = [], []


def check_refusals(second: h2.connection.H2Connection, side: Client | Server, sequence: Sequence[bytes]) -> None:
    """What h2 refuses of these frames, the session refuses; its states are compared up to the first refusal."""
    for raw in sequence:
        try:
            second.receive_data(_without_reserved_bit(raw))
            refuses = bool(resets_in(frames_in(second.data_to_send())))
        except h2.exceptions.ProtocolError:
            refuses = True
        side.take(raw)
        is_refused = side.session.failed is not None or bool(side.resets())
        assert is_refused or not refuses
        if refuses or is_refused or side.session.has_goaway:
            # From here on the two have different states.
            return


def any_frame(kinds: Sequence[int]) -> st.SearchStrategy[bytes]:
    """A frame of one of these kinds with any flags and a short payload."""
    return st.builds(frame, st.sampled_from(kinds), st.integers(0, 255), IDS, st.binary(max_size=12))


def _without_reserved_bit(raw: bytes) -> bytes:
    """h2 refuses a window update with the bit that a receiver must ignore (RFC 9113 section 6.9)."""
    if raw[3] != frames.WINDOW_UPDATE or len(raw) == frames.HEAD_BYTES:
        return raw
    at = frames.HEAD_BYTES
    return raw[:at] + bytes((raw[at] & 0x7F,)) + raw[at + 1 :]
