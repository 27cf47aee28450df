"""A stream that was created again past the gateway, and appended to through it: who has the acknowledgement reads what
was appended, and nothing of the stream before."""

from __future__ import annotations

import asyncio
import gzip

import pytest
import zstandard
from s2_sdk import S2, AppendInput, Endpoints, Record

from gateway.origin.s2.app import S2OriginSettings
from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf
from gateway.s2.records import AppendInput as Append
from gateway.s2.records import AppendRecord, ReadBatch
from gateway.s2.session import Terminal
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Edge, follow, goes_on

RANGE = "seq_num=0&count=1"


@pytest.fixture
def settings() -> dict[str, object]:
    return {"origin_http": "2"}


async def begin(edge: Edge) -> None:
    """Hold a record of a stream that is gone."""
    await edge.client.append("old", timestamp=1)
    assert (await edge.client.read(RANGE)).texts == ["old"]
    await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")


async def append(edge: Edge, how: str, texts: list[str]) -> None:
    """Append through the gateway; the first record of the stream that there is now."""
    match how:
        case "JSON":
            answer = await edge.client.append(*texts, timestamp=1)
            assert answer.json["start"] == {"seq_num": 0, "timestamp": 1}
        case "protobuf":
            body = protobuf.encode_append_input(Append(tuple(AppendRecord(text.encode(), (), 1) for text in texts)))
            async with edge.client.http.post(
                f"{edge.client.url}/v1/streams/a%2Fstream/records",
                data=body,
                headers={
                    "Authorization": "Bearer token",
                    "s2-basin": BASIN,
                    "Content-Type": "application/x-protobuf",
                    "Accept": "application/x-protobuf",
                },
            ) as reply:
                assert protobuf.decode_append_ack(await reply.read()).start.seq_num == 0
        case _:
            url = edge.gateway.gateway_url
            async with S2("token", endpoints=Endpoints(account=url, basin=url)) as s2:
                records = [Record(body=text.encode(), timestamp=1) for text in texts]
                async with s2.basin(BASIN).stream("a/stream").append_session() as session:
                    ticket = await session.submit(AppendInput(records=records))
                    assert (await ticket).start.seq_num == 0


@pytest.mark.parametrize("how", ["JSON", "protobuf", "session"])
@pytest.mark.parametrize("texts", [["new"], ["new", "newer", "newest"]])
async def test_what_was_acknowledged_is_read(edge: Edge, how: str, texts: list[str]) -> None:
    async with asyncio.timeout(BOUND_S):
        await begin(edge)
        await append(edge, how, texts)
        assert (await edge.client.read(RANGE)).texts == ["new"]


async def test_a_session_of_the_stream_before_is_ended(edge: Edge) -> None:
    await edge.client.append("old", timestamp=1)
    session = await edge.client.session()
    assert await session.texts(1) == ["old"]
    assert isinstance(await session.next(), ReadBatch)
    gate = edge.faults.hold(kind=Call.READ_SESSION)
    await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
    await edge.client.append("new", timestamp=1)
    assert isinstance(await session.next(), Terminal)
    gate.release()


async def test_appends_to_the_same_stream_change_nothing(edge: Edge) -> None:
    await edge.client.append("old", timestamp=1)
    assert (await edge.client.read(RANGE)).texts == ["old"]
    await asyncio.gather(*(edge.client.append(str(number), timestamp=1) for number in range(20)))
    assert (await edge.client.read("seq_num=0&count=10")).status == 200
    await asyncio.gather(*(edge.client.append(str(number), timestamp=1) for number in range(20)))
    answer = await edge.client.send("POST", f"/v1/streams/{STREAM}/records", {"records": [], "match_seq_num": 0})
    assert answer.status == 422
    edge.counters.reset()
    assert (await edge.client.read("seq_num=0&count=10")).status == 200
    assert edge.counters.total_requests == 0


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_a_compressed_acknowledgement_is_seen(edge: Edge, coding: str) -> None:
    """No acknowledgement is large enough to be worth it, but an origin may compress all that it sends."""
    await begin(edge)
    body = (await edge.direct.append("new", timestamp=1)).body
    body = gzip.compress(body) if coding == "gzip" else zstandard.ZstdCompressor().compress(body)
    headers = {"content-type": "application/json", "content-encoding": coding}
    edge.faults.replace(200, headers, body, kind=Call.APPEND, times=1)
    assert (await edge.client.append("new", timestamp=1)).body == body
    assert (await edge.client.read(RANGE)).texts == ["new"]


async def test_the_acknowledgement_of_a_stream_by_a_name_that_durable_streams_reserve_is_seen(edge: Edge) -> None:
    await edge.client.append("old", stream="__ds", timestamp=1)
    assert (await edge.client.read(RANGE, stream="__ds")).texts == ["old"]
    await edge.direct.send("DELETE", "/v1/streams/__ds")
    await edge.client.append("new", stream="__ds", timestamp=1)
    assert (await edge.client.read(RANGE, stream="__ds")).texts == ["new"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"start":{"seq_num":0}}',
        b"x" * 10_000,
        b'{"start":0,"end":1,"tail":[]}',
        bytes(100),
        b"\x1f\xff\xff".ljust(9_000),
    ],
)
async def test_an_answer_that_is_no_acknowledgement_is_passed_on(edge: Edge, body: bytes) -> None:
    await edge.client.append("old", timestamp=1)
    assert (await edge.client.read(RANGE)).texts == ["old"]
    for type_ in ("application/json", "application/protobuf", "s2s/proto"):
        edge.faults.replace(200, {"content-type": type_}, body, kind=Call.APPEND, times=1)
        assert (await edge.client.append("new")).body == body
    edge.counters.reset()
    assert (await edge.client.read(RANGE)).texts == ["old"]
    assert edge.counters.total_requests == 0


async def test_what_was_acknowledged_to_another_token_is_read(edge: Edge) -> None:
    """Writers and readers often have tokens of their own."""
    await begin(edge)
    await edge.as_("writer").append("new", timestamp=2)
    assert (await edge.client.read(RANGE)).texts == ["new"]


class TestTokens:
    @pytest.fixture
    def origin_settings(self) -> S2OriginSettings:
        return S2OriginSettings(has_account_per_token=True)

    async def test_an_append_to_a_strangers_stream_of_the_same_name_ends_no_session(self, edge: Edge) -> None:
        stranger = edge.as_("stranger")
        await stranger.send("POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
        await edge.client.append("old", timestamp=1)
        session = await follow(edge)
        await stranger.append("theirs", timestamp=1)
        edge.counters.reset()
        for _ in range(2):
            assert (await edge.client.read(RANGE)).texts == ["old"]
        assert edge.counters.requests[Call.READ] == 1
        await goes_on(edge, session)
