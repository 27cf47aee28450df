"""The same client over HTTP/2: one stream at a time where the test asks one thing after another, many where it says so.

Frames are taken apart by hyperframe and field blocks by hpack; nothing of the gateway's is used.  What is not read is
not acknowledged: windows open as the test takes what came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from multidict import CIMultiDict

from tests.scenarios.wire import BOUND_S, Answer, Dropped, Wire

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"}
_PSEUDO = (":method", ":scheme", ":authority", ":path")


@dataclass
class Call:
    """One request, and what has come of its answer."""

    id: int
    heads: list[Answer] = field(default_factory=list)
    block: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    received: int = 0
    """Bytes of the body that came."""
    flow: int = 0
    """Bytes that came and have not been acknowledged."""
    window: int = 65_535
    """Bytes of the request's body that may be sent."""
    is_ended: bool = False
    reset: int | None = None


@dataclass
class Http2Wire(Wire):
    """One connection; a `Wire` whose latest request is the one that is spoken of."""

    _encoder: Encoder = field(default_factory=Encoder)
    _decoder: Decoder = field(default_factory=Decoder)
    calls: dict[int, Call] = field(default_factory=dict)
    _next_id: int = 1
    call: Call = field(default_factory=lambda: Call(0))
    goaways: list[tuple[int, int]] = field(default_factory=list)
    """The last stream and the code of each."""
    pongs: list[bytes] = field(default_factory=list)
    is_greeted: bool = False
    window: int = 65_535
    """Bytes of all requests' bodies that may be sent."""
    _raw: bytes = b""

    async def greet(self, **first: int) -> None:
        """Say what comes first; `first` are settings by hyperframe's names."""
        self.is_greeted = True
        frame = SettingsFrame(0)
        frame.settings = {int(getattr(SettingsFrame, name)): value for name, value in first.items()}
        # As browsers do: what one answer leaves unread is no other's concern.
        await self.send(PREFACE + frame.serialize() + WindowUpdateFrame(0, 1 << 24).serialize())

    async def frame(self, frame: Frame) -> None:
        await self.send(frame.serialize())

    async def ask(
        self,
        target: str,
        headers: Mapping[str, str] | None = None,
        method: str = "GET",
        body: bytes | None = None,
        *,
        ends: bool = True,
    ) -> None:
        """Send one request; without `ends` its body goes on by `part`."""
        if not self.is_greeted:
            await self.greet()
        self.call = self.calls[self._next_id] = Call(self._next_id)
        self._next_id += 2
        named = [(name.lower(), value.strip()) for name, value in (headers or {}).items()]
        fields = [(name, value) for name, value in named if name not in {*_HOP_BY_HOP, "host"}]
        if body is not None and ends:
            fields.append(("content-length", str(len(body))))
        scheme = "https" if self.writer.get_extra_info("sslcontext") is not None else "http"
        pseudo = zip(_PSEUDO, (method, scheme, dict(named).get("host", "edge.test"), target), strict=True)
        frame = HeadersFrame(self.call.id, self._encoder.encode([*pseudo, *fields]))
        frame.flags.add("END_HEADERS")
        if body is None and ends:
            frame.flags.add("END_STREAM")
        await self.frame(frame)
        if body is not None:
            await self.part(body, ends=ends)

    async def part(self, data: bytes, *, ends: bool = False, call: Call | None = None) -> None:
        """A piece of a request's body, as the windows let it go; an answer that comes before is its end."""
        call = call or self.call
        while data or ends:
            size = min(len(data), 1 << 14, call.window, self.window)
            if data and size <= 0:
                if call.is_ended or call.reset is not None:
                    return
                await self.read()
                continue
            frame = DataFrame(call.id, data[:size])
            data = data[size:]
            call.window -= size
            self.window -= size
            if ends and not data:
                frame.flags.add("END_STREAM")
                ends = False
            await self.frame(frame)

    @property
    def taken(self) -> int:
        return self.call.received

    @property
    def is_over(self) -> bool:
        return self.call.is_ended

    async def head(self, method: str = "GET") -> Answer:
        return await self.head_of(self.call)

    async def head_of(self, call: Call) -> Answer:
        """The head of an answer that is no 1xx."""
        async with asyncio.timeout(BOUND_S):
            while not any(head.status >= 200 for head in call.heads):
                await self._go_on(call)
        return call.heads[-1]

    async def piece(self) -> bytes:
        return await self.piece_of(self.call)

    async def piece_of(self, call: Call) -> bytes:
        """Some bytes of a body as they come; none at its clean end.  Raises Dropped."""
        async with asyncio.timeout(BOUND_S):
            while not call.body and not call.is_ended:
                await self._go_on(call)
        data = bytes(call.body)
        call.body.clear()
        await self.acknowledge(call)
        return data

    async def acknowledge(self, call: Call) -> None:
        """Open the windows again for what has come."""
        if call.flow:
            for id_ in (0,) if call.is_ended else (0, call.id):
                await self.frame(WindowUpdateFrame(id_, call.flow))
            call.flow = 0

    async def answer_of(self, call: Call) -> Answer:
        """The whole answer to one of several requests."""
        head, got = await self.head_of(call), bytearray()
        while piece := await self.piece_of(call):
            got += piece
        return Answer(head.status, head.headers, bytes(got))

    async def _go_on(self, call: Call) -> None:
        if call.reset is not None:
            raise Dropped
        await self.read()

    async def read(self) -> None:
        """Take in what has come, or wait for it.  Raises Dropped at the end of the connection."""
        try:
            async with asyncio.timeout(BOUND_S):
                data = await self.reader.read(1 << 16)
        except ConnectionError as error:
            raise Dropped from error
        if not data:
            raise Dropped
        self._raw += data
        while len(self._raw) >= 9:
            frame, size = Frame.parse_frame_header(memoryview(self._raw[:9]))
            if len(self._raw) < 9 + size:
                break
            frame.parse_body(memoryview(self._raw[9 : 9 + size]))
            self._raw = self._raw[9 + size :]
            await self._take(frame)

    async def _take(self, frame: Frame) -> None:
        call = self.calls.get(frame.stream_id, self.call)
        match frame:
            case HeadersFrame() | ContinuationFrame():
                call.block += frame.data
                if "END_HEADERS" in frame.flags:
                    self._head(call)
            case DataFrame():
                call.body += frame.data
                call.received += len(frame.data)
                call.flow += frame.flow_controlled_length
            case RstStreamFrame():
                # What came before an answer's end is all of it, whatever is said of the request's rest.
                if not call.is_ended:
                    call.reset = frame.error_code
            case WindowUpdateFrame(stream_id=0):
                self.window += frame.window_increment
            case WindowUpdateFrame():
                call.window += frame.window_increment
            case SettingsFrame() if "ACK" not in frame.flags:
                await self._reply(SettingsFrame(0, flags=["ACK"]))
            case PingFrame() if "ACK" not in frame.flags:
                await self._reply(PingFrame(0, frame.opaque_data, flags=["ACK"]))
            case PingFrame():
                self.pongs.append(frame.opaque_data)
            case GoAwayFrame():
                self.goaways.append((frame.last_stream_id, frame.error_code))
        if "END_STREAM" in frame.flags:
            call.is_ended = True

    async def _reply(self, frame: Frame) -> None:
        try:
            await self.frame(frame)
        except ConnectionError:
            pass

    def _head(self, call: Call) -> None:
        block, call.block = call.block, b""
        fields: CIMultiDict[str] = CIMultiDict()
        for name, value in self._decoder.decode(block, raw=True):
            assert name == name.lower()
            fields.add(bytes(name).decode(), bytes(value).decode("utf-8", "surrogateescape"))
        call.heads.append(Answer(int(fields.pop(":status")), fields))

    async def is_ended(self) -> bool:
        """Whether the connection ends, with no more than words about it."""
        while True:
            try:
                await self.read()
            except Dropped:
                return True
            if self.call.body:
                return False

    async def reset_stream(self, call: Call | None = None, code: int = 8) -> None:
        """Take a request back."""
        await self.frame(RstStreamFrame((call or self.call).id, code))
