"""Members prove themselves to each other, on each connection and for each request and answer."""

from __future__ import annotations

import asyncio
import gc
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from multidict import CIMultiDict

from gateway.aio.tasks import Tasks
from gateway.errors import UpstreamUnreachable
from gateway.protocol.member_session import (
    ANOTHER_SECRET,
    ANOTHER_SERVER,
    ANOTHER_VERSION,
    MOST_RECORD_BYTES,
    VERSION,
    MemberKey,
    NotProved,
    Sealer,
    Session,
)
from gateway.server.connection_passing import Passing
from gateway.server.member_connection import MOST_UNPROVED_OF_ADDRESS
from gateway.upstream.client import MemberClient
from gateway.upstream.connection_pool import UNBOUNDED, ConnectionPool
from gateway.upstream.dialer import MOST_GREETINGS, MemberDialer
from gateway.upstream.failures import ConnectTimedOut, NotConnected
from gateway.upstream.incoming import Intake
from gateway.upstream.origin_call import Bounds, OriginCall, endpoint_of
from gateway.upstream.slots import Lane
from tests.fleet.site import Site
from tests.ports import kept_port
from tests.waiting import eventually, time_passing

A, B = MemberKey("a", b"secret"), MemberKey("b", b"secret")


def answer_of(key: MemberKey, greeting: bytes) -> bytes:
    """A member's answer to a greeting."""
    answered = key.answered(greeting)
    assert answered is not None
    return answered[0]


def sessions() -> tuple[Session, Session]:
    """Both ends of a new connection from a to b."""
    greeting = A.greeting()
    answered = B.answered(greeting)
    assert answered is not None
    return A.session(greeting, answered[0], "b"), answered[1]


def test_both_ends_read_what_the_other_one_sends() -> None:
    asker, owner = sessions()
    assert (asker.peer, owner.peer) == ("b", "a")
    for data in (b"", b"one", b"x" * (3 * MOST_RECORD_BYTES + 1)):
        for sender, receiver in ((asker, owner), (owner, asker)):
            sent = sender.sealer.sealed(data)
            assert receiver.opener.opened(sent[:7]) + receiver.opener.opened(sent[7:]) == data


def test_the_codes_are_hmac_sha256() -> None:
    key = bytes(range(32))
    sealer = Sealer(key)
    for number, data in enumerate((b"", b"one", b"x" * 1_000)):
        code = hmac.digest(key, number.to_bytes(8, "big") + data, "sha256")
        assert sealer.sealed(data) == len(data).to_bytes(4, "big") + code + data


@pytest.mark.parametrize(
    "forge",
    [
        lambda first, second: second,
        lambda first, second: first + first,
        lambda first, second: first[:-1] + b"!",
        lambda first, second: first[:4] + bytes([first[4] ^ 1]) + first[5:],
        lambda first, second: b"\xff" + first[1:],
        lambda first, second: sessions()[0].sealer.sealed(b"one"),
        lambda first, second: b"GET / HTTP/1.1\r\nHost: members-only.example\r\n\r\n",
    ],
    ids=["moved", "repeated", "changed", "wrong code", "too long", "another connection", "plain"],
)
def test_a_record_that_was_not_sent_next_on_this_connection_is_refused(forge: Callable[[bytes, bytes], bytes]) -> None:
    asker, owner = sessions()
    first, second = asker.sealer.sealed(b"one"), asker.sealer.sealed(b"two")
    with pytest.raises(ValueError, match="a record is"):
        owner.opener.opened(forge(first, second))


def test_a_record_that_comes_back_to_its_sender_is_refused() -> None:
    asker, _ = sessions()
    with pytest.raises(ValueError, match="not of this member"):
        asker.opener.opened(asker.sealer.sealed(b"one"))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda greeting: greeting, ANOTHER_SERVER),
        (lambda greeting: b"HTTP/1.1 400 Bad Request\r\n", ANOTHER_SERVER),
        (lambda greeting: answer_of(MemberKey("b", b"other"), greeting), ANOTHER_SECRET),
        (lambda greeting: answer_of(B, A.greeting()), ANOTHER_SECRET),
        (lambda greeting: answer_of(B, greeting).replace(b" %d b/" % VERSION, b" 9 b/"), ANOTHER_VERSION),
        (lambda greeting: answer_of(A, greeting).replace(b" a/", b" b/"), ANOTHER_SECRET),
        (lambda greeting: answer_of(A, greeting), "its URL leads to member a"),
    ],
)
def test_an_answer_without_proof_is_not_believed(answer: Callable[[bytes], bytes], reason: str) -> None:
    greeting = A.greeting()
    with pytest.raises(NotProved, match=reason):
        A.session(greeting, answer(greeting), "b")


class Impostor:
    """A server without the secret at a member's URL."""

    def __init__(self, relay_to: int | None) -> None:
        self._relay_to = relay_to
        self.seen = b""
        self.forged = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer like the member as far as possible, and forge an answer to each request."""
        self.seen += (greeting := await reader.readline())
        if self._relay_to is None:
            writer.write(greeting[:-1] + b" " + b"0" * 64 + b"\n")
        else:
            far, to_far = await asyncio.open_connection("127.0.0.1", self._relay_to)
            to_far.write(greeting)
            writer.write(await far.readline())
            to_far.close()
        while data := await reader.read(1 << 16):
            self.seen += data
            self.forged += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nFORGED")
        writer.close()


@asynccontextmanager
async def impostor(site: Site, relay_to: int | None = None) -> AsyncIterator[Impostor]:
    """An impostor at the URL of member b."""
    one = Impostor(relay_to)
    server = await asyncio.start_server(one.serve, "127.0.0.1", int(site.urls["b"].rpartition(":")[2]))
    yield one
    server.close()


async def reads_are_the_origins(site: Site) -> None:
    for number in range(8):
        path = f"/s/{number}"
        await site.members["a"].put(path, b"real")
        answer = await site.members["a"].get(f"{path}?offset=-1", {"Authorization": "Bearer of-a-client"})
        assert answer.body == b"real"


async def test_an_impostor_gets_no_request_and_is_not_believed(apart: Site, caplog: pytest.LogCaptureFixture) -> None:
    async with impostor(apart) as one:
        await apart.start("a")
        async with time_passing(apart.clock):
            await eventually(lambda: ANOTHER_SECRET in caplog.text)
            await reads_are_the_origins(apart)
    assert one.seen.startswith(b"gateway-fleet ")
    assert not one.forged
    assert b"Bearer" not in one.seen


async def test_an_impostor_that_relays_the_proof_is_not_believed_either(apart: Site) -> None:
    with kept_port() as port:
        await apart.start("b", {"listen": f"127.0.0.1:{port}"})
        async with impostor(apart, port) as one:
            await apart.start("a")
            async with time_passing(apart.clock):
                await eventually(lambda: one.forged > 0)
                await reads_are_the_origins(apart)
            assert apart.reached("a") == set()
        assert b"Bearer" not in one.seen
        await apart.stop("a")
        await apart.stop("b")


async def test_strangers_connections_leave_room_for_members(site: Site) -> None:
    port = int(site.urls["c"].rpartition(":")[2])
    strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MOST_UNPROVED_OF_ADDRESS)]
    members = site.members["c"].gateway.listeners.members
    assert members is not None
    await eventually(lambda: all(reader.at_eof() for reader, _ in strangers[:MOST_UNPROVED_OF_ADDRESS]))
    assert len(members) <= MOST_UNPROVED_OF_ADDRESS + 16
    async with time_passing(site.clock):
        path = site.path_of("c")
        await site.members["a"].put(path, b"x")
        assert (await site.members["a"].get(f"{path}?offset=-1")).body == b"x"
    assert site.reached("a") == {"b", "c"}
    for _, writer in strangers:
        writer.close()


@pytest.mark.parametrize("greets", [False, True])
async def test_a_connection_whose_greeting_was_answered_outlasts_later_strangers(site: Site, greets: bool) -> None:
    key, port = site.fleet("a").key, int(site.urls["c"].rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(greeting := key.greeting())
    session = key.session(greeting, await reader.readline(), "c")
    strangers = []
    for _ in range(MOST_UNPROVED_OF_ADDRESS // 2 - 1 if greets else 0):
        strangers.append(await asyncio.open_connection("127.0.0.1", port))
        strangers[-1][1].write(key.greeting())
        await strangers[-1][0].readline()
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MOST_UNPROVED_OF_ADDRESS)]
    await eventually(lambda: all(one.at_eof() for one, _ in silent[:MOST_UNPROVED_OF_ADDRESS]))
    writer.write(session.sealer.sealed(b"OPTIONS / HTTP/1.1\r\nHost: c\r\n\r\n"))
    assert b"HTTP/1.1 403 " in session.opener.opened(await reader.read(1 << 16))
    for _, one in (*strangers, *silent, (reader, writer)):
        one.close()


async def test_strangers_that_greet_leave_room_for_greetings(site: Site) -> None:
    key, port = site.fleet("a").key, int(site.urls["c"].rpartition(":")[2])
    strangers = []
    for _ in range(MOST_UNPROVED_OF_ADDRESS):
        strangers.append(await asyncio.open_connection("127.0.0.1", port))
        strangers[-1][1].write(key.greeting())
        await strangers[-1][0].readline()
    late = await asyncio.open_connection("127.0.0.1", port)
    others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MOST_UNPROVED_OF_ADDRESS // 2 - 1)]
    await eventually(lambda: all(one.at_eof() for one, _ in strangers[: len(others) + 1]))
    late[1].write(key.greeting())
    assert await late[0].readline()
    for _, one in (*strangers, late, *others):
        one.close()


async def test_a_member_that_has_left_the_list_is_not_connected_to() -> None:
    begin, asked, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered = B.answered(await reader.readline())
        assert answered is not None
        asked.set()
        await begin.wait()
        writer.write(answered[0])
        await reader.read()
        has_ended.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    endpoint = endpoint_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    tasks, pool = Tasks(), ConnectionPool(UNBOUNDED, Intake())
    dialer = MemberDialer(tasks, A, {endpoint: "b"})
    assert dialer.use_names({endpoint: "b"}) == []
    dial = asyncio.create_task(dialer.dial(endpoint, pool, 20.0))
    await asked.wait()
    # Another member has the address now.
    assert dialer.use_names({endpoint: "c"}) == [endpoint]
    begin.set()
    with pytest.raises(NotConnected):
        (await asyncio.wait_for(dial, 20)).drop()
    await asyncio.wait_for(has_ended.wait(), 20)
    assert dialer.use_names({}) == [endpoint]
    with pytest.raises(NotConnected):
        await dialer.dial(endpoint, pool, 20.0)
    server.close()
    pool.close()
    await tasks.close()


async def test_the_slots_of_a_member_that_has_left_the_list_are_forgotten() -> None:
    url = "http://127.0.0.77:9"
    client = MemberClient(A, {"b": url})

    def lanes() -> int:
        return sum(isinstance(one, Lane) and one.endpoint == endpoint_of(url) for one in gc.get_objects())

    with pytest.raises(UpstreamUnreachable):
        await client.send(OriginCall("OPTIONS", f"{url}/", CIMultiDict(), Bounds(1.0, 1.0, 1.0, 1.0)))
    assert lanes() > 0
    client.use_members({})
    gc.collect()
    assert lanes() == 0
    await client.close()


@pytest.mark.parametrize(("workers", "most"), [(1, MOST_GREETINGS), (4, MOST_GREETINGS // 4), (20, 1)])
async def test_a_member_proves_itself_before_its_first_request_and_makes_few_connections_at_once(
    workers: int, most: int
) -> None:
    proved: list[bool] = []
    accepted = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        answered = B.answered(await reader.readline())
        assert answered is not None
        await begin.wait()
        writer.write(answered[0])
        assert answered[1].opener.opened(await reader.read(100)) == b""
        proved.append(answered[1].opener.has_opened)
        writer.close()

    begin = asyncio.Event()
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    endpoint = endpoint_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    tasks, pool = Tasks(), ConnectionPool(UNBOUNDED, Intake())
    dialer = MemberDialer(tasks, A, {endpoint: "b"}, workers)
    dials = [asyncio.create_task(dialer.dial(endpoint, pool, 20.0)) for _ in range(2 * MOST_GREETINGS)]
    await eventually(lambda: accepted == most)
    with pytest.raises(ConnectTimedOut):
        await dialer.dial(endpoint, pool, 0.05)
    assert accepted == most
    begin.set()
    await asyncio.gather(*dials)
    await eventually(lambda: proved == [True] * 2 * MOST_GREETINGS)
    server.close()
    pool.close()
    await tasks.close()


async def test_a_connection_waits_while_the_worker_that_it_names_is_busy(site: Site) -> None:
    members = site.members["c"].gateway.listeners.members
    assert members is not None
    outcomes, passed = [Passing.LATER, Passing.LATER, Passing.DONE], []

    def pass_on(transport: object, worker: int, read: bytes) -> Passing:
        passed.append((worker, read))
        return outcomes[len(passed) - 1]

    members.pass_on = pass_on
    reader, writer = await asyncio.open_connection("127.0.0.1", int(site.urls["c"].rpartition(":")[2]))
    writer.write(greeting := site.fleet("a").key.greeting(1))
    # This worker does not answer in the place of the other one.
    assert await reader.read() == b""
    assert passed == [(1, greeting)] * 3
    writer.close()


async def test_a_worker_answers_itself_when_the_named_one_takes_no_connection(site: Site) -> None:
    members, key = site.members["c"].gateway.listeners.members, site.fleet("a").key
    assert members is not None
    for outcome in (Passing.REFUSED, Passing.LATER):
        members.pass_on = lambda *_, found=outcome: found
        reader, writer = await asyncio.open_connection("127.0.0.1", int(site.urls["c"].rpartition(":")[2]))
        writer.write(greeting := key.greeting(1))
        assert key.session(greeting, await reader.readline(), "c").worker == 0
        writer.close()
