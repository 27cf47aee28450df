"""Offsets that are not positions: the in-memory origin and the reference server answer the same requests alike.

`@durable-streams/y-durable-streams` makes such offsets: its server names a snapshot `X_snapshot`, where X is the offset
at which the snapshot ends, and sends its reader on to X + 1.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession

from gateway.origin.app import OriginSettings, start_origin
from tests.clients.conftest import LONG_POLL_TIMEOUT_S

JSON = "application/json"
BINARY = "application/octet-stream"
TEXT = "text/plain"
WRITES = {
    JSON: [b'[{"n":1},{"n":2}]', b'{"n":3}', b'{"n":4}'],
    BINARY: [bytes(range(64)), b"\x00" * 9, b"\xff" * 30],
    TEXT: [b"one\ntwo\n", b"three\n", b"four\n"],
}
START = "0000000000000000_0000000000000000"


def incremented(offset: str) -> str:
    """The offset to which the Yjs server sends a reader of a snapshot."""
    first, second = offset.split("_")
    return f"{first}_{int(second) + 1:0{len(second)}d}"


@dataclass(slots=True)
class Asked:
    """One stream of one server; its offsets have names that are the same for both servers."""

    url: str
    content_type: str
    http: ClientSession
    names: dict[str, str] = field(default_factory=lambda: {START: "start"})

    async def create(self) -> None:
        async with self.http.put(self.url, headers={"Content-Type": self.content_type}) as reply:
            assert reply.status == 201

    async def append(self, body: bytes, name: str) -> None:
        """Append, and give the new tail the name `name`."""
        async with self.http.post(self.url, headers={"Content-Type": self.content_type}, data=body) as reply:
            assert reply.ok, await reply.text()
            self.names[reply.headers["Stream-Next-Offset"]] = name

    async def close(self) -> None:
        async with self.http.post(self.url, headers={"Stream-Closed": "true"}) as reply:
            assert reply.ok

    def offset(self, question: str) -> str:
        """Replace `{X}` in a question by the offset named X, `{X+1}` by the Yjs server's increment of it."""
        known = {name: offset for offset, name in self.names.items()}
        for name, offset in known.items():
            question = question.replace(f"{{{name}}}", offset).replace(f"{{{name}+1}}", incremented(offset))
        return question

    async def answer(self, question: str, live: str | None) -> dict[str, Any]:
        """The parts of a reply that do not depend on the server's format of offsets, cursors and errors."""
        query = {"offset": self.offset(question)} | ({"live": live} if live else {})
        async with self.http.get(self.url, params=query) as reply:
            said: dict[str, Any] = {
                "status": reply.status,
                "type": reply.content_type if reply.status != 204 else None,
                "next": self._name(reply.headers.get("Stream-Next-Offset")),
                "up to date": reply.headers.get("Stream-Up-To-Date"),
                "closed": reply.headers.get("Stream-Closed"),
                "has cursor": "Stream-Cursor" in reply.headers,
                "encoding": reply.headers.get("stream-sse-data-encoding"),
            }
            if reply.content_type == "text/event-stream":
                return said | await self._events(reply)
            body = await reply.read()
            if not reply.ok:
                return said | {"body": body.strip()}
            return said | {"body": json.loads(body) if body and self.content_type == JSON else body}

    async def _events(self, reply: ClientResponse) -> dict[str, Any]:
        """All events up to the first up-to-date control event."""
        data: list[str] = []
        event, lines = "", list[str]()
        async for line in reply.content:
            match line.decode().rstrip("\n").partition(":"):
                case ["event", _, value]:
                    event = value.strip()
                case ["data", _, value]:
                    lines.append(value.removeprefix(" "))
                case ["", "", ""] if event == "data":
                    data.append("\n".join(lines))
                    lines = []
                case ["", "", ""] if event == "control":
                    control = json.loads("".join(lines))
                    lines = []
                    if control.get("upToDate") or control.get("streamClosed"):
                        return {
                            "body": self._joined(data),
                            "control next": self._name(control["streamNextOffset"]),
                            "control closed": control.get("streamClosed"),
                            "control cursor": "streamCursor" in control,
                        }
        raise AssertionError(f"the events ended early: {data}")

    def _joined(self, data: list[str]) -> Any:
        if self.content_type == JSON:
            return [item for part in data for item in json.loads(part)]
        if self.content_type == BINARY:
            return b"".join(base64.b64decode(part) for part in data)
        return "".join(data)

    def _name(self, offset: str | None) -> str | None:
        return None if offset is None else self.names.get(offset, offset)


@pytest.fixture(params=[JSON, BINARY, TEXT], ids=["json", "binary", "text"])
async def both(request: pytest.FixtureRequest, reference_server: str, path: str) -> AsyncIterator[list[Asked]]:
    """A new stream of one content type on each of the two servers."""
    origin = await start_origin(OriginSettings(long_poll_timeout_s=LONG_POLL_TIMEOUT_S))
    async with ClientSession() as http:
        servers = [Asked(url + path, request.param, http) for url in (origin.url, reference_server)]
        for server in servers:
            await server.create()
        yield servers
    await origin.stop(grace_s=0)


QUESTIONS = ["{X+1}", "{Y+1}", "9999999999999999_9999999999999999", "snapshot", "{X}_snapshot", "{Y+1}_snapshot"]


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
async def test_both_origins_answer_an_offset_that_is_not_a_position_alike(both: list[Asked], is_closed: bool) -> None:
    for server in both:
        first, second, third = WRITES[server.content_type]
        await server.append(first, "X")
        await server.append(second, "Y")
        await server.append(third, "tail")
        if is_closed:
            await server.close()
    for question in ("{start+1}", *QUESTIONS, "{tail+1}"):
        for live in (None, "long-poll", "sse"):
            ours, theirs = [await server.answer(question, live) for server in both]
            assert ours == theirs, (question, live)


async def test_a_read_past_the_tail_is_answered_at_once_and_the_next_from_the_tail(both: list[Asked]) -> None:
    for server in both:
        first, second, _ = WRITES[server.content_type]
        await server.append(first, "X")
        for live in (None, "long-poll", "sse"):
            said = await server.answer("{X+1}", live)
            assert said["status"] == 200
            assert (said["control next"] if live == "sse" else said["next"]) == "X", (server.url, live)
            assert not said["body"]
        await server.append(second, "Y")
        for live in (None, "long-poll", "sse"):
            behind = await server.answer("{X}", live)
            assert behind["body"]
            assert await server.answer("{X+1}", live) == behind
