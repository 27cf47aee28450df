"""When a member is asked for streams, and when not, from the answers to probes and the failures of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.fleet import FleetConfig, MemberConfig
from gateway.engine.fleet import PROBE_S, Fleet
from gateway.engine.fleet_reachability import RAMP_PROBES
from gateway.errors import GatewayError, UpstreamTimeout, UpstreamUnreachable
from gateway.ops.admin.origins import member_lines
from gateway.protocol.fleet_headers import FLEET, MemberAnswer, MemberField
from gateway.protocol.member_session import ANOTHER_VERSION
from gateway.upstream.client import MemberClient
from gateway.upstream.failures import NotAMember
from tests.waiting import pass_turns


class Client:
    """Takes the probes, which the test answers."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.urls: dict[str, str] = {}

    def ask(self, requester: Any, call: object) -> Any:
        self.asked.append(requester)
        return self

    def use_members(self, urls: dict[str, str]) -> None:
        self.urls = urls

    def give_up(self) -> None:
        """Do nothing."""


class Head:
    """The head of an answer to a probe."""

    status = 204

    def __init__(self, answer: MemberAnswer) -> None:
        self.headers = CIMultiDict({FLEET: answer.rendered()})

    def close(self) -> None:
        """Do nothing."""


class Probes:
    """Member a of a fleet of two, with member b in the hands of the test."""

    def __init__(self) -> None:
        members = tuple(MemberConfig(name=name, url=f"http://{name}:1") for name in "ab")
        config = FleetConfig(name="a", listen="127.0.0.1:1", members=members, secret=cast(Any, "s" * 32))
        self.clock, self.client = ManualClock(), Client()
        self.fleet = Fleet(config, self.clock, Random(1), cast(MemberClient, self.client))
        self.member = self.fleet.members[1]
        self.cuts = 0
        self.fleet.on_silent = self.cut
        self.member.probe()

    def answer(self, *, is_leaving: bool = False, process: str = "0", config: str = "") -> None:
        """Answer the probe under way, and let the time of the next one come."""
        answer = MemberAnswer("b", process * 16, config or self.fleet.field.config, is_leaving)
        self.client.asked[-1].head_arrived(Head(answer))
        self.clock.advance(1.2 * PROBE_S)

    def cut(self, index: int) -> None:
        self.cuts += 1

    def fail(self, error: GatewayError) -> None:
        self.client.asked[-1].failed(error)

    def is_reached(self) -> bool:
        """Whether member b is asked for streams."""
        return self.fleet.owners.is_reached(1)


def test_a_member_is_asked_from_its_first_answer_until_it_cannot_be_reached() -> None:
    probes = Probes()
    assert not probes.is_reached()
    probes.answer()
    assert probes.is_reached()
    probes.fail(UpstreamUnreachable())
    assert not probes.is_reached()
    probes.clock.advance(1.2 * PROBE_S)
    probes.answer()
    probes.answer()
    assert probes.is_reached()
    probes.answer(is_leaving=True)
    assert (probes.is_reached(), probes.member.losses) == (False, 2)


def test_a_late_answer_is_waited_for_once_more() -> None:
    probes = Probes()
    probes.answer()
    probes.fail(UpstreamTimeout())
    assert (probes.is_reached(), len(probes.client.asked)) == (True, 3)
    probes.answer()
    for _ in range(2):
        assert probes.is_reached()
        probes.fail(UpstreamTimeout())
    assert not probes.is_reached()


def test_a_member_that_answers_only_probes_is_asked_ever_more_rarely() -> None:
    probes, counts = Probes(), []
    probes.answer()
    for _ in range(8):
        probes.member.lose()
        probes.member.lose()
        count = 0
        while not probes.is_reached():
            probes.answer()
            count += 1
        counts.append(count)
    assert counts[0] <= 3 < counts[2] < counts[4] < 40 <= min(counts[6:]) <= max(counts) <= 62, counts
    probes.clock.advance(60)
    probes.member.lose()
    probes.answer()
    probes.answer()
    assert probes.is_reached(), "after a while without failures it is as at first"


def test_a_member_that_is_silent_again_and_again_is_asked_ever_more_rarely() -> None:
    probes, counts = Probes(), []
    probes.answer()
    for _ in range(6):
        probes.fail(UpstreamTimeout())
        probes.fail(UpstreamTimeout())
        assert not probes.is_reached()
        count = 0
        while not probes.is_reached():
            probes.clock.advance(1.2 * PROBE_S)
            probes.answer()
            count += 1
        counts.append(count)
    assert counts[0] <= 2 < counts[2] < counts[4] < 30, counts
    assert probes.member.losses == 6


def test_a_member_that_returns_is_asked_for_a_growing_part_of_its_streams() -> None:
    probes = Probes()
    probes.fleet.has_started = True
    probes.answer()
    weights = [probes.member.weight]
    assert member_lines(probes.fleet) == "[+] member b at http://b:1: asked for 10% of its streams\n"
    for _ in range(RAMP_PROBES):
        probes.answer()
        weights.append(probes.member.weight)
    assert weights == [tenth / 10 for tenth in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10)]
    probes.member.lose()
    while not probes.is_reached():
        probes.answer()
    assert probes.member.weight == 0.1


def test_a_member_that_starts_asks_the_others_for_all_of_their_streams() -> None:
    probes = Probes()
    probes.answer()
    probes.fleet.has_started = True
    assert (probes.is_reached(), probes.member.weight) == (True, 1.0)
    assert member_lines(probes.fleet) == "[+] member b at http://b:1\n"
    probes.answer()
    assert probes.member.weight == 1.0


def test_a_failed_request_causes_a_probe_that_decides() -> None:
    probes = Probes()
    probes.answer()
    probes.clock.advance(0.01)
    for is_alive in (True, False):
        probes.member.answered()
        probes.client.asked[-1].head_arrived(Head(MemberAnswer("b", "0" * 16, probes.fleet.field.config, False)))
        count = len(probes.client.asked)
        for _ in range(3):
            probes.member.doubt()
        assert (probes.is_reached(), len(probes.client.asked)) == (True, count + 1)
        if is_alive:
            probes.answer()
        else:
            probes.fail(UpstreamUnreachable())
        assert probes.is_reached() == is_alive


def test_a_member_that_answers_probes_and_no_request_is_lost_at_a_later_failure() -> None:
    probes = Probes()
    probes.answer()
    # A burst of requests that were begun before the first probe may fail after it.
    for _ in range(6):
        probes.member.doubt()
        probes.answer()
        assert probes.is_reached()
    probes.answer()
    probes.member.doubt()
    assert (probes.is_reached(), probes.member.why_not) == (False, "a request has failed")


def listed(*names: str) -> list[MemberConfig]:
    """A list of members."""
    return [MemberConfig(name=name, url=f"http://{name}:1") for name in names]


def test_a_member_that_comes_is_probed_once_the_probes_have_begun() -> None:
    probes = Probes()
    probes.fleet.replace_members(listed("a", "b", "c"))
    assert (len(probes.client.asked), probes.client.urls) == (1, {"b": "http://b:1", "c": "http://c:1"})
    probes.fleet.stop()
    probes.fleet.replace_members(listed("a", "b", "c", "d"))
    assert len(probes.client.asked) == 1


def test_a_member_that_has_left_is_neither_probed_nor_lost() -> None:
    probes = Probes()
    probes.answer()
    probes.fleet.replace_members(listed("a"))
    assert (probes.is_reached(), probes.client.urls) == (False, {})
    count = len(probes.client.asked)
    probes.member.doubt()
    probes.member.lose()
    probes.clock.advance(60)
    assert (len(probes.client.asked), probes.member.losses) == (count, 0)
    assert member_lines(probes.fleet) == ""
    probes.fleet.replace_members(listed("a", "b"))
    (member,) = probes.fleet.members.values()
    assert (member is probes.member, member.why_not) == (False, "not asked yet")


async def test_a_member_that_drains_does_not_wait_for_one_that_leaves_the_list() -> None:
    probes = Probes()
    probes.answer()
    draining = asyncio.create_task(probes.fleet.until_told(20.0))
    await pass_turns()
    assert not draining.done()
    probes.fleet.replace_members(listed("a"))
    await pass_turns()
    assert draining.done()


def test_the_processes_that_have_left_the_list_are_remembered_within_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Probes().fleet
    names = [f"m{number}" for number in range(1_030)]

    def sender(name: str, process: str = "1") -> MemberField:
        return MemberField(name, process * 16, fleet.field.config)

    for name in names:
        fleet.replace_members(listed("a", name))
        fleet.met(name, sender(name).instance)
        assert not fleet.has_left(sender(name))
        fleet.probed(sender(f"unlisted {name}"))
    fleet.replace_members(listed("a"))
    assert [name for name in names if not fleet.has_left(sender(name))] == names[:6]
    assert not fleet.has_left(sender(names[-1], "2")), "another process of that name"
    lines = [record for record in caplog.records if "asks that is not in the list" in record.message]
    assert len(lines) == len(names)
    fleet.probed(sender(f"unlisted {names[-1]}"))
    fleet.probed(sender(f"unlisted {names[0]}"))
    assert len([record for record in caplog.records if "asks that is not in the list" in record.message]) == 1_031


def test_a_process_that_has_left_is_answered_again_once_its_url_is_listed_and_it_answers_there() -> None:
    probes = Probes()
    fleet = probes.fleet

    def left() -> list[str]:
        return [process for process in "012" if fleet.has_left(MemberField("b", process * 16, fleet.field.config))]

    probes.answer()
    fleet.replace_members(listed("a"))
    assert left() == ["0"]
    fleet.replace_members(listed("a", "b"))
    assert left() == ["0"]
    next(iter(fleet.members.values())).probe()
    probes.answer(process="1")
    assert left() == ["0"]
    probes.answer(process="0")
    assert left() == ["1"]


def test_a_process_that_was_replaced_is_answered_no_more() -> None:
    probes = Probes()
    fleet = probes.fleet

    def field(process: str) -> MemberField:
        return MemberField("b", process * 16, fleet.field.config)

    probes.answer()
    # The next process asks before it answers, from another URL, to which the list has not changed yet.
    fleet.probed(field("1"))
    # The process that is listed still answers.
    next(iter(fleet.members.values())).probe()
    probes.answer()
    assert (fleet.has_left(field("0")), fleet.has_left(field("1"))) == (False, False)
    fleet.replace_members([*listed("a"), MemberConfig(name="b", url="http://elsewhere:1")])
    next(iter(fleet.members.values())).probe()
    fleet.probed(field("0"))
    fleet.probed(field("1"))
    assert not fleet.has_left(field("0"))
    probes.answer(process="1", is_leaving=True)
    assert not fleet.has_left(field("0"))
    probes.answer(process="1")
    assert (fleet.has_left(field("0")), fleet.has_left(field("1"))) == (True, False)


def test_the_answers_of_a_member_that_is_late_are_cut_when_it_leaves_the_list() -> None:
    for is_late in (False, True):
        probes = Probes()
        probes.answer()
        if is_late:
            probes.fail(UpstreamTimeout())
        probes.cuts = 0
        probes.fleet.replace_members(listed("a"))
        assert probes.cuts == is_late


def not_a_member() -> GatewayError:
    """The failure of a probe that another server has answered."""
    error = UpstreamUnreachable()
    error.__cause__ = NotAMember(ANOTHER_VERSION, differs=True)
    return error


def test_answers_are_cut_once_their_process_sends_nothing_more() -> None:
    def cuts(*steps: Callable[[Probes], object], is_leaving: bool = False) -> int:
        probes = Probes()
        probes.answer()
        if is_leaving:
            probes.answer(is_leaving=True)
        probes.cuts = 0
        for step in steps:
            step(probes)
        return probes.cuts

    refused = [lambda probes: probes.fail(UpstreamUnreachable())]
    late = [lambda probes: probes.fail(UpstreamTimeout())]
    assert cuts(*refused) == cuts(*late * 2) == cuts(*late * 2, is_leaving=True) == 1
    assert cuts(*late) == cuts(*late, is_leaving=True) == cuts(*refused, is_leaving=True) == 0
    assert cuts(lambda probes: probes.fail(not_a_member())) == 1
    # A process that has another configuration since a reload goes on; one that has taken the place of another does not.
    assert cuts(lambda probes: probes.answer(config="f" * 16)) == 0
    assert cuts(lambda probes: probes.answer(config="f" * 16, process="1")) == 1
    assert cuts(lambda probes: probes.answer(process="1"), is_leaving=True) == 0


def test_a_member_differs_as_long_as_the_operator_has_to_change_something() -> None:
    probes, differed = Probes(), []
    probes.fail(not_a_member())
    differed.append(probes.member.has_differed)
    probes.clock.advance(1.2 * PROBE_S)
    for config in ("", "f" * 16, ""):
        probes.answer(config=config)
        differed.append(probes.member.has_differed)
        # It may be held off still when it has become equal.
        probes.member.lose()
    assert differed == [True, False, True, False]
