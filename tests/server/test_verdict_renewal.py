"""One renewal for all live reads that a service's verdict allows, with a service of plain values."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from gateway.aio.clock import ManualClock
from gateway.aio.timers import Entry, Wheel
from gateway.auth.forward_auth import ForwardVerdict
from gateway.auth.permissions import Action, Exact, Permission
from gateway.auth.remembered_verdicts import Allowed, Renewal, Verdicts
from gateway.auth.verdict import Principal
from gateway.server.verdict_renewal import MOST_SCHEDULED_BYTES, ScheduledRenewals, VerdictRenewal

KEPT_S = 100.0
READ = (Permission(frozenset({Action.READ}), Exact("/s")),)


class Waiting:
    """A question that is being asked."""

    def __init__(self, ready: Callable[[], None]) -> None:
        self.ready = ready
        self.heard: Any = None
        self.has_left = False

    def leave_queue(self) -> None:
        self.has_left = True

    def answer(self, verdict: ForwardVerdict | None) -> None:
        self.heard = SimpleNamespace(verdict=verdict)
        self.ready()


class Read:
    """A live read's channel."""

    verdict: Allowed


class CountingWheel(Wheel):
    """Counts the timers that are set."""

    added = 0

    def add(self, entry: Entry, delay_s: float, now: float | None = None) -> int:
        self.added += 1
        return super().add(entry, delay_s, now)


class Scene:
    """A verdict with a renewal, its service, and its live reads."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wheel = CountingWheel(self.clock)
        self.verdicts = Verdicts(self.clock.wall, self.clock.now)
        self.asked: list[Waiting] = []
        self.asked_for: list[str] = []
        self.waiting = Counter[str]()
        self.scheduled = ScheduledRenewals()
        self.ended: list[object] = []
        self.allowed = self.verdicts.allow(self.principal("ada"))
        self.services: Any = SimpleNamespace(
            clock=self.clock,
            wheel=self.wheel,
            verdicts=self.verdicts,
            find_verdict=lambda inquiry: None,
            await_answer=self.await_answer,
            waiting_of=lambda net: self.waiting[net],
        )
        self.allowed.renewing = self.renewal = self.another()

    def another(self) -> VerdictRenewal:
        """Make the renewal of another verdict."""
        inquiry: Any = SimpleNamespace(rule=SimpleNamespace(timeout_s=2.0), size=1_000)
        return VerdictRenewal(
            Renewal(inquiry, "/s"), self.services, self.scheduled, random.Random(0), self.ended.append
        )

    def principal(self, name: str) -> Principal:
        return Principal(name, READ, self.clock.wall() + KEPT_S)

    def await_answer(self, inquiry: object, net: str, ready: Callable[[], None]) -> Waiting:
        self.asked_for.append(net)
        self.asked.append(Waiting(ready))
        return self.asked[-1]

    def verdict(self, name: str) -> ForwardVerdict:
        until = self.clock.wall() + KEPT_S
        return ForwardVerdict(self.principal(name), until, until)

    def begin(self, count: int = 1, net: str = "net") -> list[Read]:
        reads = [Read() for _ in range(count)]
        for one in reads:
            one.verdict = self.renewal.begin_read(one, self.allowed, net, is_remembered=True)
        return reads


def test_all_reads_of_a_verdict_share_one_question_and_get_the_new_verdict() -> None:
    scene = Scene()
    reads = scene.begin(100)
    assert (len(scene.wheel), repr(scene.renewal)) == (1, "<VerdictRenewal 100 reads, scheduled>")
    for round_ in range(1, 4):
        scene.clock.advance(KEPT_S - 1.5)
        assert len(scene.asked) == round_
        late = scene.begin()
        scene.asked[-1].answer(scene.verdict(f"ada {round_}"))
        reads += late
        assert {one.verdict.principal.name for one in reads} == {f"ada {round_}"}
        assert len({id(one.verdict) for one in reads}) == 1
    assert scene.ended == []
    # A read that begins by the remembered verdict gets the present one.
    assert scene.begin()[0].verdict is reads[0].verdict


def test_reads_that_follow_each_other_set_no_timer() -> None:
    scene = Scene()
    for _ in range(100):
        [one] = scene.begin()
        scene.renewal.end_read(one)
    assert scene.wheel.added == 1
    scene.clock.advance(KEPT_S)
    assert (scene.asked, len(scene.wheel), repr(scene.renewal)) == ([], 0, "<VerdictRenewal 0 reads, resting>")
    assert repr(scene.scheduled) == "<ScheduledRenewals 0 renewals, 0 bytes>"


def test_a_verdict_that_no_later_request_finds_has_no_timer_without_reads() -> None:
    scene = Scene()
    for _ in range(3):
        renewal, reads = scene.another(), [Read(), Read()]
        for one in reads:
            renewal.begin_read(one, scene.allowed, "net")
        for one in reads:
            assert len(scene.wheel) == 1
            renewal.end_read(one)
        assert (len(scene.wheel), repr(renewal)) == (0, "<VerdictRenewal 0 reads, resting>")
        # The end of the read may be stated twice.
        renewal.end_read(reads[0])
    assert repr(scene.scheduled) == "<ScheduledRenewals 0 renewals, 0 bytes>"


def test_remembered_verdicts_without_reads_are_scheduled_up_to_a_bound() -> None:
    scene, reads = Scene(), [Read(), Read()]
    most = MOST_SCHEDULED_BYTES // 2_500
    every = [scene.another() for _ in range(most + 2)]
    for renewal in every:
        for read in reads:
            renewal.begin_read(read, scene.allowed, "net", is_remembered=True)
    assert repr(scene.scheduled) == f"<ScheduledRenewals {most + 2} renewals, {(most + 2) * 2_500} bytes>"
    for renewal in every:
        renewal.end_read(reads[0])
    assert len(scene.wheel) == most + 2
    for renewal in every:
        renewal.end_read(reads[1])
    # Beyond the bound, a renewal rests at the end of its reads.  The others need no timer for their next reads.
    states = [repr(renewal) for renewal in every]
    assert states[:2] == 2 * ["<VerdictRenewal 0 reads, resting>"]
    assert states[2:] == most * ["<VerdictRenewal 0 reads, scheduled>"]
    assert (len(scene.wheel), scene.wheel.added) == (most, most + 2)
    for renewal in every[1:]:
        renewal.begin_read(reads[0], scene.allowed, "net")
    assert (len(scene.wheel), scene.wheel.added) == (most + 1, most + 3)
    for renewal in every[1:]:
        renewal.end_read(reads[0])
    assert repr(scene.scheduled) == f"<ScheduledRenewals {most} renewals, {most * 2_500} bytes>"
    scene.clock.advance(KEPT_S)
    assert (len(scene.wheel), repr(scene.scheduled)) == (0, "<ScheduledRenewals 0 renewals, 0 bytes>")


def test_a_renewal_is_charged_once_a_later_request_has_found_its_verdict() -> None:
    scene, reads = Scene(), [Read(), Read()]
    renewal = scene.another()
    renewal.begin_read(reads[0], scene.allowed, "net")
    assert scene.scheduled.cost == 0
    renewal.begin_read(reads[1], scene.allowed, "net", is_remembered=True)
    assert scene.scheduled.cost == 2_500
    for read in reads:
        renewal.end_read(read)
    # A clock step does not rest a renewal that has reads.
    renewal.begin_read(reads[0], scene.allowed, "net", is_remembered=True)
    scene.scheduled.rest_idle()
    assert (repr(renewal), scene.scheduled.cost) == ("<VerdictRenewal 1 reads, scheduled>", 2_500)


def test_the_service_is_asked_for_the_network_with_the_fewest_waiting_requests() -> None:
    scene = Scene()
    scene.begin(net="stranger")
    scene.begin(net="other")
    [left] = scene.begin(net="left")
    scene.renewal.end_read(left)
    scene.waiting.update({"stranger": 1_000, "other": 1})
    scene.clock.advance(KEPT_S - 1.5)
    assert scene.asked_for == ["other"]


def test_a_renewal_without_reads_leaves_its_question_and_begins_again_with_the_next_read() -> None:
    scene = Scene()
    [one] = scene.begin()
    scene.clock.advance(KEPT_S - 1.5)
    scene.renewal.end_read(one)
    assert scene.asked[0].has_left
    assert (len(scene.wheel), repr(scene.renewal)) == (0, "<VerdictRenewal 0 reads, resting>")
    [other] = scene.begin()
    scene.clock.advance(1.4)
    assert len(scene.asked) == 2
    scene.asked[1].answer(scene.verdict("ada again"))
    assert other.verdict.principal.name == "ada again"


def test_a_refusal_ends_all_reads_and_is_asked_for_again_for_a_later_one() -> None:
    scene = Scene()
    reads = scene.begin(3)
    scene.clock.advance(KEPT_S - 1.5)
    scene.asked[0].answer(ForwardVerdict(None, 0.0, 0.0))
    assert scene.ended == reads
    late = scene.begin()
    for one in reads:
        scene.renewal.end_read(one)
    scene.clock.advance(1.4)
    assert len(scene.asked) == 2
    # No answer comes in time.
    scene.clock.advance(1)
    assert scene.ended == [*reads, *late]


def test_a_step_of_the_wall_clock_moves_the_question() -> None:
    scene = Scene()
    scene.begin()
    scene.clock.step_wall(KEPT_S / 2)
    scene.renewal.clock_stepped()
    scene.clock.advance(KEPT_S / 2 - 1.5)
    assert len(scene.asked) == 1


def test_a_verdict_that_is_not_kept_lasts_a_second() -> None:
    scene = Scene()
    allowed = Allowed(scene.principal("ada")._replace(expires_at=scene.clock.wall()), 0)
    assert scene.renewal.begin_read(read := Read(), allowed, "net") is allowed
    scene.clock.advance(0.9)
    assert (len(scene.asked), scene.ended) == (1, [])
    scene.clock.advance(0.3)
    assert scene.ended == [read]


def test_idle_renewals_rest_after_a_clock_step_so_that_later_reads_have_the_right_time() -> None:
    scene = Scene()
    [read] = scene.begin()
    scene.renewal.end_read(read)
    scene.clock.step_wall(KEPT_S / 2)
    scene.scheduled.rest_idle()
    assert (repr(scene.renewal), len(scene.wheel), scene.scheduled.cost) == ("<VerdictRenewal 0 reads, resting>", 0, 0)
    scene.begin()
    scene.clock.advance(KEPT_S / 2 - 1.5)
    assert len(scene.asked) == 1
