"""Sessions under test, and frames as their peers write them."""

from __future__ import annotations

from hpack import Encoder

from gateway.http.http2 import frames
from gateway.http.http2.blocks import request_block
from gateway.http.http2.client_session import ClientSession
from gateway.http.http2.flood_limits import SessionCounts
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Event, RequestReceived, Stream

GET = [(":method", "GET"), (":scheme", "http"), (":authority", "edge"), (":path", "/s")]
POST = [(":method", "POST"), *GET[1:]]
NO_SETTINGS = frames.settings({})

Headers = list[tuple[str, str]]


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frames.frame_head(len(payload), kind, flags, stream_id) + payload


def u32(value: int) -> bytes:
    return value.to_bytes(4, "big")


def block(headers: Headers) -> bytes:
    """A field block that leaves the table unchanged."""
    return Encoder().encode([(name, value, True) for name, value in headers])


def request(stream_id: int, headers: Headers = GET, *, ends: bool = True) -> bytes:
    return frames.header_frames(stream_id, block(headers), 1 << 14, ends=ends)


def data(stream_id: int, payload: bytes = b"", *, ends: bool = False) -> bytes:
    return frame(frames.DATA, frames.END_STREAM if ends else 0, stream_id, payload)


def window(stream_id: int, increment: int) -> bytes:
    return frame(frames.WINDOW_UPDATE, 0, stream_id, u32(increment))


def reset(stream_id: int, code: ErrorCode = ErrorCode.CANCEL) -> bytes:
    return frame(frames.RST_STREAM, 0, stream_id, u32(code))


def setting(name: int, value: int) -> bytes:
    return frame(frames.SETTINGS, 0, 0, name.to_bytes(2, "big") + u32(value))


def ping(payload: bytes = b"12345678") -> bytes:
    return frames.ping(payload, is_ack=False)


class Server:
    """A session after the client's preface and settings; keeps what it has written."""

    def __init__(self, *, most_streams: int = 128, is_greeted: bool = True) -> None:
        self.counts = SessionCounts()
        self.session = Session(most_streams, self.counts)
        self.now = 0.0
        self.streams: dict[int, Stream] = {}
        self.events: list[Event] = []
        if is_greeted:
            self.take(frames.PREFACE + NO_SETTINGS)
            self.said()

    def take(self, *pieces: bytes) -> list[Event]:
        events = self.session.receive(b"".join(pieces), self.now)
        self.events += events
        self.streams.update((event.stream.id, event.stream) for event in events if isinstance(event, RequestReceived))
        return events

    def said(self) -> list[Frame]:
        """The frames written since the last call."""
        return frames_in(b"".join(self.session.take_out()))

    def resets(self) -> list[tuple[int, ErrorCode]]:
        """The streams reset since the last call."""
        return resets_in(self.said())


Frame = tuple[int, int, int, bytes]
"""Type, flags, stream id, payload."""


def frames_in(raw: bytes) -> list[Frame]:
    """These frames, taken apart."""
    found = []
    while raw:
        high, low, kind, flags, stream_id = frames.read_head(raw)
        end = frames.HEAD_BYTES + (high << 16 | low)
        found.append((kind, flags, stream_id, raw[frames.HEAD_BYTES : end]))
        raw = raw[end:]
    return found


def resets_in(said: list[Frame]) -> list[tuple[int, ErrorCode]]:
    """The streams that these frames reset."""
    return [(one, ErrorCode(int.from_bytes(code, "big"))) for kind, _, one, code in said if kind == frames.RST_STREAM]


OK: Headers = [(":status", "200")]
REQUEST_HEAD = b"GET /s HTTP/1.1\r\nHost: origin\r\n\r\n"


def reply(stream_id: int, headers: Headers = OK, *, ends: bool = True) -> bytes:
    return frames.header_frames(stream_id, block(headers), 1 << 14, ends=ends)


def goaway(last_id: int, code: ErrorCode = ErrorCode.NO_ERROR) -> bytes:
    return frames.goaway(last_id, code)


class Client:
    """A session towards an origin that has sent its settings; keeps what it has written."""

    def __init__(self, *, is_greeted: bool = True) -> None:
        self.counts = SessionCounts()
        self.session = ClientSession(self.counts)
        self.now = 0.0
        self.events: list[Event] = []
        if is_greeted:
            self.take(NO_SETTINGS)
            self.session.take_out()

    def ask(self, head: bytes = REQUEST_HEAD, *, ends: bool = True) -> Stream:
        return self.session.send_request(request_block(head, "http"), ends=ends, is_head=head.startswith(b"HEAD"))

    def take(self, *pieces: bytes) -> list[Event]:
        events = self.session.receive(b"".join(pieces), self.now)
        self.events += events
        return events

    def said(self) -> list[Frame]:
        """The frames written since the last call."""
        return frames_in(b"".join(self.session.take_out()))

    def resets(self) -> list[tuple[int, ErrorCode]]:
        """The streams reset since the last call."""
        return resets_in(self.said())
