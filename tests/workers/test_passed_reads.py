"""Reads whose answers a worker passes on from the owner of the stream."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from gateway.aio.batches import Backlog
from gateway.engine.owner_upstream import WATCH_S
from gateway.engine.passed_read import PassedRead, PassedReads
from gateway.engine.read import Read, Uncacheable
from gateway.engine.read_runner import ReadRunner
from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.protocol.sharing import Group
from gateway.protocol.worker_headers import HOP, HOP_OUTCOME, Alone, HopAsk
from gateway.upstream.origin_call import Handed
from gateway.workers.worker_owners import Owners
from tests.engine.bench import EngineBench, part_of_stream
from tests.waiting import pass_turns
from tests.workers.site import JSON, Site, made_site, read_all
from tests.workers.test_hop import SAME, Hops, Reply

BIG = json.dumps(["x" * 1000] * 600, separators=(",", ":")).encode()
GZIP = {"Accept-Encoding": "gzip"}
STREAMS: dict[str, tuple[bytes, dict[str, str], dict[str, str]]] = {
    "json": (b'["a"]', JSON, {}),
    "closed": (b"ab", {"Content-Type": "text/plain", "Stream-Closed": "true"}, {}),
    "small": (b'["a"]', JSON, GZIP),
    "large": (BIG, JSON, {}),
    "coded": (BIG[:8_000] + b'"]', JSON, GZIP),
    "of-another-site": (b'["a"]', JSON, {"Origin": "https://app.example"}),
}
"""Streams by name: their bytes, the headers that they are created with, and those of their reads."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site() -> AsyncIterator[Site]:
    async with made_site(cors={"allow_origins": ["https://app.example"]}, compression=["gzip"], absent_s=60) as made:
        yield made


async def _answer(site: Site, reader: Any, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    """The answer to the first read at a worker, while no worker has the stream in memory.

    The headers are those that do not tell when, and from which record, the answer was made.
    """
    await site.gateway.purge(path, is_soft=False)
    return await _read(reader, path, headers)


async def _read(reader: Any, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    body = bytearray()
    reply = await reader.send("GET", f"{path}?offset=-1", headers, take=body.extend)
    found = {name: re.sub('^"[^:]*:', '"', value) for name, value in reply.headers.items() if name != "date"}
    return reply.status, found, bytes(body)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", [*STREAMS])
async def test_an_answer_that_is_passed_on_is_the_owners_own(site: Site, name: str) -> None:
    body, made_with, headers = STREAMS[name]
    author, path = await site.origin_client(), f"/{name}"
    await author.send("PUT", path, made_with, body)
    # One of the workers is the owner.
    answers = [await _answer(site, reader, path, headers) for reader in await site.client_of_each()]
    assert answers[0][0] == 200
    assert answers[1:] == answers[:-1]
    assert ("content-encoding" in answers[0][1]) == (name == "coded")
    assert ("access-control-allow-origin" in answers[0][1]) == (name == "of-another-site")


@pytest.mark.parametrize("is_public", [False, True])
async def test_an_authorised_answer_that_is_passed_on_is_the_owners_own(tmp_path: Path, is_public: bool) -> None:
    auth = [{"by": "public", "streams": ["/public/*"]}]
    async with made_site(keys=tmp_path, auth=auth) as site:
        path = "/public/1" if is_public else "/private/1"
        author, readers = await site.origin_client(), await site.client_of_each()
        await author.send("PUT", path, JSON, b'["a"]')
        assert (await read_all(readers[0], path))[0].status == (200 if is_public else 401)
        answers = [await _answer(site, reader, path, site.credential) for reader in readers]
        assert answers[1:] == answers[:-1]
        status, headers, body = answers[0]
        assert (status, body) == (200, b'["a"]')
        assert ("private" in headers["cache-control"]) is not is_public
        assert ("authorization" in headers.get("vary", "").lower()) is not is_public
        assert not [name for name in headers if name.startswith("gateway-hop")]
        # Only the owner keeps what each worker has read once.
        other = path.replace("1", "2")
        await author.send("PUT", other, JSON, b'["a"]')
        await site.gateway.purge(path, is_soft=False)
        for reader in readers:
            assert (await _read(reader, other, site.credential))[:1] == (200,)
        assert (await site.gateway.figures())["durable_gateway_tapes"] == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_the_owner_remembers_an_absent_stream_for_all_workers(site: Site) -> None:
    outcomes = []
    for reader in await site.client_of_each():
        reply, body = await read_all(reader, "/absent")
        assert (reply.status, body) == (404, b"Stream not found\n")
        outcomes.append("; hit" in reply.headers["cache-status"])
    assert outcomes == [False, True, True]


@pytest.mark.asyncio(loop_scope="module")
async def test_only_the_owner_has_a_stream_that_each_worker_has_read_once(site: Site) -> None:
    author = await site.origin_client()
    await author.send("PUT", "/once", JSON, b"[1]")

    async def streams() -> float:
        return (await site.gateway.figures())["durable_gateway_tapes"]

    before, readers = await streams(), await site.client_of_each()
    for wanted in (before + 1, before + 3):
        for reader in readers:
            reply, body = await read_all(reader, "/once")
            assert (reply.status, body) == (200, b"[1]")
        assert await streams() == wanted


class Passing:
    """A worker, other workers that the test answers for, and a read of a stream that another worker owns."""

    def __init__(self, bench: EngineBench) -> None:
        self.hops = Hops()
        self.admitted: list[Read] = []
        runner = SimpleNamespace(is_first=lambda read: True, admit_first=self.admitted.append)
        self.reads = PassedReads(self.hops.hop, cast(ReadRunner, runner), Backlog())
        self.read = bench.read("/s?offset=-1")
        self.read = self.read._replace(key=self.read.key._replace(group=self.hops.key.group))
        self.times_ready = 0

    def begun(self) -> PassedRead:
        """The read, which waits for its owner."""
        passed = self.reads.begin(self.read)
        assert passed is not None

        def ready() -> None:
            self.times_ready += 1

        passed.wait(ready)
        return passed

    async def answer(self, reply: Reply) -> None:
        """Have the owner answer."""
        head = SimpleNamespace(get=reply.headers.get)
        cast(Any, reply).head = head
        self.hops.others.asked[-1].requester.head_arrived(cast(Any, reply))
        assert self.times_ready == 0
        await pass_turns()
        assert self.times_ready == 1


@pytest.fixture
async def passing() -> AsyncIterator[Passing]:
    bench = EngineBench(part_of_stream(b"ab", "2"))
    yield Passing(bench)
    await bench.close()


async def test_the_owner_is_asked_for_an_answer_to_pass_on(passing: Passing) -> None:
    passed = passing.begun()
    (asked,) = passing.hops.others.asked
    assert asked.call.url.startswith(f"http://worker-{passing.hops.owner}:1/s")
    assert HopAsk.parse(asked.call.headers[HOP]).accepted == passing.read.accepted
    await passing.answer(reply := Reply({HOP_OUTCOME: "miss"}))
    assert passed.take_reply() is cast(Any, reply)
    assert (passing.admitted, reply.is_closed) == ([passing.read], False)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (SAME._replace(failure="UpstreamTimeout").rendered(), UpstreamTimeout),
        (SAME._replace(alone=Alone("set-cookie", True, True)).rendered(), Uncacheable),
        (SAME.rendered(), UpstreamBroken),
        ("x y", UpstreamBroken),
    ],
)
async def test_what_the_owner_cannot_answer_is_no_answer(passing: Passing, record: str, error: type[Exception]) -> None:
    passed = passing.begun()
    await passing.answer(reply := Reply.of(record))
    with pytest.raises(error):
        passed.take_reply()
    assert reply.is_closed


@pytest.mark.parametrize(("error", "raised"), [(UpstreamUnreachable(), None), (UpstreamTimeout(), UpstreamTimeout)])
async def test_a_read_goes_on_without_an_owner_that_is_lost(
    passing: Passing, error: GatewayError, raised: type[Exception] | None
) -> None:
    passed = passing.begun()
    passing.hops.others.asked[-1].requester.failed(error)
    await pass_turns()
    assert passing.times_ready == 1
    if raised is None:
        assert passed.take_reply() is None
    else:
        with pytest.raises(raised):
            passed.take_reply()


async def test_a_read_that_waits_in_the_queue_of_a_dead_owner_goes_on_without_it(passing: Passing) -> None:
    passed = passing.begun()
    passing.hops.clock.advance(2 * WATCH_S)
    assert not passing.hops.others.asked[0].is_given_up
    passing.hops.kill_owner()
    passing.hops.clock.advance(2 * WATCH_S)
    await pass_turns()
    assert (passing.hops.others.asked[0].is_given_up, passing.times_ready, passed.take_reply()) == (True, 1, None)


async def test_a_client_that_leaves_ends_the_request(passing: Passing) -> None:
    passing.begun().give_up()
    assert passing.hops.others.asked[0].is_given_up
    assert "0 asking" in repr(passing.hops.hop)


async def test_a_client_that_leaves_between_the_answer_and_the_next_turn_gets_nothing(passing: Passing) -> None:
    passed, reply = passing.begun(), Reply({HOP_OUTCOME: "miss"})
    passing.hops.others.asked[0].requester.head_arrived(cast(Any, reply))
    passed.give_up()
    await pass_turns()
    assert (passing.times_ready, reply.is_closed) == (0, True)


async def test_a_second_read_is_not_passed_on(passing: Passing) -> None:
    passing.begun()
    assert passing.reads.begin(passing.read) is None
    assert len(passing.admitted) == 1


@pytest.mark.parametrize(
    "changes", [{"is_private": True}, {"if_none_match": '"x"'}, {"max_age_s": 0.0}, {"handed": Handed.BY_WORKER}]
)
async def test_reads_that_depend_on_more_than_the_stream_are_not_passed_on(
    passing: Passing, changes: dict[str, Any]
) -> None:
    assert passing.reads.begin(passing.read._replace(**changes)) is None
    assert passing.admitted == []


async def test_reads_of_a_route_that_conceals_streams_are_not_passed_on(passing: Passing) -> None:
    guard = SimpleNamespace(absence_times=object())
    passing.read.route.guard = cast(Any, guard)
    assert passing.reads.begin(passing.read) is None
    guard.absence_times = None
    assert passing.reads.begin(passing.read) is not None


async def test_the_owners_own_reads_are_not_passed_on(passing: Passing) -> None:
    owners = cast(Owners, passing.hops.hop.owners)
    path = next(path for path in map("/{}".format, range(100)) if owners.other_owner(owners.cell_of("o", path)) is None)
    read = passing.read._replace(key=passing.read.key._replace(group=Group("o", path)))
    assert passing.reads.begin(read) is None
