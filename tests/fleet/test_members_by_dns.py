"""Gateways that find each other by the addresses of a name."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.addresses import Address
from gateway.config.errors import ConfigError
from gateway.config.fleet import MOST_MEMBERS, FleetConfig, MemberConfig
from gateway.config.gateway import GatewayConfig
from gateway.engine import fleet_dns
from gateway.engine.fleet_discovery import _FIRST_S, FoundMembers, KeptMembers
from gateway.engine.fleet_dns import MembersInDns, listed_members, places_at, problem_of
from gateway.engine.fleet_own_address import own_address, source_address
from gateway.origin.app import RunningOrigin
from gateway.upstream.dns_records import AddressRecords, address_records
from tests.fleet.dns_server import NAME, DnsServer, dns_server
from tests.fleet.site import SECRET, Site
from tests.fleet.test_members import STEP_S, Verifier
from tests.fleet.test_orders import PRINCIPAL, REVOKED, order, revocations
from tests.waiting import eventually, pass_turns, time_passing

HOSTS: Final = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
FAULTS: Final = {
    "refused": "no DNS server has given a valid answer",
    "servfail": "no DNS server has given a valid answer",
    "silent": "no DNS server has answered in time",
    "garbage": "no DNS server has answered in time",
}


class DnsSite(Site):
    """A fleet at one port of several addresses.  Members are named by their addresses."""

    def __init__(self, origin: RunningOrigin, clock: ManualClock, dns: DnsServer, port: int) -> None:
        super().__init__(origin, clock, ())
        self.dns = dns
        self.port = port
        self.names = tuple(f"{host}:{port}" for host in HOSTS)
        self.urls = {name: f"http://{name}" for name in self.names}

    def config(self, name: str, fleet: dict[str, Any] | None = None, **more: Any) -> GatewayConfig:
        parts = {"name": "", "members": [], "members_dns": f"{NAME}:{self.port}", **(fleet or {})}
        return super().config(name, parts, **{"node_name": "at-" + name.partition(":")[0], **more})

    async def lines(self, name: str) -> str:
        """The lines of `/readyz?verbose` about the fleet."""
        edge = self.members[name]
        answer = await edge.send_to(edge.gateway.admin_url, "GET", "/readyz?verbose", {"Host": "127.0.0.1"})
        return "".join(f"{line}\n" for line in answer.body.decode().splitlines() if "member" in line)

    def others(self, name: str) -> set[str]:
        """The other members in a member's list."""
        return {one.name for one in self.fleet(name).members.values()}

    def by_dns(self, name: str) -> FoundMembers:
        found = self.fleet(name).found
        assert found is not None
        return found

    async def metrics(self, name: str) -> dict[str, float]:
        """The metrics of the look-ups."""
        edge = self.members[name]
        answer = await edge.send_to(edge.gateway.admin_url, "GET", "/metrics", {"Host": "127.0.0.1"})
        prefix = "durable_gateway_fleet_dns_"
        lines = [line.removeprefix(prefix) for line in answer.body.decode().splitlines() if line.startswith(prefix)]
        return {line.partition(" ")[0]: float(line.partition(" ")[2]) for line in lines}

    async def until_looked_up(self, name: str, count: int = 1) -> None:
        """Let time pass until the member has looked up the name so many times."""
        by_dns = self.by_dns(name)
        wanted = by_dns.looked + count
        async with time_passing(self.clock, 10 * STEP_S):
            await eventually(lambda: by_dns.looked >= wanted)


@pytest.fixture
async def dns(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DnsServer]:
    async with dns_server(monkeypatch) as server:
        yield server


@pytest.fixture
async def site(origin: RunningOrigin, clock: ManualClock, dns: DnsServer) -> AsyncIterator[DnsSite]:
    """A fleet whose members the test starts, at a port that is free at all addresses."""
    with ExitStack() as kept:
        port = 0
        for host in HOSTS:
            one = kept.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((host, port))
            port = one.getsockname()[1]
        found = DnsSite(origin, clock, dns, port)
        yield found
        await found.close()


async def test_members_come_and_go_with_the_addresses_of_the_name(site: DnsSite) -> None:
    a, b, c = site.names
    site.dns.addresses = list(HOSTS[:2])
    for name in (a, b):
        await site.start(name)
    await site.until_joined()
    assert set(site.dns.asked) == {"A"}
    await site.members[a].put("/s", b"0 ")
    readers = [Verifier(await site.members[name].begin("/s?offset=-1&live=sse")) for name in (a, b)]
    await eventually(lambda: {reader.body for reader in readers} == {"0 "})
    await eventually(lambda: site.counters.parked == 1)
    site.dns.addresses = list(HOSTS)
    await site.start(c)
    async with time_passing(site.clock, STEP_S):
        await eventually(site.have_joined)
        readers.append(Verifier(await site.members[c].begin("/s?offset=-1&live=sse")))
        await eventually(lambda: site.counters.parked == 1)
        assert (await site.members[c].post("/s", b"1 ")).status == 204
        await eventually(lambda: {reader.body for reader in readers} == {"0 1 "})
        site.dns.addresses = [HOSTS[0], HOSTS[2]]
        await site.kill(b)
        await eventually(lambda: site.others(a) == {c} and site.others(c) == {a})
        assert (await site.members[a].post("/s", b"2 ")).status == 204
        await eventually(lambda: {reader.body for reader in (readers[0], readers[2])} == {"0 1 2 "})
    assert await site.lines(a) == f"[+] members at {NAME}: 2 addresses\n[+] member {c} at http://{c}\n"
    assert not any(reader.is_over for reader in (readers[0], readers[2]))
    for reader in readers:
        await reader.leave()


async def test_a_member_that_answers_probes_stays_though_an_answer_of_dns_lacks_it(site: DnsSite) -> None:
    a, b, c = site.names
    site.dns.addresses = list(HOSTS)
    for name in site.names:
        await site.start(name)
    await site.until_joined()
    site.dns.addresses = [HOSTS[0]]
    await site.until_looked_up(a, 2)
    assert site.reached(a) == {b, c}
    answer = await order(site, a, "revoke", PRINCIPAL)
    assert {one["member"]: one["why_not"] for one in answer["members"]} == {b: "", c: ""}
    assert revocations(site, b) == revocations(site, c) == [REVOKED]
    await site.kill(c)
    site.members[b].gateway.drain(600)
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: site.others(a) == {b})
        await eventually(lambda: "it is leaving" in repr(site.fleet(a)))
    # A member that drains may still have readers, so it has to carry out purges and revocations too.
    assert site.others(a) == {b}
    site.members[b].gateway.undo_drain()
    site.dns.addresses = list(HOSTS[:2])
    await site.until_looked_up(a)
    await site.until_joined()


async def test_a_member_whose_configuration_differs_stays_while_it_answers(site: DnsSite) -> None:
    a, b, _ = site.names
    site.dns.addresses = list(HOSTS[:2])
    await site.start(a)
    await site.start(b, trust_s=7.0)
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: "configuration of routes or origins differs" in repr(site.fleet(a)))
    site.dns.addresses = [HOSTS[0]]
    await site.until_looked_up(a, 2)
    assert site.others(a) == {b}


@pytest.mark.parametrize("fault", [*FAULTS, "empty", "absent"])
async def test_a_look_up_that_fails_keeps_the_members_and_has_one_line(
    site: DnsSite, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fleet_dns, "_LOOK_UP_S", 0.2)
    a, b, _ = site.names
    site.dns.addresses = list(HOSTS[:2])
    for name in (a, b):
        await site.start(name)
    await site.until_joined()
    match fault:
        case "empty":
            site.dns.addresses, why = [], "the name has no such address"
        case "absent":
            monkeypatch.setattr("tests.fleet.dns_server.NAME", "another.test")
            why = "the name does not exist"
        case _:
            site.dns.fault, why = fault, FAULTS[fault]
    caplog.clear()
    await site.until_looked_up(a, 3)
    assert site.reached(a) == {b}
    lines = [one.message for one in caplog.records if one.message.startswith("fleet.members_dns") and one.levelno >= 30]
    assert lines.count(line := f"fleet.members_dns = {NAME}: {why}; the present members stay") in (1, 2)
    assert set(lines) == {line}
    assert (await site.lines(a)).startswith(
        f"[-] members at {NAME}: {why}; the present members stay\n[+] member {b} at "
    )
    assert await site.metrics(a) == {"answered": 0.0, "addresses": 2.0}
    monkeypatch.setattr("tests.fleet.dns_server.NAME", NAME)
    site.dns.fault, site.dns.addresses = "", list(HOSTS[:2])
    await site.until_looked_up(a)
    assert (await site.lines(a)).startswith(f"[+] members at {NAME}: 2 addresses\n")
    assert await site.metrics(a) == {"answered": 1.0, "addresses": 2.0}
    assert f"fleet.members_dns = {NAME}: the addresses are usable again" in caplog.text


async def test_a_gateway_that_starts_without_dns_serves_and_joins_later(
    site: DnsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = site.names
    site.dns.fault = "servfail"
    async with time_passing(site.clock, STEP_S):
        for name in (a, b):
            await site.start(name)
    why = "no DNS server has given a valid answer; this gateway serves alone"
    assert await site.lines(a) == f"[-] members at {NAME}: {why}\n"
    assert (await site.metrics(a)) == {"answered": 0.0, "addresses": 0.0}
    await site.members[a].put("/s", b"x", Stream_Closed="true")
    assert (await site.members[b].get("/s?offset=-1")).body == b"x"
    answer = await order(site, a, "revoke", PRINCIPAL)
    not_known = f"the other members are not known (at {NAME}: {why})"
    assert answer["members"] == [{"member": a, "affected": None, "why_not": not_known}]
    assert (site.reached(a), revocations(site, b)) == (set(), [])
    site.dns.fault, site.dns.addresses = "", list(HOSTS[:2])
    async with time_passing(site.clock, STEP_S):
        await eventually(site.have_joined)
        await eventually(lambda: revocations(site, b) == [REVOKED])
    answer = await order(site, a, "revoke", PRINCIPAL)
    assert answer["members"] == [{"member": b, "affected": 0, "why_not": ""}]


async def test_a_start_has_the_members_though_a_datagram_was_lost(site: DnsSite) -> None:
    a, b, _ = site.names
    site.dns.addresses = list(HOSTS[:2])
    await site.start(a)
    await order(site, a, "revoke", PRINCIPAL)
    site.dns.lost = 1
    await site.start(b)
    assert (site.dns.lost, site.others(b), revocations(site, b)) == (0, {a}, [REVOKED])


async def test_a_member_has_the_orders_before_the_others_have_its_address(site: DnsSite) -> None:
    a, b, _ = site.names
    site.dns.addresses = [HOSTS[0]]
    await site.start(a)
    await order(site, a, "revoke", PRINCIPAL)
    site.dns.addresses = list(HOSTS[:2])
    await site.start(b)
    assert (site.reached(a), revocations(site, b)) == (set(), [REVOKED])


async def test_of_too_many_addresses_the_first_are_members(site: DnsSite, caplog: pytest.LogCaptureFixture) -> None:
    a, b, _ = site.names
    site.dns.addresses = [*(f"127.1.0.{number}" for number in range(1, 201)), *HOSTS[:2]]
    for name in (a, b):
        await site.start(name)
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: site.reached(a) == {b} and site.reached(b) == {a})
    assert len(site.fleet(a).members) == MOST_MEMBERS - 1
    line = f"fleet.members_dns = {NAME}: there are too many addresses: only {MOST_MEMBERS} are members"
    await site.until_looked_up(a)
    assert [one.message for one in caplog.records].count(line) == 2, "once at each member"


async def test_a_reload_does_not_change_the_members(site: DnsSite) -> None:
    a, b, _ = site.names
    site.dns.addresses = list(HOSTS[:2])
    for name in (a, b):
        await site.start(name)
    await site.until_joined()
    site.reloaded = {"trust_s": 7.0}
    await site.members[a].gateway.reload()
    assert [one.name for one in site.fleet(a).members.values()] == [b]


async def test_a_gateway_whose_address_is_not_among_three_answers_in_a_row_says_so(site: DnsSite) -> None:
    a, b, _ = site.names
    site.dns.addresses = [HOSTS[1]]
    await site.start(b)
    await site.start(a)
    for _ in range(2):
        assert (await site.lines(a)).startswith(f"[+] members at {NAME}: 1 address\n")
        await site.until_looked_up(a)
    line = f"[-] members at {NAME}: {a} is not among the addresses: fleet.name may"
    assert (await site.lines(a)).startswith(line)
    assert [one.name for one in site.fleet(a).members.values()] == [b]
    site.dns.addresses = list(HOSTS[:2])
    await site.until_looked_up(a)
    site.dns.addresses = [HOSTS[1]]
    await site.until_looked_up(a)
    assert not (await site.lines(a)).startswith(line)


# -- the time of the next look-up


class LookUps:
    """The look-ups of one gateway, whose answers the test gives."""

    def __init__(self, kept: KeptMembers | None = None) -> None:
        self.clock = ManualClock()
        self.answers: list[AddressRecords | OSError] = []
        self.lists: list[list[str]] = []
        self.asked = 0
        self.error: Exception | None = None
        """The exception that taking a list raises."""
        source = MembersInDns(NAME, Address("10.0.0.1", 1), self.look_up, lambda: ())
        self.by_dns = FoundMembers(source, self.take, self.clock, kept)

    async def look_up(self, name: str, *, is_v6: bool, within_s: float) -> AddressRecords:
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    def take(self, members: list[MemberConfig]) -> None:
        if self.error is not None:
            raise self.error
        self.lists.append([one.name for one in members])

    async def pause(self) -> float:
        """The seconds until the next look-up, to a tenth."""
        before, tenths = self.by_dns.looked, 0
        self.answers.append(OSError("none"))
        while self.answers:
            self.clock.advance(0.1)
            tenths += 1
            await asyncio.sleep(0)
        await eventually(lambda: self.by_dns.looked > before)
        return tenths / 10


@pytest.mark.parametrize(("ttl_s", "pause_s"), [(0.0, 1.0), (1.0, 1.0), (7.0, 7.0), (60.0, 60.0), (86_400.0, 60.0)])
async def test_the_name_is_looked_again_when_its_records_expire_within_bounds(ttl_s: float, pause_s: float) -> None:
    look_ups = LookUps()
    look_ups.answers = [AddressRecords(("10.0.0.2",), ttl_s)]
    await look_ups.by_dns.start()
    assert await look_ups.pause() == pytest.approx(pause_s, abs=0.11)
    assert await look_ups.pause() == pytest.approx(5.0, abs=0.11)
    assert look_ups.lists == [["10.0.0.1:1", "10.0.0.2:1"]]
    await look_ups.by_dns.close()
    look_ups.clock.advance(100)
    await pass_turns()
    assert (look_ups.by_dns.looked, look_ups.asked) == (3, 3)


async def test_an_unexpected_exception_ends_neither_the_start_nor_the_look_ups(
    caplog: pytest.LogCaptureFixture,
) -> None:
    look_ups = LookUps()
    look_ups.error = ValueError("no such member")
    look_ups.answers = [AddressRecords(("10.0.0.2",), 60.0)] * 2
    starting = asyncio.create_task(look_ups.by_dns.start())
    await pass_turns()
    line = f"fleet.members_dns = {NAME}: the addresses could not be used (ValueError)"
    assert (look_ups.by_dns.looked, look_ups.by_dns.has_answer) == (1, False)
    look_ups.clock.advance(_FIRST_S)
    await starting
    assert (look_ups.asked, look_ups.by_dns.looked) == (2, 2)
    assert [one.message for one in caplog.records if "ValueError" in one.message] == [
        f"{line}; this gateway serves alone"
    ]
    look_ups.error = None
    look_ups.answers.append(AddressRecords(("10.0.0.2",), 60.0))
    look_ups.clock.advance(5.01)
    await pass_turns()
    assert look_ups.by_dns.has_answer
    await look_ups.by_dns.close()


async def test_a_start_waits_until_a_look_has_succeeded() -> None:
    look_ups = LookUps()
    look_ups.answers = [OSError("none"), OSError("none"), AddressRecords(("10.0.0.2",), 60.0)]
    starting = asyncio.create_task(look_ups.by_dns.start())
    for looked in (1, 2):
        await pass_turns()
        assert (look_ups.by_dns.looked, starting.done()) == (looked, False)
        look_ups.clock.advance(0.5)
    await starting
    assert look_ups.lists == [["10.0.0.1:1", "10.0.0.2:1"]]
    await look_ups.by_dns.close()


async def test_a_start_waits_three_seconds_for_a_look_that_succeeds() -> None:
    look_ups = LookUps()
    look_ups.answers = [OSError("none") for _ in range(100)]
    starting = asyncio.create_task(look_ups.by_dns.start())
    for _ in range(29):
        await pass_turns()
        assert not starting.done()
        look_ups.clock.advance(0.1)
    look_ups.clock.advance(0.11)
    await starting
    looked = look_ups.by_dns.looked
    assert looked == pytest.approx(_FIRST_S / 0.5, abs=1)
    # From then on, looks are as seldom as ever.
    for _ in range(100):
        look_ups.clock.advance(0.1)
        await pass_turns()
    assert look_ups.by_dns.looked - looked <= 3
    await look_ups.by_dns.close()


async def test_a_worker_that_starts_later_has_the_list_of_the_others(tmp_path: Path) -> None:
    first, later, upgraded = tmp_path / "first", tmp_path / "later", KeptMembers(tmp_path, 0, [tmp_path / "first"])
    for folder in (first, later):
        folder.mkdir()
    look_ups = LookUps(KeptMembers(first, 0))
    look_ups.answers = [AddressRecords(("10.0.0.2",), 60.0)]
    await look_ups.by_dns.start()
    await look_ups.by_dns.close()
    found = ["10.0.0.1:1", "10.0.0.2:1"]
    for kept in (KeptMembers(first, 1), upgraded):
        look_ups = LookUps(kept)
        look_ups.answers = [OSError("none")]
        starting = asyncio.create_task(look_ups.by_dns.start())
        await pass_turns()
        assert starting.done()
        assert (look_ups.lists, look_ups.by_dns.why_unknown) == ([found], "")
        assert look_ups.by_dns.problem == "none; the present members stay"
        await look_ups.by_dns.close()
    # A list of other places, and what is no list, is not used.
    assert KeptMembers(first, 1).read("fleet.members_dns = other.test") == []
    assert KeptMembers(later, 1).read(look_ups.by_dns.source.setting) == []
    (first / "members.json").write_bytes(b"[")
    assert KeptMembers(first, 1).read(look_ups.by_dns.source.setting) == []


@pytest.mark.parametrize("answers", [True, False])
async def test_the_end_waits_a_moment_for_a_look_up_under_way(answers: bool) -> None:
    outcomes: list[str] = []
    begun, gate = asyncio.Event(), asyncio.Event()

    async def look_up(name: str, *, is_v6: bool, within_s: float) -> AddressRecords:
        begun.set()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            outcomes.append("cancelled")
            raise
        outcomes.append("answered")
        return AddressRecords((), 1.0)

    clock = ManualClock()
    source = MembersInDns(NAME, Address("10.0.0.1", 1), look_up, lambda: ())
    by_dns = FoundMembers(source, lambda members: None, clock)
    starting = asyncio.create_task(by_dns.start())
    await begun.wait()
    closing = asyncio.create_task(by_dns.close())
    await pass_turns()
    assert not closing.done()
    if answers:
        gate.set()
    await closing
    await asyncio.gather(starting, return_exceptions=True)
    begun.clear()
    clock.advance(100)
    await pass_turns()
    assert (outcomes, begun.is_set()) == (["answered" if answers else "cancelled"], False)


# -- addresses


async def test_a_member_with_an_address_of_ipv6_asks_for_such_addresses(dns: DnsServer) -> None:
    dns.addresses, dns.ttl_s = ["10.0.0.1", "fd00::2", "fd00:0:0::1"], 9
    assert await address_records(NAME, is_v6=False, within_s=5) == (("10.0.0.1",), 9.0)
    found = await address_records(f"{NAME}.", is_v6=True, within_s=5)
    assert (set(found.addresses), found.ttl_s) == ({"fd00::1", "fd00::2"}, 9.0)
    assert dns.asked == ["A", "AAAA"]
    own, other = Address("fd00::2", 1), Address("fd00::1", 1)
    places = places_at(("fd00:0::2", "fd00::1", "fd00::2"), 1)
    assert places == [other, own]
    assert [(one.name, one.url) for one in listed_members(places, own)] == [
        ("[fd00::2]:1", "http://[fd00::2]:1"),
        ("[fd00::1]:1", "http://[fd00::1]:1"),
    ]


async def test_a_silent_server_costs_no_look_up_with_search_domains(dns: DnsServer) -> None:
    dns.addresses, dns.search = ["10.0.0.1"], ["ns.svc.test", "svc.test", "cluster.test", "internal"]
    dns.nameservers = ["127.0.0.2", "127.0.0.1"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.2", dns.port))
        for name in (NAME, f"{NAME}."):
            assert (await address_records(name, is_v6=False, within_s=5)).addresses == ("10.0.0.1",)


async def test_each_look_up_uses_the_present_servers_of_the_system(dns: DnsServer) -> None:
    dns.addresses, dns.nameservers = ["10.0.0.1"], ["127.0.0.2"]
    with pytest.raises(OSError, match="no DNS server has"):
        await address_records(NAME, is_v6=False, within_s=0.2)
    dns.nameservers = ["127.0.0.1"]
    assert (await address_records(NAME, is_v6=False, within_s=5)).addresses == ("10.0.0.1",)


def test_all_members_use_the_same_of_too_many_addresses() -> None:
    addresses = [f"10.0.{high}.{low}" for high in range(2) for low in range(100, 0, -1)]
    first = [f"10.0.0.{low}:1" for low in range(1, MOST_MEMBERS + 1)]
    for own, given in ((Address("10.0.0.9", 1), addresses), (Address("10.0.0.10", 1), addresses[::-1] * 2)):
        members = listed_members(places_at(given, 1), own)
        assert members[0].name == str(own)
        assert sorted(one.name for one in members) == sorted(first)
    # This gateway has the others in its list, and they do not have this one.
    members = listed_members(places_at(addresses, 1), Address("10.0.1.9", 1))
    assert [one.name for one in members] == ["10.0.1.9:1", *first[:-1]]


def test_addresses_push_out_no_member_that_answers() -> None:
    own, forged = Address("10.0.9.1", 1), places_at((f"10.0.0.{low}" for low in range(1, 201)), 1)
    answering = places_at((f"10.0.9.{low}" for low in range(2, MOST_MEMBERS + 1)), 1)
    for present in (answering, answering[:10]):
        names = [one.name for one in listed_members([*forged, own, answering[0]], own, present)]
        assert names[: len(present) + 1] == [str(own), *map(str, present)]
        assert (len(names), len(set(names))) == (MOST_MEMBERS, MOST_MEMBERS)
    assert [one.name for one in listed_members([own], own, answering[:2])] == ["10.0.9.1:1", "10.0.9.2:1", "10.0.9.3:1"]


def test_each_problem_of_an_answer_is_told() -> None:
    own, many = Address("10.0.9.1", 1), places_at((f"10.0.0.{low}" for low in range(1, 201)), 1)
    too_many = f"there are too many addresses: only {MOST_MEMBERS} are members"
    assert problem_of(many[:1], own, (), answers_without_own=2) == ""
    assert problem_of(many, own, (), answers_without_own=1) == too_many
    alone = problem_of(many[:1], own, (), answers_without_own=3)
    assert alone.startswith("10.0.9.1:1 is not among the addresses: fleet.name may")
    assert problem_of(many, own, (), answers_without_own=3) == f"{alone}; {too_many}"
    assert problem_of([*many[: MOST_MEMBERS - 1], own], own, many[:3], answers_without_own=0) == ""


def part(**values: str) -> FleetConfig:
    known = {"listen": ":4439", "members_dns": f"{NAME}:4439", "secret": SECRET}
    return FleetConfig(**cast("Any", {**known, **values}))


def test_the_own_address_is_the_name_or_that_of_the_listener_or_that_of_the_machine() -> None:
    def source(kind: socket.AddressFamily) -> str:
        return "10.0.0.7" if kind == socket.AF_INET else "fd00::7"

    def only(wanted: socket.AddressFamily) -> Callable[[socket.AddressFamily], str]:
        def found(kind: socket.AddressFamily) -> str:
            if kind != wanted:
                raise OSError
            return source(kind)

        return found

    def nothing(kind: socket.AddressFamily) -> str:
        raise OSError

    assert str(own_address(part(name="10.0.0.9:4439"), nothing)) == "10.0.0.9:4439"
    assert str(own_address(part(name="[fd00:0::9]:4439"), nothing)) == "[fd00::9]:4439"
    assert str(own_address(part(name="10.0.0.9"), nothing)) == "10.0.0.9:4439"
    assert str(own_address(part(name="fd00:0::9"), nothing)) == "[fd00::9]:4439"
    assert str(own_address(part(listen="10.0.0.8:5000"), nothing)) == "10.0.0.8:4439"
    assert str(own_address(part(listen="0.0.0.0:4439"), source)) == str(own_address(part(), source)) == "10.0.0.7:4439"
    assert str(own_address(part(listen="[::]:4439"), source)) == "[fd00::7]:4439"
    assert str(own_address(part(), only(socket.AF_INET6))) == "[fd00::7]:4439"
    # A listener at [::] accepts no connections by IPv4, and one at 0.0.0.0 none by IPv6.
    for listen, kind in (("[::]:4439", socket.AF_INET), ("0.0.0.0:4439", socket.AF_INET6)):
        with pytest.raises(ConfigError, match=r"^fleet\.name: is needed: this machine has no address"):
            own_address(part(listen=listen), only(kind))
    with pytest.raises(ConfigError, match=r"^fleet\.name: is needed: this machine has no address"):
        own_address(part(), nothing)


def test_the_source_address_is_an_address_of_this_machine() -> None:
    """A machine that reaches no other networks has none, which is said by OSError."""
    try:
        address = source_address(socket.AF_INET)
    except OSError as error:
        assert error.errno == errno.ENETUNREACH
    else:
        with socket.socket() as own:
            own.bind((address, 0))
