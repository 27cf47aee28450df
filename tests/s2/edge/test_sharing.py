"""Readers that share a stream do not pay for one another, nor for one another's credentials."""

from __future__ import annotations

import asyncio

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch
from gateway.s2.session import Terminal
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Client, Edge
from tests.waiting import eventually, time_passing

REFUSED = b'{"code":"permission_denied","message":"no"}'


class TestSharedCredentials:
    """The streams are the same for all tokens, and one of the tokens is refused."""

    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"credentials": "shared"}

    @pytest.mark.parametrize("query", ["seq_num=0", "seq_num=0&count=1", "tail_offset=1", "timestamp=0"])
    @pytest.mark.parametrize("how", ["unary", "events", "session", "tail"])
    async def test_a_token_that_is_refused_is_its_owners_alone(self, edge: Edge, how: str, query: str) -> None:
        await edge.client.append("a")
        for call in (Call.READ, Call.CHECK_TAIL):
            edge.faults.replace(403, {}, REFUSED, times=1, kind=call)
        gate = edge.faults.hold(kind=None, times=1)

        async def asked(client: Client) -> int:
            match how:
                case "unary":
                    return (await client.read(query)).status
                case "tail":
                    return (await client.tail()).status
                case "events":
                    events = await client.events(query)
                    events.close()
                    return events.status
                case _:
                    session = await client.session(query)
                    session.close()
                    return session.status

        refused = asyncio.ensure_future(asked(edge.as_("refused")))
        # Both have joined the question before it is sent.
        others = [asyncio.ensure_future(asked(edge.as_(f"good {number}"))) for number in range(2)]
        await gate.waiting(1)
        gate.release()
        assert sorted([await refused, *await asyncio.gather(*others)])[:2] == [200, 200]

    async def test_the_credentials_of_the_next_reader_replace_those_that_are_refused(self, edge: Edge) -> None:
        await edge.client.append(*"abc")
        session = await edge.as_("revoked").session("seq_num=3")
        await session.next()
        edge.faults.replace(403, {}, REFUSED, times=1, kind=Call.READ)
        # The gateway asks by the first reader's credentials, is refused, and relays the second reader's own request.
        relayed = await edge.as_("good").read("seq_num=0&count=1")
        assert (relayed.texts, "fwd=bypass" in relayed.headers["Cache-Status"]) == (["a"], True)
        shared = await edge.as_("good").read("seq_num=0&count=1")
        assert (shared.texts, "fwd=uri-miss" in shared.headers["Cache-Status"]) == (["a"], True)
        (stream,) = edge.gateway.engine.s2.streams
        assert stream.source.headers["Authorization"] == "Bearer good"
        session.close()

    async def test_a_session_is_not_refused_for_the_credentials_of_another(self, edge: Edge) -> None:
        await edge.client.append(*"abc")
        following = await edge.as_("revoked").session("seq_num=3")
        await following.next()
        assert (await edge.as_("revoked").read("seq_num=0&count=1")).texts == ["a"]
        edge.faults.replace(403, {}, REFUSED, times=1, kind=Call.READ)
        session = await edge.as_("good").session("seq_num=0")
        assert await session.texts(1) == ["a"]
        end = await session.next()
        assert isinstance(end, Terminal)
        assert end.status == 503
        for reader in (following, session):
            reader.close()

    async def test_a_refused_session_at_the_origin_is_told_as_a_loss(self, edge: Edge) -> None:
        """Each client comes again, with its own token."""
        await edge.client.append("a")
        session = await edge.as_("good").session("seq_num=0")
        assert await session.texts(1) == ["a"]
        await edge.counters.sessions_are(Call.READ_SESSION, 1)
        edge.faults.replace(403, {}, REFUSED, times=1, kind=Call.READ_SESSION)
        edge.origin.cut_connections()
        async with time_passing(edge.clock):
            while isinstance(end := await session.next(), ReadBatch):
                pass
        assert isinstance(end, Terminal)
        assert end.status == 503
        again = await edge.as_("good").session("seq_num=0")
        assert await again.texts(1) == ["a"]
        again.close()


class TestClients:
    """What a client causes at the origin counts against its own share."""

    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {
            "trusted_proxies": ["127.0.0.1"],
            "upstream_connections": 8,
            "client_upstream_requests": 2,
            "upstream_wait_s": 0.2,
        }

    async def test_one_clients_fetches_are_not_charged_to_another(self, edge: Edge) -> None:
        for stream in "ab":
            await edge.client.append(*"0123456789", stream=stream)
        mine, theirs = {"X-Forwarded-For": "192.0.2.1"}, {"X-Forwarded-For": "192.0.2.2"}
        session = await edge.client.session("seq_num=0&count=11&wait=60", "a", **mine)
        assert len(await session.texts(10)) == 10
        await edge.counters.sessions_are(Call.READ_SESSION, 1)
        async with edge.client.http.post(edge.gateway.admin_url + "/api/purge", json={"all": True}) as purged:
            assert purged.status == 200, await purged.text()
        session.close()
        await eventually(lambda: edge.gateway.engine.s2.sessions == 0)
        keep = asyncio.ensure_future(edge.client.read("seq_num=10&wait=60", "a", **mine))
        await edge.counters.sessions_are(Call.READ_SESSION, 1)
        gate = edge.faults.hold(kind=Call.READ, path=None)
        others = [asyncio.ensure_future(edge.client.read(f"seq_num={n}&count=1", "a", **theirs)) for n in (0, 2, 4)]
        await gate.waiting(2)
        # Two requests of the other client are under way, and one waits for its turn.
        own = asyncio.ensure_future(edge.client.read("seq_num=0&count=1", "b", **mine))
        async with asyncio.timeout(BOUND_S):
            await gate.waiting(3)
        gate.release()
        assert (await own).texts == ["0"]
        await asyncio.gather(*others)
        keep.cancel()


class TestRelayedWaits:
    @pytest.fixture
    def settings(self) -> dict[str, object]:
        return {"first_byte_timeout_s": 0.2}

    async def test_a_relayed_read_may_wait_as_long_as_any(self, edge: Edge) -> None:
        await edge.client.append("a")
        waiting = asyncio.ensure_future(edge.client.read("seq_num=1&wait=20", s2_unknown="x"))
        await edge.counters.parked_is(1)
        # A later request that may not wait is given up meanwhile.
        gate = edge.faults.hold(kind=Call.CHECK_TAIL)
        assert (await edge.client.tail()).status == 504
        assert not waiting.done()
        gate.release()
        await edge.direct.append("b")
        assert (await waiting).texts == ["b"]


async def test_bytes_are_never_shared_across_tokens(edge: Edge) -> None:
    await edge.client.append("mine")
    readers = []
    for token in ("token", "other"):
        client = edge.as_(token)
        await client.read("seq_num=0&count=1")
        session = await client.session("seq_num=0")
        await session.texts(1)
        readers.append(session)
    await edge.counters.sessions_are(Call.READ_SESSION, 2)
    edge.faults.replace(403, {}, REFUSED, times=None, kind=Call.READ)
    third = edge.as_("third")
    for query in ("seq_num=0", "seq_num=0&count=1", "tail_offset=1", "timestamp=0"):
        assert (await third.read(query)).status == 403
        assert (await third.status(query)) == 403
        assert (await third.events_status(query)) == 403
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("header", ["Authorization", "s2-basin"])
async def test_a_repeated_header_does_not_reach_anothers_records(edge: Edge, header: str) -> None:
    await edge.client.append("mine")
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["mine"]
    edge.counters.reset()
    own = {"Authorization": "Bearer token", "s2-basin": BASIN}
    twice = [*own.items(), (header, "Bearer other" if header == "Authorization" else "another-basin")]
    async with edge.client.http.get(
        f"{edge.client.url}/v1/streams/a%252Fstream/records?seq_num=0&count=1".replace("%252F", "%2F"), headers=twice
    ) as reply:
        assert b"mine" not in await reply.read() or edge.counters.total_requests == 1


@pytest.mark.parametrize("spelling", ["a%2fstream", "%61%2Fstream", "a%2Fstre%61m", "./a%2Fstream", "x/../a%2Fstream"])
async def test_a_delete_in_another_spelling_drops_the_same_stream(edge: Edge, spelling: str) -> None:
    await edge.client.append("old", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
    assert (await edge.client.send("DELETE", f"/v1/streams/{spelling}")).status < 300
    await edge.direct.append("new", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1", STREAM)).texts == ["new"]
