"""Short ways to append and to read, through a gateway or at the origin itself."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import orjson
from yarl import URL

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway
from gateway.commands.s2_events import EventReader
from gateway.origin.s2.app import RunningS2Origin
from gateway.origin.s2.calls import Call
from gateway.origin.s2.counters import S2Counters
from gateway.origin.s2.faults import S2Faults
from gateway.s2 import protobuf, session
from gateway.s2.json_format import Format
from gateway.s2.records import ReadBatch, Record
from gateway.s2.session import Frame, FrameReader, Message, Terminal
from gateway.s2.sse import BatchEvent, Event, Ping

BOUND_S = 20.0
BASIN = "basin-of-tests"
STREAM = "a%2Fstream"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        found: dict[str, object] = orjson.loads(self.body)
        return found

    @property
    def texts(self) -> list[str]:
        """The bodies of the records of a batch in JSON."""
        assert self.status == 200, self
        return [record.get("body", "") for record in self.json["records"]]  # type: ignore[attr-defined]


@dataclass
class Client:
    """One client with one token."""

    http: aiohttp.ClientSession
    url: str
    token: str = "token"
    replies: list[aiohttp.ClientResponse] = field(default_factory=list)
    """Those that are read bit by bit, to be closed at the end."""

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        own = {"Authorization": f"Bearer {self.token}", "s2-basin": BASIN, "Accept-Encoding": "identity"}
        return {**own, **more}

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """One request; names of headers with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        # A file, because aiohttp warns about bytes as large as the largest append.
        data = io.BytesIO(orjson.dumps(body)) if body is not None else None
        async with (
            asyncio.timeout(BOUND_S),
            self.http.request(
                method, URL(self.url + path, encoded=True), data=data, headers=self._headers(named)
            ) as reply,
        ):
            return Answer(reply.status, reply.headers.copy(), await reply.read())

    async def append(self, *texts: str, stream: str = STREAM, timestamp: int | None = None) -> Answer:
        records = [{"body": text} if timestamp is None else {"body": text, "timestamp": timestamp} for text in texts]
        answer = await self.send("POST", f"/v1/streams/{stream}/records", {"records": records})
        assert answer.status == 200, answer
        return answer

    async def read(self, query: str = "seq_num=0", stream: str = STREAM, **headers: str) -> Answer:
        return await self.send("GET", f"/v1/streams/{stream}/records?{query}", **headers)

    async def tail(self, stream: str = STREAM, **headers: str) -> Answer:
        return await self.send("GET", f"/v1/streams/{stream}/records/tail", **headers)

    async def events(self, query: str = "seq_num=0", stream: str = STREAM, **headers: str) -> SseReader:
        """A read as SSE."""
        reply = await self._open(query, stream, {"Accept": "text/event-stream", **headers})
        return SseReader(reply)

    async def session(self, query: str = "seq_num=0", stream: str = STREAM, **headers: str) -> SessionReader:
        """A read session."""
        reply = await self._open(query, stream, {"Content-Type": session.CONTENT_TYPE, **headers})
        return SessionReader(reply)

    async def status(self, query: str = "seq_num=0", stream: str = STREAM, **headers: str) -> int:
        """The status that a read session is answered with."""
        return await _status(await self.session(query, stream, **headers))

    async def events_status(self, query: str = "seq_num=0", stream: str = STREAM, **headers: str) -> int:
        """The status that a read as SSE is answered with."""
        return await _status(await self.events(query, stream, **headers))

    async def _open(self, query: str, stream: str, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        async with asyncio.timeout(BOUND_S):
            reply = await self.http.get(
                URL(f"{self.url}/v1/streams/{stream}/records?{query}", encoded=True),
                headers=self._headers(headers),
            )
        self.replies[:] = [earlier for earlier in self.replies if not earlier.closed] + [reply]
        return reply

    def close(self) -> None:
        """Close what was opened and not closed yet."""
        for reply in self.replies:
            reply.close()


async def _status(reader: SseReader | SessionReader) -> int:
    reader.close()
    return reader.status


class SseReader:
    """The events of one response."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.reply = reply
        self.status = reply.status
        self._reader = EventReader(Format.RAW)
        self._events: list[Event] = []

    async def next(self) -> Event | None:
        """The next event; None at the end of the response."""
        async with asyncio.timeout(BOUND_S):
            while not self._events:
                chunk = await self.reply.content.readany()
                if not chunk:
                    return None
                self._events += self._reader.feed(chunk)
        return self._events.pop(0)

    async def batch(self) -> BatchEvent:
        """The next batch, past pings."""
        while isinstance(event := await self.next(), Ping):
            pass
        assert isinstance(event, BatchEvent), event
        return event

    async def rest(self) -> list[Event]:
        """All that is left, to the end of the response."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    async def texts(self, count: int) -> list[str]:
        """The bodies of so many records."""
        found: list[str] = []
        while len(found) < count:
            found += [record.body.decode() for record in (await self.batch()).batch.records]
        return found

    def close(self) -> None:
        self.reply.close()


class SessionReader:
    """The messages of one read session."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.reply = reply
        self.status = reply.status
        self._reader = FrameReader()
        self._frames: list[Frame] = []

    async def next(self) -> ReadBatch | Terminal | None:
        """The next message; None at an end in order."""
        async with asyncio.timeout(BOUND_S):
            while not self._frames:
                chunk = await self.reply.content.readany()
                if not chunk:
                    self._reader.finish()
                    return None
                self._frames += self._reader.feed(chunk)
        frame = self._frames.pop(0)
        return protobuf.decode_read_batch(frame.body) if isinstance(frame, Message) else frame

    async def records(self, count: int) -> list[Record]:
        """So many records."""
        found: list[Record] = []
        while len(found) < count:
            batch = await self.next()
            assert isinstance(batch, ReadBatch), batch
            found += batch.records
        return found

    async def texts(self, count: int) -> list[str]:
        return [record.body.decode() for record in await self.records(count)]

    def close(self) -> None:
        self.reply.close()


@dataclass(frozen=True, slots=True)
class Edge:
    """An origin, a gateway in front of it on a manual clock, and clients of both."""

    origin: RunningS2Origin
    gateway: RunningGateway
    client: Client
    direct: Client
    """A client of the origin itself."""
    clock: ManualClock

    def as_(self, token: str) -> Client:
        """A client of the gateway with another token."""
        return Client(self.client.http, self.client.url, token, self.client.replies)

    @property
    def counters(self) -> S2Counters:
        return self.origin.origin.counters

    @property
    def faults(self) -> S2Faults:
        return self.origin.origin.faults


async def follow(edge: Edge) -> SessionReader:
    """A session at the tail of the stream, whose first record it has been sent."""
    session = await edge.client.session()
    assert await session.texts(1) == ["old"]
    assert isinstance(await session.next(), ReadBatch)
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    return session


async def goes_on(edge: Edge, session: SessionReader) -> None:
    """See that the session is sent what is appended, and close it."""
    await edge.client.append("more")
    assert await session.texts(1) == ["more"]
    session.close()
