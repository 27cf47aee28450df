"""Gateways that find each other by their announcements in Redis."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any, Final, NamedTuple, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.errors import ConfigError
from gateway.config.fleet import MOST_MEMBERS, FleetConfig, MemberConfig
from gateway.config.gateway import GatewayConfig
from gateway.config.redis_place import parse_redis_url
from gateway.engine import fleet
from gateway.engine.fleet_announced import (
    HOLD_S,
    LIFE_S,
    MOST_OFF_S,
    RENEW_S,
    MembersInRedis,
    MemberStore,
    judge_own,
    listed_members,
)
from gateway.engine.fleet_discovery import Finding, FoundMembers
from gateway.engine.fleet_own_address import own_member
from gateway.engine.foreign_entries import ForeignEntries
from gateway.origin.app import RunningOrigin
from gateway.protocol.stored_orders import Announcement, Seal
from gateway.upstream import redis_members
from gateway.upstream.redis_members import RedisMembers
from tests.fleet.crews import crews
from tests.fleet.redis_server import RedisServer, gate, redis_server
from tests.fleet.site import NAMES, SECRET
from tests.fleet.test_orders import PRINCIPAL, REVOKED, order, revocations
from tests.fleet.test_redis import GUIDE, RIGHTS, RedisSite
from tests.waiting import eventually, pass_turns, time_passing

STEP_S: Final = 0.02
SPEED: Final = 5
"""How much faster the keys expire in Redis, whose clock no test moves."""
SEAL: Final = Seal(SECRET.encode())


def member(name: str, url: str = "") -> MemberConfig:
    return MemberConfig(name=name, url=url or f"http://{name}:1")


class Present(NamedTuple):
    """Another member in the list of one gateway."""

    name: str
    url: str
    answers: bool = False


# -- decisions


OWN: Final = Announcement("a", "http://a:1", "a" * 16, 1_000.0)


@pytest.mark.parametrize(
    ("found", "has_announced", "is_due", "problem"),
    [
        (None, False, True, ""),
        (None, True, True, ""),
        (OWN, True, False, ""),
        (OWN._replace(at=1_000.0 - RENEW_S), True, True, ""),
        # The machine's clock was set back.
        (OWN._replace(at=1_000.0 + RENEW_S), True, True, ""),
        # The process before this one has died at the same URL.
        (OWN._replace(instance="b" * 16), False, True, ""),
        (OWN._replace(instance="b" * 16), True, False, "another gateway is announced as a at http://a:1 too"),
        (OWN._replace(instance="b" * 16, url="http://b:1"), False, False, "another gateway is announced as a at"),
        (OWN._replace(instance="b" * 16, url="http://b:1"), True, False, "another gateway is announced as a at"),
    ],
)
def test_a_gateway_announces_itself_unless_another_one_has_its_name(
    found: Announcement | None, has_announced: bool, is_due: bool, problem: str
) -> None:
    judged = judge_own(found, OWN, has_announced=has_announced)
    assert judged.is_due == is_due
    assert judged.problem.startswith(problem)
    assert bool(judged.problem) == bool(problem)


A, B, C, D = map(member, "abcd")


@pytest.mark.parametrize(
    ("announced", "present", "held", "listed"),
    [
        # Members come, and go when their announcement has expired.
        ([], [], "", [A]),
        ([A, C, B], [], "", [A, B, C]),
        ([B], [C], "", [A, B]),
        ([B], [C], "b", [A, B]),
        # A member that answers stays though its announcement is missing.
        ([B], [Present(C.name, C.url, answers=True)], "", [A, C, B]),
        # All stay while each has time to announce itself again.
        ([], [B, C], "bc", [A, B, C]),
        ([D], [B, C], "c", [A, C, D]),
        # A member has another URL.
        ([member("b", "http://x:1")], [B], "b", [A, member("b", "http://x:1")]),
        ([member("b", "http://x:1")], [Present("b", B.url, answers=True)], "", [A, member("b", "http://x:1")]),
    ],
)
def test_the_members_are_those_announced_and_those_that_answer(
    announced: list[MemberConfig], present: list[Any], held: str, listed: list[MemberConfig]
) -> None:
    shown = [one if isinstance(one, Present) else Present(one.name, one.url) for one in present]
    assert listed_members(announced, A, shown, held) == (listed, "")


def test_of_two_members_at_one_url_the_present_one_is_listed_and_both_are_named() -> None:
    twin = member("0", B.url)
    line = "{} and {} are both announced at http://b:1: each gateway needs a fleet.url of its own"
    assert listed_members([B, twin], A, [Present(B.name, B.url)]) == ([A, B], line.format("b", "0"))
    assert listed_members([B, twin], A, []) == ([A, twin], line.format("0", "b"))
    assert listed_members([A, twin], B, [Present("0", twin.url)]) == ([B, A], line.format("b", "0"))


def test_of_too_many_members_the_first_are_listed_and_no_member_that_answers_is_left_out() -> None:
    many = [member(f"m{number:03}") for number in range(200)]
    problem = f"there are too many announcements: only {MOST_MEMBERS} are members"
    assert listed_members(many[::-1], A, []) == ([A, *many[: MOST_MEMBERS - 1]], problem)
    present = [Present(B.name, B.url, answers=True), Present(C.name, C.url)]
    for held, kept in (("", [B]), ("c", [B, C])):
        listed = [A, *kept, *many][:MOST_MEMBERS]
        assert listed_members(many, A, present, held) == (listed, problem)


# -- looks, over a store in memory


class MemoryStore:
    """The announcements, on the test's clock."""

    shown = "redis.test:6379"

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.kept: dict[bytes, tuple[bytes, float]] = {}
        self.announced = 0
        """How often a member has announced itself."""
        self.fault = ""
        """The failure of all commands."""
        self.full = ""
        """The failure of commands that add something."""

    def names(self) -> set[str]:
        return {name.decode() for name, (_, until) in self.kept.items() if self._clock.now() < until}

    async def entries(self) -> list[tuple[bytes, bytes]]:
        if self.fault:
            raise OSError(self.fault)
        return [(name, entry) for name, (entry, until) in self.kept.items() if self._clock.now() < until]

    async def announce(self, name: str, entry: bytes, life_s: float) -> None:
        if self.fault or self.full:
            raise OSError(self.fault or self.full)
        self.announced += 1
        self.kept[name.encode()] = entry, self._clock.now() + life_s

    async def withdraw(self, name: str, is_own: Callable[[bytes], bool]) -> None:
        if self.fault:
            raise OSError(self.fault)
        if (kept := self.kept.get(name.encode())) is not None and is_own(kept[0]):
            del self.kept[name.encode()]

    async def close(self) -> None:
        """Nothing is open."""


class Gateway:
    """One gateway's looks at the announcements, and its list."""

    def __init__(
        self,
        store: MemberStore,
        clock: ManualClock,
        name: str,
        url: str = "",
        instance: str = "",
        *,
        is_successor: bool = False,
    ) -> None:
        self.answering: set[str] = set()
        """The other members that answer its probes."""
        self.listed: dict[str, str] = {}
        """The other members in its list, with their URLs."""
        self.is_replaced = False
        self.own = member(name, url)
        self.foreign = ForeignEntries(store.shown, clock)
        self.source = MembersInRedis(
            store, SEAL, self.own, (instance or name) * 16, self._present, lambda: self.is_replaced, self.foreign,
            clock, Random(1), is_successor=is_successor,
        )  # fmt: skip

    def _present(self) -> list[Present]:
        return [Present(name, url, name in self.answering) for name, url in self.listed.items()]

    async def look(self) -> Finding:
        finding = await self.source.look()
        assert finding.members[0] == self.own
        self.listed = {one.name: one.url for one in finding.members[1:]}
        return finding

    async def others(self) -> set[str]:
        await self.look()
        return set(self.listed)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def gateways(store: MemoryStore, clock: ManualClock) -> tuple[Gateway, Gateway, Gateway]:
    a, b, c = (Gateway(store, clock, name) for name in NAMES)
    return a, b, c


async def joined(*gateways: Gateway) -> None:
    """Let each gateway look twice, so that each knows all."""
    for _ in range(2):
        for one in gateways:
            await one.look()


async def live(clock: ManualClock, seconds: float, *gateways: Gateway) -> None:
    """Let these gateways look once a second for some time."""
    for _ in range(int(seconds)):
        clock.advance(1)
        for one in gateways:
            await one.look()


async def test_a_gateway_that_starts_is_announced_and_knows_the_others_at_once(
    gateways: tuple[Gateway, Gateway, Gateway], store: MemoryStore
) -> None:
    a, b, c = gateways
    assert [await one.others() for one in gateways] == [set(), {"a"}, {"a", "b"}]
    assert await a.others() == {"b", "c"}
    finding = await b.look()
    assert (b.listed, finding.found, finding.problem) == ({"a": "http://a:1", "c": "http://c:1"}, 3, "")
    assert 0.5 < finding.again_s < 1.5
    assert store.names() == set(NAMES)
    assert c.source.where == "in Redis at redis.test:6379"


async def test_an_announcement_is_renewed_well_within_its_life_and_expires_with_its_member(
    gateways: tuple[Gateway, Gateway, Gateway], store: MemoryStore, clock: ManualClock
) -> None:
    a, b, _ = gateways
    await joined(*gateways)
    await live(clock, 60, a, b)
    assert store.announced - 3 == pytest.approx(2 * 60 / RENEW_S, abs=4)
    assert store.names() == {"a", "b"}
    assert set(a.listed) == set(b.listed) - {"a"} | {"b"} == {"b"}
    # Nothing has expired before its time.
    await joined(*gateways)
    await live(clock, LIFE_S - 1, a, b)
    assert set(a.listed) == {"b", "c"}
    await live(clock, 2, a, b)
    assert set(a.listed) == {"b"}


async def test_the_workers_of_a_member_renew_its_announcement_in_common(store: MemoryStore, clock: ManualClock) -> None:
    workers = [Gateway(store, clock, "a") for _ in range(4)]
    await live(clock, 30, *workers)
    assert store.announced == pytest.approx(30 / RENEW_S, abs=1)
    assert [one.listed for one in workers] == [{}] * 4


async def test_a_member_that_answers_stays_though_it_cannot_renew_its_announcement(
    gateways: tuple[Gateway, Gateway, Gateway], clock: ManualClock
) -> None:
    a, b, _ = gateways
    await joined(*gateways)
    a.answering = {"b", "c"}
    await live(clock, 3 * LIFE_S, a, b)
    assert set(a.listed) == {"b", "c"}
    a.answering = {"b"}
    await live(clock, 1, a, b)
    assert set(a.listed) == {"b"}


async def test_members_stay_while_redis_is_away_and_until_they_could_announce_themselves_again(
    gateways: tuple[Gateway, Gateway, Gateway], store: MemoryStore, clock: ManualClock
) -> None:
    a, b, _ = gateways
    await joined(*gateways)
    store.fault = "it cannot be reached"
    for _ in range(3):
        clock.advance(LIFE_S)
        for one in gateways:
            with pytest.raises(OSError, match="it cannot be reached"):
                await one.look()
    assert store.names() == set()
    store.fault = ""
    for one in gateways:
        await one.look()
    assert [set(one.listed) for one in gateways] == [{"b", "c"}, {"a", "c"}, {"a", "b"}]
    await live(clock, HOLD_S - 1, a, b)
    assert set(a.listed) == {"b", "c"}, "c may still announce itself"
    await live(clock, 2, a, b)
    assert set(a.listed) == {"b"}


async def test_a_member_stays_whose_announcement_has_expired_while_redis_was_away(
    store: MemoryStore, clock: ManualClock
) -> None:
    a, b = Gateway(store, clock, "a"), Gateway(store, clock, "b")
    await joined(a, b)
    await live(clock, LIFE_S / 2, a)
    store.fault = "it cannot be reached"
    clock.advance(LIFE_S / 2 + 1)
    with pytest.raises(OSError, match="it cannot be reached"):
        await a.look()
    store.fault = ""
    assert store.names() == {"a"}
    assert await a.others() == {"b"}
    await live(clock, HOLD_S + 1, a)
    assert a.listed == {}


@pytest.mark.parametrize("fault", ["no answer", "lost announcement"])
async def test_a_member_that_has_died_leaves_though_redis_fails_again_before_each_hold_has_ended(
    gateways: tuple[Gateway, Gateway, Gateway], store: MemoryStore, clock: ManualClock, fault: str
) -> None:
    a, b, _ = gateways
    await joined(*gateways)
    for _ in range(3):
        await live(clock, HOLD_S - 2, a, b)
        clock.advance(1)
        if fault == "no answer":
            store.fault = "it has not answered in time"
            for one in (a, b):
                with pytest.raises(OSError, match="in time"):
                    await one.look()
            store.fault = ""
        else:
            store.kept.clear()
    await live(clock, 1, a, b)
    assert (set(a.listed), set(b.listed)) == ({"b"}, {"a"})


async def test_an_empty_redis_makes_no_gateway_alone(
    gateways: tuple[Gateway, Gateway, Gateway], store: MemoryStore, clock: ManualClock
) -> None:
    a, b, _ = gateways
    await joined(*gateways)
    store.kept.clear()
    assert await a.others() == {"b", "c"}
    assert store.names() == {"a"}
    # It is lost again at once.
    store.kept.clear()
    await live(clock, 1, *gateways)
    assert [set(one.listed) for one in gateways] == [{"b", "c"}, {"a", "c"}, {"a", "b"}]
    assert store.names() == set(NAMES)
    store.kept.clear()
    # The second loss gives no more time than the first one.
    await live(clock, HOLD_S - 2, a, b)
    assert set(a.listed) == {"b", "c"}
    # b has announced itself again, and ends.
    await b.source.close()
    assert await a.others() == {"c"}
    await live(clock, 2, a)
    assert a.listed == {}, "c has not announced itself again"


async def test_an_announcement_that_is_lost_again_and_again_is_reported(store: MemoryStore, clock: ManualClock) -> None:
    a, problems = Gateway(store, clock, "a"), []
    for is_lost in (True, True, True, True, False, False):
        problems.append((await a.look()).problem)
        if is_lost:
            store.kept.clear()
    assert problems == ["", "", "", line := "the announcement of this gateway is lost again and again", line, ""]


async def test_an_orderly_end_removes_the_announcement_at_once(
    gateways: tuple[Gateway, Gateway, Gateway], store: MemoryStore
) -> None:
    a, b, c = gateways
    await joined(*gateways)
    await c.source.close()
    assert store.names() == {"a", "b"}
    assert await a.others() == {"b"}
    # Another version of the gateway goes on under this name.
    b.is_replaced = True
    await b.source.close()
    assert store.names() == {"a", "b"}
    store.fault = "it cannot be reached"
    await a.source.close()
    store.fault = ""
    assert store.names() == {"a", "b"}


async def test_a_version_that_is_replaced_announces_nothing_more(store: MemoryStore, clock: ManualClock) -> None:
    a = Gateway(store, clock, "a")
    await a.look()
    a.is_replaced = True
    await live(clock, 20, a)
    assert (store.announced, store.names()) == (1, set())


async def test_an_upgrade_to_another_layout_of_shared_memory_is_no_conflict(
    store: MemoryStore, clock: ManualClock
) -> None:
    old, new, b = (
        Gateway(store, clock, "a"),
        Gateway(store, clock, "a", instance="n", is_successor=True),
        Gateway(store, clock, "b"),
    )
    await joined(old, b)
    problems: set[str] = set()
    for second in range(60):
        old.is_replaced = second >= 30
        clock.advance(1)
        problems |= {(await one.look()).problem for one in (old, new, b)}
        assert (b.listed, store.names()) == ({"a": "http://a:1"}, {"a", "b"})
    assert problems == {""}
    await old.source.close()
    assert store.names() == {"a", "b"}
    # The announcement is the next version's.
    await new.source.close()
    assert store.names() == {"b"}


async def test_a_gateway_that_starts_again_at_its_url_takes_its_name_over_at_once(
    store: MemoryStore, clock: ManualClock
) -> None:
    before, a, b = Gateway(store, clock, "a"), Gateway(store, clock, "a", instance="n"), Gateway(store, clock, "b")
    await joined(before, b)
    assert (await a.look()).problem == ""
    assert store.announced == 3
    # The process before it ends late, and removes nothing of its successor.
    await before.source.close()
    assert store.names() == {"a", "b"}


async def test_the_second_gateway_of_a_name_waits_and_says_so(store: MemoryStore, clock: ManualClock) -> None:
    first, second, b = (
        Gateway(store, clock, "a"),
        Gateway(store, clock, "a", "http://x:1", "n"),
        Gateway(store, clock, "b"),
    )
    await joined(first, b)
    line = (
        "another gateway is announced as a at http://a:1: this one is not announced, because each needs a fleet.name "
        "of its own"
    )
    for _ in range(20):
        assert (await second.look()).problem == line
        await live(clock, 1, first, b)
    assert b.listed == {"a": "http://a:1"}
    assert second.listed == {"b": "http://b:1"}
    assert (await first.look()).problem == ""
    # Its end leaves the other one's announcement alone.
    await second.source.close()
    assert store.names() == {"a", "b"}
    # The first one has died.
    clock.advance(LIFE_S)
    await joined(second, b)
    assert b.listed == {"a": "http://x:1"}


async def test_a_copy_of_a_gateway_with_its_name_and_url_is_reported(store: MemoryStore, clock: ManualClock) -> None:
    first, second = Gateway(store, clock, "a"), Gateway(store, clock, "a", instance="n")
    await first.look()
    await second.look()
    line = "another gateway is announced as a at http://a:1 too: each needs a fleet.name and a fleet.url of its own"
    for _ in range(3):
        assert (await first.look()).problem == line
    assert (await second.look()).problem == ""


async def test_a_gateway_that_cannot_be_announced_says_so_and_knows_the_others(
    gateways: tuple[Gateway, Gateway, Gateway], store: MemoryStore
) -> None:
    a, b, _ = gateways
    await a.look()
    store.full = "it is out of memory"
    finding = await b.look()
    assert (set(b.listed), finding.problem) == ({"a"}, "this gateway cannot be announced: it is out of memory")
    store.full = ""
    assert (await b.look()).problem == ""
    assert store.names() == {"a", "b"}


async def test_entries_that_no_member_has_made_are_ignored(
    store: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Gateway(store, clock, "a"), Gateway(store, clock, "b")
    await joined(a, b)
    wall, until = clock.wall(), clock.now() + 1_000
    right = Announcement("x", "http://x:1", "f" * 16, wall)
    forged = {
        b"x": Seal(b"another secret").announcement(right),
        b"x1": SEAL.announcement(right),
        b"x2": SEAL.announcement(right._replace(name="x2"))[:-1] + b"}",
        b"x3": b"",
        b"x4": b"\xff" * 100,
        b"\xff": SEAL.announcement(right),
        b"x5": SEAL.announcement(right._replace(name="x5", url="https://x:1")),
        b"x 6": SEAL.announcement(right._replace(name="x 6")),
    }
    store.kept.update({name: (entry, until) for name, entry in forged.items()})
    finding = await a.look()
    assert (set(a.listed), finding.found, finding.problem) == ({"b"}, 2, "")
    assert a.foreign.count == len(forged)
    await a.look()
    lines = [one.message for one in caplog.records]
    assert lines == [
        f"fleet.redis at {store.shown}: entries there are ignored, because no member of this fleet has made them"
    ]


async def test_an_earlier_announcement_that_is_written_again_is_ignored(store: MemoryStore, clock: ManualClock) -> None:
    a, b = Gateway(store, clock, "a"), Gateway(store, clock, "b")
    await joined(a, b)
    entries = dict(store.kept)
    await b.source.close()
    clock.advance(LIFE_S + MOST_OFF_S + 1)
    store.kept.update({name: (entry, clock.now() + 1_000) for name, (entry, _) in entries.items()})
    # That of this gateway is as good as missing.
    finding = await a.look()
    problem = "the time in the announcement of b is wrong: the clocks differ, or it was written again"
    assert (finding.found, finding.problem) == (1, problem)
    assert SEAL.read_announcement(store.kept[b"a"][0]).at == clock.wall()
    await live(clock, HOLD_S + 1, a)
    assert a.listed == {}


async def test_a_gateway_has_one_line_for_each_problem(
    store: MemoryStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = Gateway(store, clock, "a"), Gateway(store, clock, "b")
    lists: list[set[str]] = []
    found = FoundMembers(a.source, lambda members: lists.append({one.name for one in members}), clock)
    await found.start()
    assert repr(found) == "<FoundMembers in Redis at redis.test:6379: 1 announcement>"
    store.fault = "it cannot be reached"
    for _ in range(3):
        clock.advance(2)
        await pass_turns()
    assert found.problem == "it cannot be reached; this gateway serves alone"
    store.fault = ""
    await b.look()
    clock.advance(2)
    await pass_turns()
    assert repr(found) == "<FoundMembers in Redis at redis.test:6379: 2 announcements>"
    store.fault = "it cannot be reached"
    for _ in range(3):
        clock.advance(2)
        await pass_turns()
    line = "fleet.members_redis at redis.test:6379: "
    assert [one.message for one in caplog.records] == [
        f"{line}it cannot be reached; this gateway serves alone",
        f"{line}the announcements are usable again",
        f"{line}it cannot be reached; the present members stay",
    ]
    assert lists == [{"a"}, {"a", "b"}]
    # Another gateway has the name of this one.
    store.fault = ""
    caplog.clear()
    await Gateway(store, clock, "a", instance="n").look()
    for _ in range(3):
        clock.advance(2)
        await pass_turns()
    [conflict] = [one for one in caplog.records if "another gateway is announced as a" in one.message]
    assert conflict.levelname == "ERROR"
    await found.close()


def part(**values: str) -> FleetConfig:
    known = {"listen": ":4439", "members_redis": True, "redis": "redis://10.0.0.9", "secret": SECRET}
    return FleetConfig(**cast("Any", {**known, **values}))


def test_the_own_url_is_set_or_that_of_the_listener_or_that_of_the_machine() -> None:
    def source(kind: socket.AddressFamily) -> str:
        return "10.0.0.7" if kind == socket.AF_INET else "fd00::7"

    def nothing(kind: socket.AddressFamily) -> str:
        raise OSError

    def shown(config: FleetConfig, source: Callable[[socket.AddressFamily], str] = nothing) -> str:
        own = own_member(config, source)
        return f"{own.name} {own.url}"

    assert shown(part(name="a", url="http://gateway-a:1")) == "a http://gateway-a:1"
    assert shown(part(url="http://10.0.0.9:1")) == "10.0.0.9:1 http://10.0.0.9:1"
    assert shown(part(url="http://[fd00::9]")) == "[fd00::9]:80 http://[fd00::9]:80"
    assert shown(part(name="a", listen="10.0.0.8:5000")) == "a http://10.0.0.8:5000"
    assert shown(part(), source) == "10.0.0.7:4439 http://10.0.0.7:4439"
    assert shown(part(listen="[::]:4439"), source) == "[fd00::7]:4439 http://[fd00::7]:4439"
    with pytest.raises(ConfigError, match=r"^fleet\.url: is needed: this machine has no address"):
        own_member(part(), nothing)


# -- gateways and a real Redis


class AnnouncedSite(RedisSite):
    """A fleet whose members find each other in Redis."""

    def config(self, name: str, fleet: dict[str, Any] | None = None, **more: Any) -> GatewayConfig:
        parts = {"members": [], "members_redis": True, "url": self.urls[name], **(fleet or {})}
        return super().config(name, parts, **more)

    def others(self, name: str) -> set[str]:
        """The other members in a member's list."""
        return {one.name for one in self.fleet(name).members.values()}

    def found(self, name: str) -> FoundMembers:
        found = self.fleet(name).found
        assert found is not None
        return found

    async def kill(self, name: str, *, is_silent: bool = False) -> None:
        source = self.found(name).source
        assert isinstance(source, MembersInRedis)
        # A process that dies removes nothing.
        source.is_replaced = lambda: True
        await super().kill(name, is_silent=is_silent)

    async def announced(self) -> set[str]:
        """The names in Redis."""
        keys: list[Any] = await self.redis.client.keys("durable-gateway:*:member:*")
        return {key.decode().rpartition(":member:")[2] for key in keys}

    async def until_announced(self, *names: str) -> None:
        """Let time pass until each of these members sees that all of them are announced."""
        async with time_passing(self.clock, STEP_S):
            await eventually(lambda: {self.found(name).found for name in names} == {len(names)})
        assert await self.announced() == set(names)

    async def until_looked(self, count: int, *names: str) -> None:
        """Let time pass until these members have looked so many times more."""
        wanted = {name: self.found(name).looked + count for name in names}
        async with time_passing(self.clock, STEP_S):
            await eventually(lambda: all(self.found(name).looked >= looked for name, looked in wanted.items()))


@pytest.fixture
async def redis(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RedisServer]:
    monkeypatch.setattr(redis_members, "_MS_PER_S", 1_000 // SPEED)
    async with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
async def site(origin: RunningOrigin, redis: RedisServer, clock: ManualClock) -> AsyncIterator[AnnouncedSite]:
    """A fleet whose members the test starts."""
    found = AnnouncedSite(origin, clock, redis)
    yield found
    await found.close()


async def test_members_find_each_other_in_redis_and_keep_each_other_without_it(
    site: AnnouncedSite, caplog: pytest.LogCaptureFixture
) -> None:
    for name in NAMES:
        await site.start(name)
    await site.until_joined()
    await site.until_announced(*NAMES)
    place = f"127.0.0.1:{site.redis.port}"
    assert await site.lines("a") == [
        f"[+] members in Redis at {place}: 3 announcements",
        f"[+] purges and revocations in Redis at {place}",
    ]
    shown = await site.metrics("a")
    assert (shown["members_answered"], shown["members_announced"]) == (1.0, 3.0)
    # A member that comes is asked for its streams gradually, and knows the orders.
    await order(site, "a", "revoke", PRINCIPAL)
    await site.kill("c")
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: site.others("a") == {"b"} and site.others("b") == {"a"})
    await site.start("c")
    assert (site.others("c"), revocations(site, "c")) == ({"a", "b"}, [REVOKED])
    shares: set[float] = set()

    def is_back() -> bool:
        site.clock.advance(0.1)
        shares.update(one.share for one in site.fleet("a").members.values() if one.name == "c")
        return site.have_joined()

    await eventually(is_back)
    assert {0.1, 0.5, 1.0} <= {round(share, 1) for share in shares}
    # Redis is away, and comes back without its data.
    caplog.clear()
    site.redis.kill(keeps_data=False)
    await site.until_looked(3, *NAMES)
    line = "it cannot be reached; the present members stay"
    assert (await site.lines("b"))[0] == f"[-] members in Redis at {place}: {line}"
    assert [one.message for one in caplog.records].count(f"fleet.members_redis at {place}: {line}") == 3
    assert (await site.metrics("b"))["members_answered"] == 0.0
    await site.redis.start()
    await site.until_looked(3, *NAMES)
    assert not [one.message for one in caplog.records if "the list" in one.message]
    assert {name: site.reached(name) for name in NAMES} == {name: set(NAMES) - {name} for name in NAMES}
    # An orderly end removes the announcement at once.
    await site.until_announced(*NAMES)
    await site.stop("c")
    assert "c" not in await site.announced()
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: site.others("a") == {"b"} and site.others("b") == {"a"})


async def test_a_gateway_that_starts_without_redis_serves_alone_and_joins_later(site: AnnouncedSite) -> None:
    site.redis.kill()
    async with time_passing(site.clock, STEP_S):
        for name in "ab":
            await site.start(name)
    await site.members["a"].put("/s", b"x", Stream_Closed="true")
    assert (await site.members["b"].get("/s?offset=-1")).body == b"x"
    assert "it cannot be reached; this gateway serves alone" in (await site.lines("a"))[0]
    await site.redis.start()
    async with time_passing(site.clock, STEP_S):
        await eventually(site.have_joined)


async def test_a_start_does_not_wait_long_for_redis(site: AnnouncedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_FIRST_S", 0.05)
    async with gate(site.redis.port) as door:
        site.redis_url = door.url
        door.hold()
        async with time_passing(site.clock, STEP_S):
            await asyncio.wait_for(site.start("a"), 5)
        assert site.found("a").looked == 0
        door.release()
        await site.until_looked(1, "a")
        await eventually(lambda: site.found("a").has_answer)
        # It ends at once, too, while Redis hangs.
        door.hold()
        await asyncio.wait_for(site.stop("a"), 10)


async def test_a_user_needs_few_further_rights(site: AnnouncedSite) -> None:
    for rights in RIGHTS.findall(GUIDE.read_text(encoding="utf-8")):
        await site.redis.client.execute_command("ACL", "SETUSER", *rights.split())  # type: ignore[no-untyped-call]
    site.redis_url = site.redis.url.replace("//", "//gateway@")
    for name in "ab":
        await site.start(name, {"redis_password": "PASSWORD"})
    await site.until_joined()
    await site.until_looked(5, "a")
    assert (site.found("a").problem, site.by_redis("a").problem) == ("", "")
    await site.stop("b")
    assert "b" not in await site.announced()


async def test_foreign_names_in_redis_push_out_no_member(site: AnnouncedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_members, "MOST_NAMES", 8)
    await site.start("a")
    index = await site.redis.key("members")
    await site.redis.client.zadd(index, {f"x{number}": number for number in range(100)})
    await site.start("b")
    assert site.others("b") == {"a"}
    assert await site.redis.client.zcard(index) == 2, "names of long ago are gone"
    now, _ = await site.redis.client.time()
    await site.redis.client.zadd(index, {f"x{number}": now - 5 for number in range(100)})
    async with time_passing(site.clock, STEP_S):
        await eventually(site.have_joined)
    assert await site.redis.client.zcard(index) <= 8
    await site.redis.client.zadd(index, {f"y{number}": 1e15 for number in range(8)})
    await site.until_looked(4, "a", "b")
    assert [name for name in await site.redis.client.zrange(index, 0, -1) if name[:1] == b"y"] == []
    assert (site.found("a").found, site.found("b").found) == (2, 2)


@pytest.mark.parametrize("off_s", [-7_200.0, 7_200.0])
async def test_a_member_whose_clock_is_hours_off_removes_no_name_and_is_reported_once(
    redis: RedisServer, off_s: float
) -> None:
    stores = [RedisMembers(parse_redis_url(redis.url), SEAL.fleet) for _ in NAMES]
    clocks = ManualClock(), ManualClock(), ManualClock(wall=ManualClock().wall() + off_s)
    gateways = [Gateway(*one) for one in zip(stores, clocks, NAMES, strict=True)]
    problems: set[str] = set()
    for number in range(20):
        for one, own_clock in zip(gateways, clocks, strict=True):
            own_clock.advance(1)
            problem = (await one.look()).problem
            if number and one is not gateways[-1]:
                problems.add(problem)
    assert problems == {"the time in the announcement of c is wrong: the clocks differ, or it was written again"}
    for one in gateways:
        await one.source.close()


# -- members with workers


async def test_members_with_workers_find_each_other_and_a_new_worker_knows_them_without_redis(
    redis: RedisServer,
) -> None:
    async with crews("a", "b", fleet={"members": [], "members_redis": True, "redis": redis.url}) as fleet:
        redis.kill()
        gateway = fleet.members["b"].gateway
        gateway.kill(gateway.worker_pids()[0])
        await eventually(gateway.is_well, within_s=30)
        await fleet.until_joined()
        answer = await fleet.order("b", "/api/purge", {"stream": "/s"})
        assert answer == {
            "purged": 0, "members": [{"member": "a", "affected": 0, "why_not": ""}], "in_redis": False
        }  # fmt: skip
