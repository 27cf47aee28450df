"""The real clients of Durable Streams on a bridged stream, unmodified: every mode, every type."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from durable_streams import astream

from gateway.aio.clock import Clock, SystemClock
from gateway.bridge.content import CLOSE_TOKEN
from gateway.origin.s2.calls import Call
from gateway.s2.records import Fence, Trim
from tests.bridge.clients import STREAM, Bridged
from tests.clients.program import Failed
from tests.clients.typescript import TypeScript
from tests.waiting import eventually

BOUND_S = 20.0
READERS = 4

JSON, BINARY, TEXT = "application/json", "application/octet-stream", "text/plain"
MESSAGES = {
    JSON: [json.dumps({"n": number, "text": "é\u2028\n"}).encode() for number in range(6)],
    BINARY: [bytes(range(number, 256)) for number in range(6)],
    TEXT: [f"line {number}, é\nand one more\n".encode() for number in range(6)],
}
AS = {JSON: "json", BINARY: "bytes", TEXT: "text"}

both_modes = pytest.mark.parametrize("live", ["long-poll", "sse"])


@pytest.fixture(params=[JSON, BINARY, TEXT], ids=["json", "binary", "text"])
def content_type(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def bridge(content_type: str) -> dict[str, object]:
    return {} if content_type == JSON else {"records": "bytes", "content_type": content_type}


@pytest.fixture
def settings() -> dict[str, object]:
    return {"origin_http": "2", "long_poll_timeout_s": 2.0}


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
async def typescript() -> AsyncIterator[TypeScript]:
    async with TypeScript.start() as client:
        yield client


def url(bridged: Bridged) -> str:
    return f"{bridged.reader.url}/{STREAM}"


def content(content_type: str, parts: list[Any]) -> Any:
    """What the parts that a client was given are together, in the form of the writer's messages."""
    if content_type == JSON:
        return [item for part in parts for item in part]
    if content_type == BINARY:
        return b"".join(base64.b64decode(part) for part in parts)
    return "".join(parts)


def wanted(content_type: str, messages: list[bytes]) -> Any:
    if content_type == JSON:
        return [json.loads(message) for message in messages]
    return b"".join(messages) if content_type == BINARY else b"".join(messages).decode()


async def test_typescript_reads_all_of_a_stream(bridged: Bridged, typescript: TypeScript, content_type: str) -> None:
    messages = MESSAGES[content_type]
    await bridged.writer.create()
    await bridged.writer.append(*messages)
    for _ in range(3):
        read = await typescript.do("read", url=url(bridged), **{"as": AS[content_type]})
        assert content(content_type, [read["content"]]) == wanted(content_type, messages)
    assert bridged.counters.records_sent[Call.READ] == len(messages)
    await bridged.writer.append(messages[0])
    rest = await typescript.do("read", url=url(bridged), offset=read["offset"], **{"as": AS[content_type]})
    assert content(content_type, [rest["content"]]) == wanted(content_type, messages[:1])


@both_modes
async def test_typescript_follows_to_the_end(
    bridged: Bridged, typescript: TypeScript, content_type: str, live: str
) -> None:
    messages = MESSAGES[content_type]
    await bridged.writer.create()
    await bridged.writer.append(*messages[:2])
    await typescript.follow(url(bridged), live, AS[content_type])
    batches = await typescript.until_up_to_date()
    for count, message in enumerate(messages[2:], 3):
        await bridged.writer.append(message)
        while content(content_type, [batch["batch"] for batch in batches]) != wanted(content_type, messages[:count]):
            batches.append(await typescript.batch())
    await bridged.writer.command(Trim(1))
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    batches += await typescript.until_end()
    assert content(content_type, [batch["batch"] for batch in batches]) == wanted(content_type, messages)
    assert batches[-1]["closed"]


async def test_typescript_writes(bridged: Bridged, typescript: TypeScript, content_type: str) -> None:
    messages = MESSAGES[content_type]
    bodies = [base64.b64encode(one).decode() if content_type == BINARY else one.decode() for one in messages]
    await typescript.do("create", url=url(bridged), contentType=content_type)
    for body in bodies[:-1]:
        await typescript.do("append", url=url(bridged), contentType=content_type, body=body)
    closed = await typescript.do("close", url=url(bridged), contentType=content_type, body=bodies[-1])
    assert closed["offset"] == f"{len(bodies):020d}"
    read = await typescript.do("read", url=url(bridged), **{"as": AS[content_type]})
    assert content(content_type, [read["content"]]) == wanted(content_type, messages)
    assert read["closed"]


async def test_typescript_hears_of_a_trim(bridged: Bridged, typescript: TypeScript, content_type: str) -> None:
    await bridged.writer.create()
    await bridged.writer.append(*MESSAGES[content_type])
    await bridged.writer.command(Trim(3))
    with pytest.raises(Failed) as failed:
        await typescript.do("read", url=url(bridged), offset=f"{1:020d}", **{"as": AS[content_type]})
    assert failed.value.status == 410
    read = await typescript.do("read", url=url(bridged), **{"as": AS[content_type]})
    assert content(content_type, [read["content"]]) == wanted(content_type, MESSAGES[content_type][3:])


def waiting_clients(bridged: Bridged) -> int:
    """The number of clients that wait for a connected follower, and have no request of their own at the origin."""
    confirmed = [topic for topic in bridged.gateway.engine.live.topics() if topic.is_confirmed]
    return sum(len(topic.readers_now) + topic.extra_clients for topic in confirmed)


# The client does not know base64 in SSE.
@pytest.mark.parametrize(
    ("content_type", "live"),
    [(JSON, "long-poll"), (JSON, "sse"), (TEXT, "long-poll"), (TEXT, "sse"), (BINARY, "long-poll")],
    indirect=["content_type"],
)
async def test_python_clients_share_what_the_origin_sends_once(bridged: Bridged, content_type: str, live: Any) -> None:
    messages = MESSAGES[content_type]
    await bridged.writer.create()
    await bridged.writer.append(messages[0])

    async def follow() -> Any:
        found: list[Any] = []
        async with astream(url(bridged), offset="-1", live=live) as read:
            async for part in _parts(read, content_type):
                found.append(part)
                whole = found if content_type == JSON else type(found[0])().join(found)
                if whole == wanted(content_type, messages):
                    return
                assert len(found) < 100

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as readers:
        for _ in range(READERS):
            readers.create_task(follow())
        # Before the follower has named the tail, a reader may ask the origin for it, and gets later records too.
        await eventually(lambda: waiting_clients(bridged) == READERS)
        for message in messages[1:]:
            await bridged.writer.append(message)
    sessions = bridged.counters.requests[Call.READ_SESSION]
    # Text is followed by long-poll, because SSE does not tell CR from LF.
    assert sessions == (0 if content_type == TEXT else 1)
    # Each record once; the record before a session or before the answer to a long-poll, and a small one that may be the
    # mark of the close, once more.
    polls = len(messages) if content_type == TEXT else 0
    assert sum(bridged.counters.records_sent.values()) <= len(messages) + polls + sessions + 1


def _parts(read: Any, content_type: str) -> AsyncIterator[Any]:
    if content_type == JSON:
        parts: AsyncIterator[Any] = read.iter_json()
    elif content_type == BINARY:
        parts = aiter(read)
    else:
        parts = read.iter_text()
    return parts
