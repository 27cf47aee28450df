"""Ranges of an S2 stream that are answered by the bytes of their requests: what they depend on, and what ends them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from s2_sdk import S2, Endpoints, ReadLimit, SeqNum

from gateway.origin.faults import When
from gateway.origin.s2.app import S2OriginSettings
from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Edge

RANGE = "seq_num=1&count=2"


def served(edge: Edge) -> int:
    """Answers from remembered bytes."""
    remembered = edge.gateway.clients.remembered
    assert remembered is not None
    return remembered.served


async def remember(edge: Edge, query: str = RANGE) -> None:
    """Read a range until it is answered from remembered bytes."""
    for _ in range(3):
        answer = await edge.client.read(query)
        assert answer.status == 200, answer
    assert served(edge) == 1


async def test_a_range_that_is_read_again_is_answered_without_the_handler(edge: Edge) -> None:
    await edge.client.append(*"abcd")
    await remember(edge)
    edge.counters.reset()
    by_handler = await edge.client.read("seq_num=1&count=2&clamp=true")
    by_bytes = await edge.client.read(RANGE)
    assert served(edge) == 2
    assert edge.counters.total_requests == 0
    assert (by_bytes.status, by_bytes.body) == (by_handler.status, by_handler.body)
    assert by_bytes.texts == ["b", "c"]
    assert dict(by_bytes.headers) == dict(by_handler.headers)
    assert by_bytes.headers["Cache-Status"] == "durable-gateway; hit"


async def test_the_format_is_that_of_each_request(edge: Edge) -> None:
    """Accept has no meaning to Durable Streams, but names the format here."""
    await edge.client.append(*"abcd")
    asked: list[dict[str, str]] = [
        {},
        {"Accept": "application/json"},
        {"Accept": "application/protobuf"},
        {"s2_format": "base64"},
        {"s2_format": "raw"},
    ]
    expected = [(await edge.direct.read(RANGE, **headers)).body for headers in asked]
    for _ in range(4):
        assert [(await edge.client.read(RANGE, **headers)).body for headers in asked] == expected
    assert served(edge) >= 2 * len(asked)
    events = await edge.client.events(RANGE)
    assert await events.texts(2) == ["b", "c"]
    await events.rest()
    session = await edge.client.session(RANGE)
    assert await session.texts(2) == ["b", "c"]
    assert await session.next() is None


async def test_requests_that_differ_in_nothing_that_matters_share_an_answer(edge: Edge) -> None:
    await edge.client.append(*"abcd")
    await remember(edge)
    for agent in "xyz":
        assert (await edge.client.read(RANGE, User_Agent=agent, traceparent=f"00-{agent}")).texts == ["b", "c"]
    assert served(edge) == 4


@pytest.mark.parametrize(
    "query", ["seq_num=0", "seq_num=0&count=9", "seq_num=1&bytes=1000", "tail_offset=4&count=1", ""]
)
async def test_what_the_tail_may_change_is_not_remembered(edge: Edge, query: str) -> None:
    await edge.client.append(*"abcd")
    for count in range(4, 9):
        through, direct = await edge.client.read(query), await edge.direct.read(query)
        assert (through.status, through.body) == (direct.status, direct.body)
        await edge.direct.append(str(count))
    assert served(edge) == 0


async def test_encrypted_reads_are_not_remembered(edge: Edge) -> None:
    await edge.client.append(*"abcd")
    await remember(edge)
    edge.counters.reset()
    for _ in range(3):
        await edge.client.read(RANGE, s2_encryption_key="k")
    assert edge.counters.requests[Call.READ] == 3
    assert served(edge) == 1


class TestTokens:
    @pytest.fixture
    def origin_settings(self) -> S2OriginSettings:
        return S2OriginSettings(has_account_per_token=True)

    async def test_a_token_is_not_given_what_is_remembered_for_another(self, edge: Edge) -> None:
        other = edge.as_("another")
        created = await other.send("POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
        assert created.status == 201
        await edge.client.append(*"abcd")
        await other.append(*"wxyz")
        for _ in range(4):
            assert (await edge.client.read(RANGE)).texts == ["b", "c"]
            assert (await other.read(RANGE)).texts == ["x", "y"]
        assert served(edge) == 4


# -- what ends an answer

Change = Callable[[Edge], Awaitable[object]]
PATH = f"/v1/streams/{STREAM}"


async def _deletes(edge: Edge) -> None:
    assert (await edge.client.send("DELETE", PATH)).status < 300


async def _deletes_the_basin(edge: Edge) -> None:
    assert (await edge.client.send("DELETE", f"/v1/basins/{BASIN}")).status < 300
    created = await edge.direct.send(
        "POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}}
    )
    assert created.status < 300


async def _deletes_without_an_answer(edge: Edge) -> None:
    """The delete is done, but its answer is lost."""
    gate = edge.faults.hold(method="DELETE", when=When.REPLY)
    deleting = asyncio.ensure_future(edge.client.send("DELETE", PATH))
    await gate.waiting(1)
    edge.origin.cut_connections()
    assert (await deleting).status == 502
    gate.release()


async def _deletes_past_the_gateway(edge: Edge) -> None:
    """The gateway notices by the tail."""
    assert (await edge.direct.send("DELETE", PATH)).status < 300
    await edge.client.tail()


@pytest.mark.parametrize(
    "change",
    [_deletes, _deletes_the_basin, _deletes_without_an_answer, _deletes_past_the_gateway],
    ids=lambda change: change.__name__.strip("_"),
)
async def test_no_answer_outlives_its_stream(edge: Edge, change: Change) -> None:
    await edge.client.append(*"abcd")
    await remember(edge)
    await change(edge)
    await edge.direct.append(*"wxyz")
    assert (await edge.client.read(RANGE)).texts == ["x", "y"]
    assert served(edge) == 1


async def test_no_answer_outlives_a_purge(edge: Edge) -> None:
    await edge.client.append(*"abcd")
    await remember(edge)
    edge.counters.reset()
    url = f"{edge.gateway.admin_url}/api/purge"
    async with edge.client.http.post(url, json={"stream": f"{PATH}?s2-basin={BASIN}"}) as purged:
        assert purged.status == 200
    assert (await edge.client.read(RANGE)).texts == ["b", "c"]
    assert edge.counters.requests[Call.READ] == 1


async def test_no_answer_outlives_the_trim_of_its_records_once_the_gateway_has_read_it(edge: Edge) -> None:
    await edge.client.append(*"abcd")
    await remember(edge)
    trim = {"records": [{"headers": [["", "dHJpbQ=="]], "body": "AAAAAAAAAAI="}]}
    trimmed = await edge.client.send("POST", f"{PATH}/records", trim, s2_format="base64")
    assert trimmed.status == 200
    assert (await edge.client.read("seq_num=4")).status == 200
    direct, through = await edge.direct.read(RANGE), await edge.client.read(RANGE)
    assert direct.texts[0] == "c"
    assert through.body == direct.body
    assert served(edge) == 1


class TestLittleRoom:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"cache_bytes": "64KiB"}

    async def test_answers_are_within_the_budget(self, edge: Edge) -> None:
        """Streams that are read later need the room."""
        store = edge.gateway.engine.store
        for number in range(20):
            stream = f"s{number}"
            await edge.client.append("a", "x" * 2_000, "b", stream=stream)
            for _ in range(3):
                assert len((await edge.client.read(RANGE, stream)).texts) == 2
            assert store.cost + store.lent <= store.budget_bytes
        remembered = edge.gateway.clients.remembered
        assert remembered is not None
        assert store.lent == remembered.cost
        assert 0 < len(remembered) < 20
        assert (await edge.client.read(RANGE, "s0")).texts == ["x" * 2_000, "b"]


class TestNoFastPath:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"fast_path": False}

    async def test_it_can_be_turned_off(self, edge: Edge) -> None:
        await edge.client.append(*"abcd")
        for _ in range(4):
            assert (await edge.client.read(RANGE)).texts == ["b", "c"]
        assert edge.gateway.clients.remembered is None


async def test_a_large_range_is_remembered_too(edge: Edge) -> None:
    for letter in "abcde":
        await edge.client.append(letter * 200_000)
    query = "seq_num=0&count=4"
    for _ in range(4):
        assert (await edge.client.read(query)).texts == [letter * 200_000 for letter in "abcd"]
    assert served(edge) == 2
    assert edge.gateway.engine.store.lent > 800_000, "the body is no other's"


async def test_clients_over_http_2_are_answered_so_too(edge: Edge) -> None:
    await edge.client.append(*"abcd", stream="s")
    url = edge.gateway.gateway_url
    async with asyncio.timeout(BOUND_S), S2("token", endpoints=Endpoints(account=url, basin=url)) as s2:
        stream = s2.basin(BASIN).stream("s")
        for _ in range(4):
            batch = await stream.read(start=SeqNum(1), limit=ReadLimit(count=2))
            assert [record.body for record in batch.records] == [b"b", b"c"]
    assert served(edge) == 2


async def test_reads_and_bytes_are_counted_for_the_stream(edge: Edge) -> None:
    await edge.client.append(*"abcd")
    before = [(await edge.client.read(RANGE, Accept=protobuf.CONTENT_TYPE)) for _ in range(5)]
    (record,) = itertools.islice(edge.gateway.engine.store, 2)
    edge.gateway.clients.count()
    assert (record.reads, record.hits) == (5, 4)
    assert record.sent_bytes == sum(len(answer.body) for answer in before)
