"""What is created and deleted through the gateway: what is held of another stream is not read any more, and whoever
reads a stream that nothing has happened to goes on."""

from __future__ import annotations

import asyncio
import gzip
import io
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import unquote

import aiohttp
import orjson
import pytest
import zstandard
from yarl import URL

from gateway.engine.s2.streams import BEAT_S, EVERY_S
from gateway.origin.faults import When
from gateway.origin.s2.app import S2OriginSettings
from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch
from gateway.s2.session import Terminal
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Client, Edge, follow, goes_on
from tests.waiting import eventually, pass_turns, time_passing

RANGE = "seq_num=0&count=1"
CREATING = {"create_stream_on_append": True}


@pytest.fixture
async def held(edge: Edge) -> Edge:
    """A gateway that holds a record."""
    await edge.client.append("old", timestamp=1)
    assert (await edge.client.read(RANGE)).texts == ["old"]
    edge.counters.reset()
    return edge


async def texts(client: Client, how: str) -> list[str]:
    """The first record, by a unary read or by a session."""
    if how == "unary":
        return (await client.read(RANGE)).texts
    session = await client.session(RANGE)
    found = await session.texts(1)
    session.close()
    return found


async def post(client: Client, path: str, body: bytes | AsyncIterator[bytes], **headers: str) -> int:
    """The status of a POST of this body, which need not be all that a client would send."""
    named = {"Authorization": f"Bearer {client.token}", "s2-basin": BASIN, "Content-Type": "application/json"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    data = io.BytesIO(body) if isinstance(body, bytes) else body
    async with asyncio.timeout(BOUND_S), client.http.post(URL(client.url + path), data=data, headers=named) as reply:
        await reply.read()
        return reply.status


@pytest.mark.parametrize("fault", ["no answer", "502"])
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/basins"), ("PUT", f"/v1/basins/{BASIN}")])
async def test_a_creation_of_a_basin_whose_outcome_is_not_known_drops_what_is_held(
    held: Edge, method: str, path: str, fault: str
) -> None:
    edge = held
    await edge.direct.send("DELETE", f"/v1/basins/{BASIN}")
    if fault == "502":
        edge.faults.replace(502, {}, b"", kind=Call.CONTROL, times=1)
    else:
        edge.faults.refuse(kind=Call.CONTROL, times=1)
    body = {"basin": BASIN, "config": CREATING} if method == "POST" else {"config": CREATING}
    assert (await edge.client.send(method, path, body)).status == 502
    assert (await edge.direct.send(method, path, body)).status == 201
    await edge.direct.append("new", timestamp=1)
    assert (await edge.client.read(RANGE)).texts == ["new"]


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("path", ["/v1/streams", "/v1/basins"])
async def test_a_name_in_a_compressed_body_is_seen(held: Edge, path: str, coding: str) -> None:
    """S2's SDK for Python compresses every body if it is told to compress."""
    edge = held
    of_basin = path == "/v1/basins"
    await edge.direct.send("DELETE", f"/v1/basins/{BASIN}" if of_basin else f"/v1/streams/{STREAM}")
    body = orjson.dumps({"basin": BASIN, "config": CREATING} if of_basin else {"stream": "a/stream"})
    body = gzip.compress(body) if coding == "gzip" else zstandard.ZstdCompressor().compress(body)
    assert await post(edge.client, path, body, Content_Encoding=coding) == 201
    await edge.direct.append("new", timestamp=1)
    assert (await edge.client.read(RANGE)).texts == ["new"]


async def _in_parts(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), 1 << 15):
        yield body[at : at + (1 << 15)]


@pytest.mark.parametrize("how", ["large", "in parts", "compressed to little"])
@pytest.mark.parametrize("path", ["/v1/streams", "/v1/basins"])
@pytest.mark.parametrize("read", ["unary", "session"])
async def test_a_creation_whose_name_is_not_known_has_what_is_held_confirmed(
    held: Edge, path: str, how: str, read: str
) -> None:
    edge = held
    of_basin = path == "/v1/basins"
    await edge.direct.send("DELETE", f"/v1/basins/{BASIN}" if of_basin else f"/v1/streams/{STREAM}")
    body = orjson.dumps({"basin": BASIN, "config": CREATING} if of_basin else {"stream": "a/stream"}) + b" " * 100_000
    match how:
        case "large":
            status = await post(edge.client, path, body)
        case "in parts":
            status = await post(edge.client, path, _in_parts(body))
        case _:
            status = await post(edge.client, path, gzip.compress(body), Content_Encoding="gzip")
    assert status == 201
    await edge.direct.append("new", timestamp=2)
    if read == "unary":
        assert (await edge.client.read(RANGE)).texts == ["new"]
    else:
        session = await edge.client.session(RANGE)
        assert await session.texts(1) == ["new"]


@pytest.mark.parametrize("read", ["unary", "session"])
async def test_a_read_after_such_a_creation_takes_nothing_that_was_asked_for_before(edge: Edge, read: str) -> None:
    await edge.direct.append("old", timestamp=1)
    answer = edge.faults.hold(kind=Call.READ, times=1, when=When.REPLY)
    before = asyncio.ensure_future(edge.client.read(RANGE))
    await answer.waiting(1)
    await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
    assert await post(edge.client, "/v1/streams", orjson.dumps({"stream": "a/stream"}) + b" " * 100_000) == 201
    await edge.direct.append("new", timestamp=2)
    after = asyncio.ensure_future(texts(edge.client, read))
    await eventually(lambda: [one.users for one in edge.gateway.engine.s2.streams] == [2])
    answer.release()
    assert (await before).texts == ["old"]
    assert await after == ["new"]


@pytest.mark.parametrize("change", ["DELETE", "PUT"])
async def test_a_name_that_durable_streams_reserve_is_a_stream_as_any_other(edge: Edge, change: str) -> None:
    await edge.client.append("old", stream="__ds", timestamp=1)
    assert (await edge.client.read(RANGE, stream="__ds")).texts == ["old"]
    if change == "DELETE":
        assert (await edge.client.send("DELETE", "/v1/streams/__ds")).status == 202
    else:
        await edge.direct.send("DELETE", "/v1/streams/__ds")
        assert (await edge.client.send("PUT", "/v1/streams/__ds", {})).status == 201
    await edge.direct.append("new", stream="__ds", timestamp=1)
    assert (await edge.client.read(RANGE, stream="__ds")).texts == ["new"]


async def test_what_is_confirmed_is_read_from_memory_again_and_live_readers_go_on(held: Edge) -> None:
    edge = held
    session = await follow(edge)
    for _ in range(4):
        assert (await edge.client.read(RANGE)).texts == ["old"]
    assert await post(edge.client, "/v1/streams", orjson.dumps({"stream": "other"}) + b" " * 100_000) == 201
    edge.counters.reset()
    readings = [asyncio.ensure_future(edge.client.read(RANGE)) for _ in range(20)]
    assert [(await one).texts for one in readings] == [["old"]] * 20
    assert 1 <= edge.counters.requests[Call.READ] <= 2
    edge.counters.reset()
    assert (await edge.client.read(RANGE)).texts == ["old"]
    assert edge.counters.total_requests == 0
    await goes_on(edge, session)


async def test_an_origin_that_does_not_confirm_what_is_held_is_not_passed_over(held: Edge) -> None:
    edge = held
    assert await post(edge.client, "/v1/streams", orjson.dumps({"stream": "other"}) + b" " * 100_000) == 201
    edge.faults.replace(503, {}, b"", kind=Call.READ, times=1)
    assert (await edge.client.read(RANGE)).status == 503
    assert (await edge.client.read(RANGE)).texts == ["old"]
    edge.counters.reset()
    assert (await edge.client.read(RANGE)).texts == ["old"]
    assert edge.counters.total_requests == 0


@pytest.mark.parametrize("change", ["DELETE", "PUT", "POST", "a DELETE without an answer"])
async def test_a_stream_of_the_same_name_in_another_basin_is_left_alone(held: Edge, change: str) -> None:
    edge = held
    session = await follow(edge)
    basin = "another-basin"
    await edge.client.send("POST", "/v1/basins", {"basin": basin})
    match change:
        case "PUT":
            assert (await edge.client.send("PUT", f"/v1/streams/{STREAM}", {}, s2_basin=basin)).status == 201
        case "POST":
            created = await edge.client.send("POST", "/v1/streams", {"stream": "a/stream"}, s2_basin=basin)
            assert created.status == 201
        case "DELETE":
            await edge.direct.send("PUT", f"/v1/streams/{STREAM}", {}, s2_basin=basin)
            assert (await edge.client.send("DELETE", f"/v1/streams/{STREAM}", s2_basin=basin)).status == 202
        case _:
            edge.faults.refuse(kind=Call.CONTROL, method="DELETE", times=1)
            assert (await edge.client.send("DELETE", f"/v1/streams/{STREAM}", s2_basin=basin)).status == 502
    edge.counters.reset()
    assert (await edge.client.read(RANGE)).texts == ["old"]
    assert edge.counters.total_requests == 0
    await goes_on(edge, session)


async def test_a_delete_that_names_two_basins_is_of_either(held: Edge) -> None:
    edge = held
    headers = [("Authorization", "Bearer token"), ("s2-basin", "another-basin"), ("s2-basin", BASIN)]
    url = URL(f"{edge.client.url}/v1/streams/{STREAM}", encoded=True)
    edge.faults.replace(202, {}, b"", kind=Call.CONTROL, method="DELETE", times=1)
    async with asyncio.timeout(BOUND_S), edge.client.http.delete(url, headers=headers) as reply:
        assert reply.status == 202
    edge.counters.reset()
    assert (await edge.client.read(RANGE)).texts == ["old"]
    assert edge.counters.total_requests == 1


class TestStrangers:
    """A token under which there is no such stream."""

    @pytest.fixture
    def origin_settings(self) -> S2OriginSettings:
        return S2OriginSettings(has_account_per_token=True)

    @pytest.mark.parametrize("path", [f"/v1/streams/{STREAM}", f"/v1/basins/{BASIN}"])
    async def test_a_strangers_delete_of_nothing_ends_no_session(self, held: Edge, path: str) -> None:
        edge = held
        session = await follow(edge)
        assert (await edge.as_("stranger").send("DELETE", path)).status == 404
        edge.counters.reset()
        for _ in range(2):
            assert (await edge.client.read(RANGE)).texts == ["old"]
        assert edge.counters.requests[Call.READ] == (1 if "streams" in path else 0)
        await goes_on(edge, session)


async def test_refused_deletes_have_each_followed_stream_confirmed_once_and_in_its_turn(held: Edge) -> None:
    edge, count = held, 5
    readers = [edge.as_(f"reader {number}") for number in range(count)]
    sessions = []
    for number, reader in enumerate(readers, 1):
        sessions.append(await reader.session())
        assert await sessions[-1].texts(1) == ["old"]
        assert isinstance(await sessions[-1].next(), ReadBatch)
        await edge.counters.sessions_are(Call.READ_SESSION, number)
    edge.faults.replace(404, {}, b"", kind=Call.CONTROL, method="DELETE", times=8)
    edge.counters.reset()

    async def refuse() -> None:
        for _ in range(4):
            assert (await edge.as_("stranger").send("DELETE", f"/v1/streams/{STREAM}")).status == 404
        await pass_turns()

    await refuse()
    assert edge.counters.requests[Call.READ] == 0
    edge.clock.advance(BEAT_S)
    for confirmed in range(1, count + 1):
        await edge.counters.reached(Call.READ, confirmed)
        await pass_turns()
        assert edge.counters.requests[Call.READ] == confirmed
        edge.clock.advance(EVERY_S)
    await refuse()
    assert edge.counters.requests[Call.READ] == count
    await edge.client.append("more")
    for session in sessions:
        assert await session.texts(1) == ["more"]
        session.close()


async def test_live_readers_of_a_stream_in_doubt_that_is_gone_end(held: Edge) -> None:
    """The origin's session may stay open."""
    edge = held
    session = await follow(edge)
    edge.faults.replace(404, {}, b"", kind=Call.CONTROL, method="DELETE", times=1)
    edge.faults.replace(404, {}, b'{"code":"stream_not_found","message":"gone"}', kind=Call.READ)
    assert (await edge.client.send("DELETE", f"/v1/streams/{STREAM}")).status == 404
    async with time_passing(edge.clock):
        while isinstance(end := await session.next(), ReadBatch):
            assert not end.records
    assert isinstance(end, Terminal)


async def test_a_delete_of_what_is_gone_has_what_is_held_confirmed(held: Edge) -> None:
    edge, path = held, f"/v1/streams/{STREAM}"
    await edge.direct.send("DELETE", path)
    assert (await edge.client.send("DELETE", path)).status == 404
    assert (await edge.client.read(RANGE)).status == 404


async def test_an_append_to_what_is_gone_has_what_is_held_confirmed(held: Edge) -> None:
    edge = held
    await edge.direct.send("PATCH", f"/v1/basins/{BASIN}", {"create_stream_on_append": False})
    session = await follow(edge)
    body = {"records": [{"body": "more"}]}
    edge.faults.replace(404, {}, b"", kind=Call.APPEND, times=1)
    assert (await edge.client.send("POST", f"/v1/streams/{STREAM}/records", body)).status == 404
    edge.counters.reset()
    for _ in range(2):
        assert (await edge.client.read(RANGE)).texts == ["old"]
    assert edge.counters.requests[Call.READ] == 1
    await goes_on(edge, session)
    await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
    assert (await edge.client.send("POST", f"/v1/streams/{STREAM}/records", body)).status == 404
    assert (await edge.client.read(RANGE)).status == 404


@pytest.mark.parametrize("path", ["records/?seq_num=0&count=1", "records/tail/", "records//tail", "/records"])
async def test_a_path_that_is_not_s2s_gets_the_origins_answer(held: Edge, path: str) -> None:
    target = f"/v1/streams/{STREAM}/{path}"
    ours, theirs = [await client.send("GET", target) for client in (held.client, held.direct)]
    assert (ours.status, ours.body) == (theirs.status, theirs.body)
    assert ours.status == 404


class TestAccounts:
    """Each token has an account of its own, so one path names another stream for each."""

    @pytest.fixture
    def origin_settings(self) -> S2OriginSettings:
        return S2OriginSettings(has_account_per_token=True)

    @pytest.mark.parametrize("answer", ["done", "lost"])
    @pytest.mark.parametrize("kind", ["delete", "create", "delete of the basin", "create of the basin"])
    async def test_a_change_of_a_strangers_stream_ends_no_session(self, held: Edge, kind: str, answer: str) -> None:
        edge, stranger = held, held.as_("stranger")
        basin, path = {"basin": BASIN, "config": {"create_stream_on_append": True}}, f"/v1/streams/{STREAM}"
        if kind != "create of the basin":
            await stranger.send("POST", "/v1/basins", basin)
        if kind == "delete":
            await stranger.append("theirs")
        session = await follow(edge)
        if answer == "lost":
            edge.faults.drop(0, kind=Call.CONTROL, times=1)
        requests: dict[str, tuple[str, str, object]] = {
            "delete": ("DELETE", path, None),
            "create": ("POST", "/v1/streams", {"stream": unquote(STREAM)}),
            "delete of the basin": ("DELETE", f"/v1/basins/{BASIN}", None),
            "create of the basin": ("POST", "/v1/basins", basin),
        }
        await _sent(stranger, *requests[kind])
        for _ in range(2):
            assert (await edge.client.read(RANGE)).texts == ["old"]
        await goes_on(edge, session)


async def _sent(client: Client, method: str, path: str, body: object) -> None:
    """Send a request whose answer may be lost."""
    with suppress(aiohttp.ClientError):
        await client.send(method, path, body)


@pytest.mark.parametrize("kind", ["delete", "delete of the basin"])
async def test_a_delete_under_another_token_of_the_same_account_ends_the_sessions(held: Edge, kind: str) -> None:
    edge = held
    session = await follow(edge)
    path = f"/v1/basins/{BASIN}" if "basin" in kind else f"/v1/streams/{STREAM}"
    assert (await edge.as_("another").send("DELETE", path)).status < 300
    while isinstance(end := await session.next(), ReadBatch):
        assert not end.records
    assert isinstance(end, Terminal)
    assert (await edge.client.read(RANGE)).status == 404
