"""A client of Durable Streams at the gateway, and one of S2 at the origin behind it."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from gateway.aio.clock import Clock, ManualClock
from gateway.app import RunningGateway
from gateway.origin.s2.app import RunningS2Origin
from gateway.origin.s2.counters import S2Counters
from gateway.origin.s2.faults import S2Faults
from gateway.protocol.sse import SseEvent, SseParser
from gateway.s2 import protobuf
from gateway.s2.records import AppendAck, AppendInput, AppendRecord, Command, Header, command_record
from tests.s2.edge.clients import BASIN, BOUND_S, Client

STREAM = "a/stream"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> list[object]:
        assert self.status == 200, self
        found: list[object] = json.loads(self.body)
        return found

    @property
    def end(self) -> str:
        return self.headers["Stream-Next-Offset"]

    @property
    def is_up_to_date(self) -> bool:
        return "Stream-Up-To-Date" in self.headers

    @property
    def is_closed(self) -> bool:
        return "Stream-Closed" in self.headers


@dataclass(frozen=True, slots=True)
class Reader:
    """A client of Durable Streams."""

    http: aiohttp.ClientSession
    url: str
    token: str = "token"

    async def send(
        self, method: str, stream: str = STREAM, body: bytes | None = None, query: str = "", **headers: str
    ) -> Answer:
        """One request; names of headers with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            asyncio.timeout(BOUND_S),
            self.http.request(
                method,
                f"{self.url}/{stream}?{query}",
                data=io.BytesIO(body) if body else None,
                headers={"Authorization": f"Bearer {self.token}", **named},
                skip_auto_headers=("Content-Type",),
            ) as reply,
        ):
            return Answer(reply.status, reply.headers.copy(), await reply.read())

    async def read(self, offset: str = "-1", stream: str = STREAM, live: str = "", **headers: str) -> Answer:
        query = f"offset={offset}" + (f"&live={live}" if live else "")
        return await self.send("GET", stream, None, query, **headers)

    async def all(self, stream: str = STREAM) -> list[object]:
        """All messages, read by as many requests as it takes."""
        found: list[object] = []
        offset = "-1"
        while True:
            answer = await self.read(offset, stream)
            found += answer.json
            if answer.is_up_to_date:
                return found
            offset = answer.end

    async def events(self, offset: str = "-1", stream: str = STREAM) -> Events:
        async with asyncio.timeout(BOUND_S):
            reply = await self.http.get(
                f"{self.url}/{stream}?offset={offset}&live=sse", headers={"Authorization": f"Bearer {self.token}"}
            )
        return Events(reply)


class Events:
    """The events of one SSE answer."""

    def __init__(self, reply: aiohttp.ClientResponse) -> None:
        self.reply = reply
        self._parser = SseParser()
        self._events: list[SseEvent] = []

    async def next(self) -> SseEvent | None:
        """The next event; None at the end."""
        async with asyncio.timeout(BOUND_S):
            while not self._events:
                chunk = await self.reply.content.readany()
                if not chunk:
                    return None
                self._events += self._parser.feed(chunk)
        return self._events.pop(0)

    async def messages(self, count: int) -> list[object]:
        """So many messages of a JSON stream."""
        found: list[object] = []
        while len(found) < count:
            event = await self.next()
            assert event is not None, found
            if event.name == "data":
                found += json.loads(event.data)
        return found

    async def text(self, end: str) -> str:
        """The text up to and with the first event that ends so; each event is text by itself."""
        found = ""
        while not found.endswith(end):
            event = await self.next()
            assert event is not None, found
            if event.name == "data":
                found += event.data.decode()
        return found

    async def control(self) -> dict[str, object]:
        """The next control event, past data."""
        while True:
            event = await self.next()
            assert event is not None
            if event.name == "control":
                found: dict[str, object] = json.loads(event.data)
                return found

    def close(self) -> None:
        self.reply.close()


@dataclass(frozen=True, slots=True)
class Writer:
    """A client of S2 at the origin itself."""

    client: Client

    async def create(self, stream: str = STREAM) -> None:
        answer = await self.client.send("POST", "/v1/streams", {"stream": stream})
        assert answer.status == 201, answer

    async def delete(self, stream: str = STREAM) -> None:
        answer = await self.client.send("DELETE", f"/v1/streams/{_escaped(stream)}")
        assert answer.status == 202, answer

    async def append(
        self,
        *bodies: bytes,
        stream: str = STREAM,
        headers: Mapping[bytes, bytes] | None = None,
        timestamp: int | None = None,
    ) -> AppendAck:
        pairs = tuple(Header(name, value) for name, value in (headers or {}).items())
        return await self._append(stream, *(AppendRecord(body, pairs, timestamp) for body in bodies))

    async def command(self, command: Command, stream: str = STREAM) -> AppendAck:
        return await self._append(stream, command_record(command))

    async def commands(self, *commands: Command, stream: str = STREAM) -> AppendAck:
        """So many commands in one append."""
        return await self._append(stream, *map(command_record, commands))

    async def _append(self, stream: str, *records: AppendRecord) -> AppendAck:
        async with self.client.http.post(
            URL(f"{self.client.url}/v1/streams/{_escaped(stream)}/records", encoded=True),
            data=protobuf.encode_append_input(AppendInput(records)),
            headers={
                "Authorization": "Bearer token",
                "s2-basin": BASIN,
                "Content-Type": protobuf.CONTENT_TYPE,
                "Accept": protobuf.CONTENT_TYPE,
            },
        ) as reply:
            body = await reply.read()
            assert reply.status == 200, body
            return protobuf.decode_append_ack(body)


def _escaped(stream: str) -> str:
    return stream.replace("/", "%2F")


@dataclass(frozen=True, slots=True)
class Bridged:
    """An S2 origin, a gateway in front of it on a manual clock, and clients of both."""

    origin: RunningS2Origin
    gateway: RunningGateway
    reader: Reader
    writer: Writer
    given_clock: Clock

    @property
    def clock(self) -> ManualClock:
        assert isinstance(self.given_clock, ManualClock)
        return self.given_clock

    @property
    def counters(self) -> S2Counters:
        return self.origin.origin.counters

    @property
    def faults(self) -> S2Faults:
        return self.origin.origin.faults
