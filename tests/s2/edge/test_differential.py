"""Random reads of a stream that is appended to, trimmed and created again: the gateway's answers are the origin's."""

from __future__ import annotations

from random import Random

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch, Record
from gateway.s2.session import Terminal
from gateway.s2.sse import BatchEvent, Done, Failure, Ping
from tests.effort import some
from tests.s2.edge.clients import BASIN, STREAM, Client, Edge
from tests.s2.edge.test_trims import trim

STEPS = 120
RUNS = [(0, 0.0), (1, 0.0), (2, 0.0), (0, 0.2), (1, 0.2)]
"""Seed, and how often another stream begins."""
CONFIG = {"create_stream_on_append": True, "default_stream_config": {"timestamping": {"uncapped": True}}}


@pytest.fixture(params=["64MiB", "1MiB"])
def settings(request: pytest.FixtureRequest) -> dict[str, object]:
    return {"cache_bytes": request.param}


def query(random: Random, tail: int, now: int) -> str:
    """A read of some kind, near to what there is."""
    starts = [f"seq_num={random.randint(0, tail + 2)}", f"timestamp={random.randint(max(0, now - 30), now + 2)}"]
    parts = [random.choice([*starts, f"tail_offset={random.randint(0, tail + 2)}", ""])]
    for chance, part in (
        (0.4, f"count={random.choice([1, 2, 3, 10, 100, 1_000, 1_500])}"),
        (0.3, f"bytes={random.choice([1, 8, 9, 20, 100, 3_000, 1_000_000, 2_000_000])}"),
        (0.2, f"until={random.randint(max(0, now - 30), now + 2)}"),
        (0.3, "clamp=true"),
        (0.2, "wait=0"),
    ):
        if random.random() < chance:
            parts.append(part)
    return "&".join(filter(None, parts))


async def append(edge: Edge, random: Random, now: int) -> None:
    """Append, or trim, at the origin or through the gateway."""
    client = random.choice([edge.client, edge.direct])
    if random.random() < 0.1:
        tail = await tail_of(edge)
        await trim(client, random.randint(0, tail), now)
        # Trimmed records are given until the gateway has read the record of the trim.
        await edge.client.read(f"seq_num={tail}&count=1")
        return
    texts = ["x" * random.choice([0, 1, 5, 100, 2_000]) for _ in range(random.choice([1, 2, 3, 50]))]
    await client.append(*texts, timestamp=now)


async def begin_another(edge: Edge, random: Random, now: int) -> None:
    """Put another stream in the place of this one, in a way that the gateway can notice."""
    stream, basin = f"/v1/streams/{STREAM}", f"/v1/basins/{BASIN}"
    match random.choice(["delete", "put", "post", "basin", "basin put", "lost", "append"]):
        case "delete":
            assert (await edge.client.send("DELETE", stream)).status == 202
        case "put":
            await edge.direct.send("DELETE", stream)
            assert (await edge.client.send("PUT", stream, {})).status == 201
        case "post":
            await edge.direct.send("DELETE", stream)
            assert (await edge.client.send("POST", "/v1/streams", {"stream": "a/stream"})).status == 201
        case "basin":
            assert (await edge.client.send("DELETE", basin)).status == 202
            assert (await edge.direct.send("PUT", basin, {"config": CONFIG})).status == 201
        case "basin put":
            await edge.direct.send("DELETE", basin)
            assert (await edge.client.send("PUT", basin, {"config": CONFIG})).status == 201
        case "lost":
            edge.faults.refuse(kind=Call.CONTROL, method="DELETE", times=1)
            assert (await edge.client.send("DELETE", stream)).status == 502
            await edge.direct.send("DELETE", stream)
        case _:
            await edge.client.read("seq_num=0&count=1000")
            await edge.direct.send("DELETE", stream)
            await edge.client.append("first", timestamp=now)
    await random.choice([edge.client, edge.direct]).append(*"abcd"[: random.randint(1, 4)], timestamp=now)


async def tail_of(edge: Edge) -> int:
    tail = (await edge.direct.tail()).json["tail"]
    assert isinstance(tail, dict)
    return int(tail["seq_num"])


Seen = tuple[object, ...]


async def unary(client: Client, asked: str, **headers: str) -> Seen:
    answer = await client.read(asked, **headers)
    return answer.status, answer.body


async def session(client: Client, asked: str) -> Seen:
    """The records of a session and how it ends, or that it waits."""
    reader = await client.session(asked)
    if reader.status != 200:
        return reader.status, await reader.reply.read()
    records: list[Record] = []
    while True:
        match await reader.next():
            case None:
                return "end", records
            case Terminal(status, body):
                return "error", status, body, records
            case ReadBatch((), tail):
                reader.close()
                return "waits", tail, records
            case batch:
                records += batch.records


async def events(client: Client, asked: str) -> Seen:
    """The same as SSE, with the last id."""
    reader = await client.events(asked)
    if reader.status != 200:
        return reader.status, await reader.reply.read()
    records: list[Record] = []
    last = ""
    while True:
        match await reader.next():
            case Done():
                await reader.rest()
                return "end", records, last
            case Failure(body):
                return "error", body, records
            case Ping(tail=tail):
                reader.close()
                return "waits", tail, records, last
            case BatchEvent(id_, batch):
                last = str(id_)
                records += batch.records
            case None:
                return "broken off", records


@pytest.mark.parametrize(("seed", "another"), some([RUNS[0], RUNS[-1]], RUNS))
async def test_answers_are_those_of_the_origin(edge: Edge, seed: int, another: float) -> None:
    random, now = Random(seed), 10
    assert (await edge.direct.send("PATCH", f"/v1/basins/{BASIN}", CONFIG)).status == 200
    await edge.direct.append("first", timestamp=now)
    for _ in range(STEPS):
        for _ in range(random.choice([0, 0, 1, 2])):
            now += random.choice([0, 0, 1, 5])
            if random.random() < another:
                await begin_another(edge, random, now)
            else:
                await append(edge, random, now)
        edge.clock.advance(random.choice([0, 0, 3, 12]))
        asked = query(random, await tail_of(edge), now)
        match random.choice(["JSON", "base64", "protobuf", "session", "events"]):
            case "session":
                assert await session(edge.client, asked) == await session(edge.direct, asked), asked
            case "events":
                assert await events(edge.client, asked) == await events(edge.direct, asked), asked
            case "protobuf":
                protobuf = {"Accept": "application/protobuf"}
                assert await unary(edge.client, asked, **protobuf) == await unary(edge.direct, asked, **protobuf), asked
            case form:
                given = {"s2_format": "base64" if form == "base64" else "raw"}
                assert await unary(edge.client, asked, **given) == await unary(edge.direct, asked, **given), asked
