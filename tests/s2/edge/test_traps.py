"""What a gateway in front of S2 must not get wrong, each held at a gate or broken by a switch."""

from __future__ import annotations

import asyncio
from urllib.parse import quote, unquote

import pytest

from gateway.engine.s2.stream import VERIFIED_S
from gateway.origin.faults import When
from gateway.origin.s2.app import S2OriginSettings
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import ReadBatch
from gateway.s2.session import Terminal
from gateway.s2.sse import Done, Failure
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Client, Edge
from tests.waiting import eventually, time_passing


async def test_a_stream_that_is_lost_for_good_ends_with_an_error(edge: Edge) -> None:
    """Trap 1: to S2's clients an end in order means that the read is finished."""
    await edge.client.append("a")
    session, sse = await edge.client.session(), await edge.client.events()
    assert await session.texts(1) == await sse.texts(1) == ["a"]
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    waiting = asyncio.ensure_future(edge.client.read("seq_num=1&wait=60"))
    await eventually(lambda: _live_readers(edge) == 3)
    async with time_passing(edge.clock):
        await edge.origin.stop(grace_s=0)
        assert isinstance(await session.next(), ReadBatch)
        end = await session.next()
        events = await sse.rest()
    assert isinstance(end, Terminal)
    assert end.status == 503
    assert b'"unavailable"' in end.body
    assert isinstance(events[-1], Failure)
    assert b'"unavailable"' in events[-1].body
    assert Done() not in events
    assert (await waiting).status == 503


def _live_readers(edge: Edge) -> int:
    return sum(stream.topic.readers for stream in edge.gateway.engine.s2.streams if stream.topic is not None)


@pytest.mark.parametrize("how", ["finish", "terminal", "truncate", "reconnect"])
async def test_a_session_that_is_interrupted_goes_on_with_nothing_lost_or_repeated(edge: Edge, how: str) -> None:
    """Trap 1: nor is the origin's end in order handed on."""
    await edge.client.append("0")
    match how:
        case "finish":
            edge.faults.finish_session(after_messages=2, times=2, kind=Call.READ_SESSION)
        case "terminal":
            edge.faults.fail_session(S2ErrorCode.UNAVAILABLE, after_messages=2, times=2, kind=Call.READ_SESSION)
        case "truncate":
            edge.faults.truncate(after_bytes=20, times=2, kind=Call.READ_SESSION)
        case "reconnect":
            edge.faults.advise_reconnect(after_messages=1, times=2, kind=Call.READ_SESSION)
    session, sse = await edge.client.session(), await edge.client.events()
    async with time_passing(edge.clock):
        for number in range(1, 9):
            await edge.client.append(str(number))
            await eventually(lambda number=number: edge.gateway.engine.s2.sessions == 2)
        assert await session.texts(9) == await sse.texts(9) == [str(number) for number in range(9)]
    assert edge.counters.requests[Call.READ_SESSION] > 1
    # The origin may see the next session, on a new connection, before the end of the session that it advised to leave.
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    assert edge.counters.sessions_peak[Call.READ_SESSION] == 1 or how == "reconnect"
    session.close()
    sse.close()


async def test_no_tail_is_ahead_of_what_the_connection_was_sent(edge: Edge, slow_client: Client) -> None:
    """Trap 2: S2's clients resume from the tail of a heartbeat, and skip what lies before it."""
    await edge.client.append("0")
    readers = [await edge.client.session(), await edge.client.session("seq_num=1")]
    slow = await slow_client.session()

    async def follow(at: int, reader_at: int) -> int:
        reader = readers[reader_at]
        while at < 50:
            batch = await reader.next()
            assert isinstance(batch, ReadBatch)
            if batch.records:
                assert batch.records[0].seq_num == at
                at = batch.records[-1].seq_num + 1
            assert batch.tail is None or batch.tail.seq_num == at
        return at

    following = [asyncio.ensure_future(follow(index, index)) for index in range(2)]
    async with time_passing(edge.clock, step_s=2.5):
        for number in range(1, 50):
            await edge.client.append(f"{number}" + "x" * 500_000)
        assert await asyncio.gather(*following) == [50, 50]
    at = 0
    while at < 50:
        batch = await slow.next()
        assert isinstance(batch, ReadBatch)
        at += len(batch.records)
        assert batch.tail is None or batch.tail.seq_num == at
    for reader in (*readers, slow):
        reader.close()


async def test_no_heartbeat_while_the_origin_is_away(edge: Edge) -> None:
    """Trap 2: a quiet stream and one that is lost look different, so that clients' watchdogs work."""
    await edge.client.append("a")
    session = await edge.client.session("seq_num=1")
    assert isinstance(await session.next(), ReadBatch)
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    gate = edge.faults.hold(kind=Call.READ_SESSION)
    edge.origin.cut_connections()
    await gate.waiting(1)
    following = asyncio.ensure_future(session.next())
    for _ in range(6):
        edge.clock.advance(5)
        # Another connection's answer comes behind anything that is written to this one.
        await edge.client.read("seq_num=0&count=1")
    assert not following.done()
    gate.release()
    await edge.client.append("b")
    batch = await following
    assert isinstance(batch, ReadBatch)
    session.close()


@pytest.mark.parametrize("query", ["seq_num=0", "seq_num=1", "tail_offset=0", "tail_offset=1", "timestamp=0", ""])
async def test_a_question_that_was_asked_before_a_read_does_not_answer_it(edge: Edge, query: str) -> None:
    """Trap 3: an answer that depends on the tail needs a question that began after the request."""
    await edge.direct.append("old", timestamp=1)
    gate = edge.faults.hold(kind=Call.READ, when=When.REPLY)
    early = asyncio.ensure_future(edge.client.read(query))
    await gate.waiting(1)
    await edge.direct.append("new", timestamp=2)
    # The origin has answered the first question before this append; it must not answer the second read.
    late = asyncio.ensure_future(edge.client.read(query))
    direct = asyncio.ensure_future(edge.direct.read(query))
    await gate.waiting(2)
    await eventually(lambda: [stream.users for stream in edge.gateway.engine.s2.streams] == [2])
    assert edge.counters.requests[Call.READ] == 2
    gate.release()
    await early
    assert (await late).body == (await direct).body


async def test_a_tail_is_never_told_from_memory(edge: Edge) -> None:
    """Trap 3: not even while a live session is open, which may be behind."""
    await edge.direct.append("a")
    session = await edge.client.session()
    assert await session.texts(1) == ["a"]
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    gate = edge.faults.hold(kind=Call.CHECK_TAIL, when=When.REPLY)
    first = asyncio.ensure_future(edge.client.tail())
    async with asyncio.timeout(BOUND_S):
        await gate.waiting(1)
    await edge.direct.append("b")
    rest = [asyncio.ensure_future(edge.client.tail()) for _ in range(30)]
    await eventually(lambda: "30 for the next" in "".join(map(repr, edge.gateway.engine.s2.streams)))
    gate.release()
    assert (await first).json["tail"]["seq_num"] == 1  # type: ignore[index]
    assert {(await one).json["tail"]["seq_num"] for one in rest} == {2}  # type: ignore[index]
    assert edge.counters.requests[Call.CHECK_TAIL] == 2
    session.close()


class TestTokens:
    """Trap 4: tokens may map one path to different streams."""

    @pytest.fixture
    def origin_settings(self) -> S2OriginSettings:
        return S2OriginSettings(has_account_per_token=True)

    async def test_readers_with_other_tokens_share_nothing(self, edge: Edge) -> None:
        other = edge.as_("other")
        created = await other.send("POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
        assert created.status in (200, 201)
        await edge.client.append("mine", timestamp=1)
        await other.append("theirs", timestamp=1)
        for _ in range(2):
            assert (await edge.client.read("seq_num=0&count=1")).texts == ["mine"]
            assert (await other.read("seq_num=0&count=1")).texts == ["theirs"]
        mine, theirs = await edge.client.session(), await other.session()
        assert (await mine.texts(1), await theirs.texts(1)) == (["mine"], ["theirs"])
        await edge.counters.sessions_are(Call.READ_SESSION, 2)
        mine.close()
        theirs.close()

    @pytest.mark.parametrize("settings", [{"credentials": "shared"}])
    async def test_a_route_may_say_that_streams_are_shared(self, edge: Edge) -> None:
        await edge.client.append("mine")
        await edge.client.read("seq_num=0&count=1")
        assert (await edge.as_("other").read("seq_num=0&count=1")).texts == ["mine"]


async def test_an_encrypted_read_is_relayed(edge: Edge) -> None:
    """Trap 4: what is decrypted for one reader is no other reader's."""
    await edge.client.append("a")
    await edge.client.read("seq_num=0&count=1")
    edge.counters.reset()
    for _ in range(2):
        answer = await edge.client.read("seq_num=0&count=1", s2_encryption_key="a2V5")
        assert "fwd=bypass" in answer.headers["Cache-Status"]
    assert edge.counters.requests[Call.READ] == 2


class TestRecreation:
    """Trap 5: a stream that is deleted and created again numbers its records from 0 anew."""

    async def test_a_delete_drops_what_is_held(self, edge: Edge) -> None:
        await edge.client.append("old", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
        assert (await edge.client.send("DELETE", f"/v1/streams/{STREAM}")).status < 300
        await edge.client.append("new", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]

    async def test_a_delete_of_the_basin_drops_what_is_held(self, edge: Edge) -> None:
        await edge.client.append("old", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
        assert (await edge.client.send("DELETE", f"/v1/basins/{BASIN}")).status < 300
        config = {"basin": BASIN, "config": {"create_stream_on_append": True}}
        assert (await edge.client.send("POST", "/v1/basins", config)).status < 300
        await edge.client.append("new", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]

    async def test_a_stream_created_through_the_gateway_is_a_new_one(self, edge: Edge) -> None:
        await edge.client.append("old", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
        await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
        assert (await edge.client.send("PUT", f"/v1/streams/{STREAM}", {})).status == 201
        await edge.direct.append("new", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]

    @pytest.mark.parametrize(
        ("name", "path"),
        [("a/b ü", "a%2Fb%20%C3%BC"), ("(a)!'*", "%28a%29%21%27%2A"), ("(a)!'*", "(a)!'*"), ("a&b", "a&b")],
    )
    async def test_a_stream_created_by_its_name_is_a_new_one(self, edge: Edge, name: str, path: str) -> None:
        """The SDKs create streams by a POST with the name in its body, and escape it in paths each in its own way."""
        await edge.client.append("old", timestamp=1, stream=path)
        session = await edge.client.session(stream=path)
        assert await session.texts(1) == ["old"]
        assert isinstance(await session.next(), ReadBatch)
        gate = edge.faults.hold(kind=Call.READ_SESSION)
        await edge.direct.send("DELETE", f"/v1/streams/{quote(name, safe='')}")
        assert (await edge.client.send("POST", "/v1/streams", {"stream": name})).status == 201
        await edge.direct.append("new", timestamp=1, stream=path)
        assert (await edge.client.read("seq_num=0&count=1", stream=path)).texts == ["new"]
        assert isinstance(await session.next(), Terminal)
        gate.release()

    @pytest.mark.parametrize("change", ["DELETE", "PUT"])
    async def test_a_name_escaped_in_another_way_is_the_same_stream(self, edge: Edge, change: str) -> None:
        """S2's SDKs escape names in paths each in its own way."""
        written, read = "a%21%28b%29%2Ac", "a!(b)*c"
        await edge.client.append("old", timestamp=1, stream=written)
        assert (await edge.client.read("seq_num=0&count=1", stream=read)).texts == ["old"]
        edge.counters.reset()
        assert (await edge.client.read("seq_num=0&count=1", stream=written)).texts == ["old"]
        assert edge.counters.total_requests == 0
        await (edge.client if change == "DELETE" else edge.direct).send("DELETE", f"/v1/streams/{written}")
        if change == "PUT":
            assert (await edge.client.send("PUT", f"/v1/streams/{written}", {})).status == 201
        await edge.direct.append("new", timestamp=1, stream=written)
        assert (await edge.client.read("seq_num=0&count=1", stream=read)).texts == ["new"]

    @pytest.mark.parametrize(("method", "path"), [("POST", "/v1/basins"), ("PUT", f"/v1/basins/{BASIN}")])
    async def test_the_streams_of_a_basin_created_through_the_gateway_are_new_ones(
        self, edge: Edge, method: str, path: str
    ) -> None:
        await edge.client.append("old", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
        config = {"create_stream_on_append": True}
        body = {"basin": BASIN, "config": config} if method == "POST" else {"config": config}
        # An answer that says that it is there changes nothing.
        assert (await edge.client.send(method, path, body)).status in (200, 409)
        assert "hit" in (await edge.client.read("seq_num=0&count=1")).headers["Cache-Status"]
        await edge.direct.send("DELETE", f"/v1/basins/{BASIN}")
        assert (await edge.client.send(method, path, body)).status == 201
        await edge.direct.append("new", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]

    async def test_a_stream_that_is_not_created_is_the_old_one(self, edge: Edge) -> None:
        await edge.client.append("old")
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
        edge.counters.reset()
        assert (await edge.client.send("POST", "/v1/streams", {"stream": unquote(STREAM)})).status == 409
        assert (await edge.client.send("POST", "/v1/streams", {"stream": "another"})).status == 201
        assert (await edge.client.send("POST", "/v1/streams", [])).status == 400
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
        assert edge.counters.total_records_sent == 0

    async def test_a_delete_ends_live_readers_with_an_error(self, edge: Edge) -> None:
        await edge.client.append("old")
        session = await edge.client.session()
        assert await session.texts(1) == ["old"]
        assert isinstance(await session.next(), ReadBatch)
        assert (await edge.client.send("DELETE", f"/v1/streams/{STREAM}")).status < 300
        end = await session.next()
        assert isinstance(end, Terminal)
        assert end.status in (404, 503)

    async def test_a_fetch_across_a_delete_is_not_kept(self, edge: Edge) -> None:
        await edge.client.append("old", timestamp=1)
        gate = edge.faults.hold(kind=Call.READ, when=When.REPLY)
        early = asyncio.ensure_future(edge.client.read("seq_num=0&count=1"))
        await gate.waiting(1)
        await edge.client.send("DELETE", f"/v1/streams/{STREAM}")
        await edge.client.append("new", timestamp=1)
        gate.release()
        assert (await early).texts in (["old"], ["new"])
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]

    @pytest.mark.parametrize("query", ["seq_num=2", "tail_offset=0", "tail_offset=1", "seq_num=0&count=3"])
    async def test_a_tail_that_moved_back_drops_what_is_held(self, edge: Edge, query: str) -> None:
        await edge.client.append("old", "older", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=2")).texts == ["old", "older"]
        await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
        await edge.direct.append("new", timestamp=1)
        assert (await edge.client.read(query)).body == (await edge.direct.read(query)).body
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]

    async def test_another_timestamp_drops_what_is_held(self, edge: Edge) -> None:
        await edge.client.append("old", "older", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=2")).texts == ["old", "older"]
        await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
        await edge.direct.append("new", "newer", timestamp=7)
        assert (await edge.client.read("tail_offset=1")).texts == ["newer"]
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]

    async def test_a_session_does_not_go_on_in_another_stream(self, edge: Edge) -> None:
        await edge.client.append("old", "older", timestamp=1)
        session = await edge.client.session()
        assert await session.texts(2) == ["old", "older"]
        assert isinstance(await session.next(), ReadBatch)
        await edge.counters.sessions_are(Call.READ_SESSION, 1)
        gate = edge.faults.hold(kind=Call.READ_SESSION)
        edge.origin.cut_connections()
        await gate.waiting(1)
        await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
        await edge.direct.append(*"abc", timestamp=7)
        gate.release()
        end = await session.next()
        assert isinstance(end, Terminal)
        assert end.status == 503
        assert (await edge.client.read("seq_num=0&count=3")).texts == ["a", "b", "c"]

    @pytest.mark.parametrize("query", ["seq_num=0", "seq_num=1&count=3"])
    async def test_records_held_for_some_time_are_joined_only_with_records_of_the_same_stream(
        self, edge: Edge, query: str
    ) -> None:
        await edge.client.append("old", "older", timestamp=1)
        assert (await edge.client.read("seq_num=0&count=2")).texts == ["old", "older"]
        await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
        await edge.direct.append(*"abcde", timestamp=7)
        edge.clock.advance(VERIFIED_S + 1)
        assert (await edge.client.read(query)).body == (await edge.direct.read(query)).body

    async def test_reads_behind_full_answers_bring_the_record_at_the_joint_with_them(self, edge: Edge) -> None:
        await edge.client.append(*"abcdef")
        await edge.client.read("seq_num=0&count=2")
        edge.clock.advance(VERIFIED_S + 1)
        edge.counters.reset()
        for count in (3, 4, 5):
            await edge.client.read(f"seq_num=0&count={count}")
        assert edge.counters.requests[Call.READ] == 3
        assert edge.counters.total_records_sent == 6

    async def test_a_404_drops_what_is_held(self, edge: Edge) -> None:
        await edge.client.append("old")
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
        await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
        assert (await edge.client.read("seq_num=0&count=2")).status == 404
        assert (await edge.client.read("seq_num=0&count=1")).status == 404

    @pytest.mark.parametrize("code", [S2ErrorCode.STREAM_DELETION_PENDING, S2ErrorCode.BASIN_DELETION_PENDING])
    async def test_a_deletion_that_the_origin_has_begun_drops_what_is_held(self, edge: Edge, code: S2ErrorCode) -> None:
        """S2 refuses every call while it deletes a stream, for a minute or so, and says 404 only then."""
        await edge.client.append("old")
        assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
        edge.faults.error(code, times=None, kind=Call.READ)
        for query in ("seq_num=0&count=2", "seq_num=0&count=1"):
            answer = await edge.client.read(query)
            assert (answer.status, answer.json["code"]) == (409, code.code)


@pytest.mark.parametrize("query", ["?seq_num=0", "?tail_offset=0", "?timestamp=0", "", "/tail"])
async def test_a_read_of_an_unknown_stream_may_create_it(edge: Edge, query: str) -> None:
    """Trap 6: a GET is not free of effects."""
    change = {"create_stream_on_read": True, "create_stream_on_append": True}
    assert (await edge.direct.send("PATCH", f"/v1/basins/{BASIN}", change)).status == 200
    answer = await edge.client.send("GET", f"/v1/streams/unknown/records{query}")
    assert answer.status == (200 if query == "/tail" else 416)
    listed = await edge.direct.send("GET", "/v1/streams?prefix=unknown")
    assert [one["name"] for one in listed.json["streams"]] == ["unknown"]  # type: ignore[attr-defined]


class TestBoundedStaleness:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"consistency": "bounded-staleness"}

    async def test_the_tail_of_a_followed_stream_is_told_from_memory(self, edge: Edge) -> None:
        await edge.client.append("a")
        assert (await edge.client.tail()).json["tail"]["seq_num"] == 1  # type: ignore[index]
        session = await edge.client.session("seq_num=1")
        assert isinstance(await session.next(), ReadBatch)
        await edge.counters.sessions_are(Call.READ_SESSION, 1)
        await edge.client.append("b")
        assert await session.texts(1) == ["b"]
        edge.counters.reset()
        assert (await edge.client.tail()).json["tail"]["seq_num"] == 2  # type: ignore[index]
        assert (await edge.client.read("tail_offset=1")).texts == ["b"]
        assert (await edge.client.read("seq_num=1")).texts == ["b"]
        unwritten = await edge.client.read("seq_num=2")
        assert (unwritten.status, unwritten.headers["Cache-Status"]) == (416, "durable-gateway; hit")
        assert edge.counters.total_requests == 0
        edge.clock.advance(11)
        unwritten = await edge.client.read("seq_num=2")
        assert (unwritten.status, "hit" in unwritten.headers["Cache-Status"]) == (416, False)
        edge.counters.reset()
        assert (await edge.client.tail()).json["tail"]["seq_num"] == 2  # type: ignore[index]
        assert edge.counters.total_requests == 1
        session.close()
