"""Members that go, come back, differ, or are no members at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.origin import handlers
from gateway.origin.requests import Kind
from gateway.protocol.fleet_headers import FLEET
from gateway.protocol.worker_headers import HOP, HopAsk
from tests.fleet.site import NAMES, SECRET, Site
from tests.scenarios.wire import Wire, pairs
from tests.waiting import eventually, time_passing

STEP_S = 0.005
"""Time passes at some five times its speed, so that no live request reaches the end of its life."""


class Verifier:
    """A live reader that reads each byte once, at one member after the other."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.body = ""
        self.is_over = False
        self._task = asyncio.create_task(self._read())

    def __repr__(self) -> str:
        return f"<Verifier {self.body!r}>"

    async def _read(self) -> None:
        assert (await self.wire.head()).status == 200
        async for data, _ in pairs(self.wire):
            self.body += data
        self.is_over = True

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_readers_go_on_without_a_member_that_dies_and_comes_back(site: Site) -> None:
    path, written = site.path_of("b"), "0 "
    await site.members["a"].put(path, written.encode())
    readers = [Verifier(await site.members[name].begin(f"{path}?offset=-1&live=sse")) for name in "aacc"]
    await eventually(lambda: all(reader.body == written for reader in readers))
    assert site.live_requests == 1

    async def append(text: str) -> None:
        nonlocal written
        assert (await site.members["a"].post(path, text.encode())).status == 204
        written += text
        await eventually(
            lambda: all(reader.body == written for reader in readers), state=lambda: [r.body for r in readers]
        )

    async with time_passing(site.clock, STEP_S):
        await append("1 ")
        await site.kill("b")
        await append("2 ")
        assert site.owner(path) != "b"
        await eventually(lambda: site.counters.parked == 1)
        await append("3 ")
        await site.start("b")
        await eventually(lambda: site.reached("a") == {"b", "c"} and site.reached("c") == {"a", "b"})
        await append("4 ")
        await eventually(lambda: site.counters.parked == 1)
        await append("5 ")
    # Each append ends a long-poll of the owner.  Each of the two changes of the owner costs two more at most.
    assert site.live_requests <= 1 + 5 + 2 * 2
    assert not any(reader.is_over for reader in readers)
    for reader in readers:
        await reader.leave()


async def test_a_member_that_leaves_gives_its_streams_to_others_before_it_ends(site: Site) -> None:
    path = site.path_of("b")
    await site.members["a"].put(path, b"x")
    reader = Verifier(await site.members["a"].begin(f"{path}?offset=-1&live=sse"))
    await eventually(lambda: reader.body == "x")
    site.members["b"].gateway.drain(600)
    async with time_passing(site.clock):
        await eventually(lambda: "b" not in site.reached("a") | site.reached("c"))
        await eventually(lambda: site.counters.parked == 1)
        assert (await site.members["a"].post(path, b"y")).status == 204
        await eventually(lambda: reader.body == "xy")
    await reader.leave()
    site.members["b"].gateway.undo_drain()


async def test_a_member_without_clients_waits_until_the_others_know_that_it_leaves(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await site.stop("c")
    assert caplog.text.count("owns no streams: it is leaving") == 2


async def test_readers_go_on_without_a_member_that_hangs(site: Site) -> None:
    path = site.path_of("b")
    await site.members["a"].put(path, b"x")
    readers = [Verifier(await site.members[name].begin(f"{path}?offset=-1&live=sse")) for name in "ac"]
    await eventually(lambda: {reader.body for reader in readers} == {"x"})
    await site.kill("b", is_silent=True)
    async with time_passing(site.clock, STEP_S):
        assert (await site.members["a"].post(path, b"y")).status == 204
        await eventually(lambda: {reader.body for reader in readers} == {"xy"})
        assert (await site.members["c"].get(f"{path}?offset=-1")).body == b"xy"
        await eventually(lambda: "does not answer in time" in repr(site.fleet("a")))
    for reader in readers:
        await reader.leave()


async def test_a_write_through_a_member_that_was_replaced_is_in_the_next_read(apart: Site) -> None:
    await apart.start_all(tail_fresh_s=600)
    path = apart.path_of("b")
    await apart.members["a"].put(path, b"x")
    for name in "aabb":
        assert (await apart.members[name].get(f"{path}?offset=-1")).body == b"x"
    assert (await apart.members["a"].post(path, b"y")).status == 204
    await apart.kill("a")
    await apart.start("a", tail_fresh_s=600)
    await apart.until_joined()
    assert (await apart.members["a"].get(f"{path}?offset=-1")).body == b"xy"


@pytest.mark.parametrize("deletes", [False, True])
async def test_a_write_is_read_though_its_member_had_asked_the_owner_for_nothing(apart: Site, deletes: bool) -> None:
    await apart.start_all(tail_fresh_s=600)
    path = apart.path_of("c")
    await apart.members["c"].put(path, b"x", **({"Stream_Closed": "true"} if deletes else {}))
    assert (await apart.members["c"].get(f"{path}?offset=-1")).body == b"x"
    written = apart.members["a"].send("DELETE", path) if deletes else apart.members["a"].post(path, b"y")
    assert (await written).status == 204
    await apart.kill("a")
    await apart.start("a", tail_fresh_s=600)
    await apart.until_joined()
    answer = await apart.members["a"].get(f"{path}?offset=-1")
    assert answer.status == 404 if deletes else answer.body == b"xy"


async def test_a_read_while_a_member_is_dead_goes_to_the_next_one(site: Site) -> None:
    path = site.path_of("b")
    await site.members["a"].put(path, b"x", Stream_Closed="true")
    await site.kill("b")
    async with time_passing(site.clock):
        for name in ("a", "c", "a"):
            assert (await site.members[name].get(f"{path}?offset=-1")).body == b"x"
    # If a is the next owner, it does not ask the origin again for c, which has relayed no write.
    assert site.counters.requests[Kind.CATCHUP] == 1
    assert site.reached("a") | site.reached("c") == {"a", "c"}


async def test_members_that_disagree_cost_one_more_request_and_agree_on_the_bytes(site: Site) -> None:
    path = site.path_of("b")
    await site.members["a"].put(path, b"x", Stream_Closed="true")
    fleet = site.fleet("a")
    # Member a believes that b is lost; c knows better.
    next(one for one in fleet.members.values() if one.name == "b").lose()
    for name in NAMES:
        assert (await site.members[name].get(f"{path}?offset=-1")).body == b"x"
    # Two fetches, and one question for the first request of member c.
    assert site.counters.requests[Kind.CATCHUP] <= 3


async def test_a_stranger_is_refused(site: Site) -> None:
    member = site.members["a"]
    await member.put("/s", b"x")
    ask = {HOP: HopAsk("default", "", "", "").rendered(), FLEET: site.fleet("b").field.rendered()}
    before = site.counters.total_requests
    for method in ("GET", "HEAD", "PUT", "OPTIONS"):
        answer = await member.send_to(site.urls["a"], method, "/s?offset=-1", ask, b"" if method == "PUT" else None)
        assert answer.status == 403
    assert site.counters.total_requests == before


async def test_clients_cannot_pass_for_members(site: Site) -> None:
    member = site.members["a"]
    await member.put("/s", b"x")
    field = site.fleet("b").field.rendered()
    answer = await member.get("/s?offset=-1", {FLEET: field, HOP: HopAsk("default", "", "", "").rendered()})
    assert (answer.status, answer.body) == (200, b"x")
    assert not [name for name in answer.headers if name.lower().startswith("gateway-")]


async def test_a_member_with_other_routes_is_told_of_and_not_asked(
    apart: Site, caplog: pytest.LogCaptureFixture
) -> None:
    await apart.start("a")
    await apart.start("b", trust_s=1.0)
    async with time_passing(apart.clock):
        await eventually(lambda: "differs" in str(caplog.text))
        paths = [f"/s/{number}" for number in range(8)]
        for path in paths:
            await apart.members["a"].put(path, b"x", Stream_Closed="true")
            for name in "ab":
                assert (await apart.members[name].get(f"{path}?offset=-1")).body == b"x"
    assert apart.reached("a") == apart.reached("b") == set()
    assert apart.counters.requests[Kind.CATCHUP] == 2 * len(paths)
    lines = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(lines) == 2, "once at each member"
    admin = apart.members["a"].gateway.admin_url
    ready = await apart.members["a"].send_to(admin, "GET", "/readyz?verbose", {"Host": "127.0.0.1"})
    assert b"[-] member b at " in ready.body
    assert b"its configuration of routes or origins differs" in ready.body
    exposed = (await apart.members["a"].send_to(admin, "GET", "/metrics", {"Host": "127.0.0.1"})).body
    for sample in ("reached", "differs", "losses_total"):
        value = {"reached": b"0.0", "differs": b"1.0", "losses_total": b"0.0"}[sample]
        assert b'durable_gateway_fleet_member_%b{member="b"} %b' % (sample.encode(), value) in exposed


async def test_members_share_again_once_all_have_the_changed_configuration(site: Site) -> None:
    path = site.path_of("b")
    await site.members["a"].put(path, b"x")
    site.reloaded = {"trust_s": 7.0}
    async with time_passing(site.clock, STEP_S):
        for name in NAMES:
            await site.members[name].gateway.reload()
            # Before the next probe, the owner refuses a request that was made for other routes.
            for reader in NAMES:
                assert (await site.members[reader].get(f"{path}?offset=-1")).body == b"x"
        await eventually(lambda: all(site.reached(name) == {*NAMES} - {name} for name in NAMES))
    assert len({site.fleet(name).field.config for name in NAMES}) == 1
    assert (await site.members["c"].get(f"{path}?offset=-1")).body == b"x"


async def test_members_with_different_lists_share_their_streams(apart: Site, caplog: pytest.LogCaptureFixture) -> None:
    await apart.start_all()
    await apart.stop("a")
    known = [{"name": name, "url": apart.urls[name]} for name in "ab"]
    await apart.start("a", {"members": known})
    async with time_passing(apart.clock, STEP_S):
        await eventually(lambda: apart.reached("a") == {"b"} and apart.reached("b") == {"a", "c"})
        path = apart.path_of("b")
        await apart.members["a"].put(path, b"x")
        for name in NAMES:
            assert (await apart.members[name].get(f"{path}?offset=-1")).body == b"x"
        # Member a cannot ask c for the purge, but b can.
        admin = apart.members["c"].gateway.admin_url
        headers = {"Host": "127.0.0.1", "Content-Type": "application/json"}
        await apart.members["c"].send_to(admin, "POST", "/api/purge", headers, b'{"all": true}')
        await eventually(lambda: len({apart.fleet(name).field.orders for name in NAMES}) == 1)
    assert "differs" not in caplog.text
    assert "died" not in caplog.text
    assert apart.counters.requests[Kind.CATCHUP] <= 4


async def test_a_member_with_another_secret_is_not_asked(apart: Site, caplog: pytest.LogCaptureFixture) -> None:
    await apart.start("a")
    await apart.start("b", {"secret": SECRET[::-1]})
    async with time_passing(apart.clock):
        await eventually(lambda: caplog.text.count("the secret differs") == 2)
    assert apart.reached("a") == apart.reached("b") == set()
    await apart.members["a"].put("/s", b"x")
    for name in "ab":
        assert (await apart.members[name].get("/s?offset=-1")).body == b"x"


async def test_a_url_that_leads_to_another_member_is_logged(apart: Site, caplog: pytest.LogCaptureFixture) -> None:
    crossed = [{"name": name, "url": apart.urls[at]} for name, at in (("a", "a"), ("b", "c"), ("c", "b"))]
    await apart.start("a", {"members": crossed})
    await apart.start("b")
    async with time_passing(apart.clock):
        await eventually(lambda: "leads to member b" in caplog.text)
    assert apart.reached("a") == set()


async def test_members_of_one_name_in_logs_are_warned_of(apart: Site, caplog: pytest.LogCaptureFixture) -> None:
    await apart.start("a", node_name="one")
    await apart.start("b", node_name="one")
    async with time_passing(apart.clock):
        await eventually(lambda: caplog.text.count("has the same server.node_name as this one") == 2)
    assert apart.reached("a") == {"b"}


@pytest.mark.parametrize("has_asked", [False, True])
async def test_a_stream_that_a_replaced_member_has_made_again_is_not_mixed_with_the_earlier_one(
    apart: Site, monkeypatch: pytest.MonkeyPatch, has_asked: bool
) -> None:
    # The origin's entity tags do not name the incarnation, and the new stream goes on where the first one has ended.
    for kind in [kind for kind in vars(handlers).values() if isinstance(kind, type) and "_etag" in vars(kind)]:
        monkeypatch.setattr(kind, "_etag", staticmethod(lambda stream, start, end, *, is_closed: f'"x:{start}:{end}"'))
    await apart.start_all(tail_fresh_s=600)
    path = apart.path_of("c")
    a, c = apart.members["a"], apart.members["c"]
    await c.put(path, b"one")
    for member in (c, a) if has_asked else (c,):
        assert (await member.get(f"{path}?offset=-1")).body == b"one"
    assert (await a.send("DELETE", path)).status == 204
    assert (await a.put(path, b"XYZ+more")).status == 201
    await apart.kill("a")
    await apart.start("a", tail_fresh_s=600)
    await apart.until_joined()
    before = apart.counters.body_bytes[Kind.CATCHUP]
    for name in "abca":
        assert (await apart.members[name].get(f"{path}?offset=-1")).body == b"XYZ+more"
    assert apart.counters.body_bytes[Kind.CATCHUP] - before == 8, "the bytes are dropped once"


class Hanging:
    """The transports of a process that hangs once it has written some bytes on one of them."""

    has_hung = False

    def __init__(self, transport: Any, most: int) -> None:
        self._transport = transport
        self._left = most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write as much as is left."""
        if not Hanging.has_hung:
            self._transport.write(data[: self._left])
            self._left = max(0, self._left - len(data))
            Hanging.has_hung = not self._left


async def test_a_member_that_hangs_within_a_body_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hanging, "has_hung", False)
    path, body = site.path_of("b"), b"x" * 200_000
    await site.members["a"].put(path, body)
    gateway = site.members["b"].gateway
    gateway.listeners.close()
    assert gateway.listeners.members is not None
    for connection in gateway.listeners.members:
        sealing = connection._sealing  # type: ignore[attr-defined]
        sealing._transport = Hanging(sealing._transport, 70_000)
    reading = asyncio.create_task(site.members["a"].get(f"{path}?offset=-1"))
    await eventually(lambda: Hanging.has_hung)
    async with time_passing(site.clock, STEP_S):
        assert (await reading).status == 502
        answer = await site.members["a"].get(f"{path}?offset=-1")
    assert (answer.status, answer.body) == (200, body)


async def test_a_member_that_ends_goes_on_with_the_answers_to_others_until_they_are_whole(apart: Site) -> None:
    await apart.start_all(shutdown_timeout_s=20)
    path, body = apart.path_of("c"), b"x" * 300_000
    await apart.members["a"].put(path, body)
    gate = apart.origin.origin.faults.stall(100_000, kind="catchup")
    reading = apart.members["a"].asking(f"{path}?offset=-1")
    await gate.waiting(1)
    followed = next(path for path in (f"/t/{number}" for number in range(1_000)) if apart.owner(path) == "c")
    await apart.members["a"].put(followed, b"x")
    reader = Verifier(await apart.members["a"].begin(f"{followed}?offset=-1&live=sse"))
    await eventually(lambda: reader.body == "x")
    stopping = asyncio.create_task(apart.stop("c"))
    async with time_passing(apart.clock, STEP_S):
        c = next(one for one in apart.fleet("a").members.values() if one.name == "c")
        await eventually(lambda: c.why_not == "it is leaving")
        await eventually(lambda: c.why_not == "it cannot be reached")
        assert not reading.done()
        gate.release()
        assert (await reading).body == body
        await asyncio.wait_for(stopping, 9)
    await reader.leave()
