"""One renewal for all live reads that a service's verdict allows, with a service of plain values."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.aio.timers import Entry, Wheel
from gateway.auth.forward_auth import ForwardVerdict
from gateway.auth.permissions import Action, Exact, Permission
from gateway.auth.remembered_verdicts import Allowed, LiveRenewal, Renewal, Verdicts
from gateway.auth.verdict import Principal
from gateway.server.verdict_renewal import MOST_KEPT_BYTES, KeptRenewals, VerdictRenewal

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


class Connection:
    """What answers live reads, one after the other."""

    outlasts_reads = True

    def __init__(self) -> None:
        self.verdict: Allowed | None = None
        self.renewing: LiveRenewal | None = None

    def end_read(self) -> None:
        """End the read in progress, as a channel does."""
        verdict, self.verdict = self.verdict, None
        assert verdict is not None
        assert verdict.renewing is not None
        if verdict.renewing is not self.renewing:
            verdict.renewing.end_read(self)

    def close(self) -> None:
        if self.verdict is not None:
            self.end_read()
        if self.renewing is not None:
            self.renewing.end_read(self)

    @property
    def stays(self) -> bool:
        return self.renewing is not None

    @property
    def reader(self) -> str:
        assert self.verdict is not None
        return self.verdict.principal.name


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
        self.kept = KeptRenewals()
        self.ended: list[object] = []
        self.services: Any = SimpleNamespace(
            clock=self.clock,
            wheel=self.wheel,
            verdicts=self.verdicts,
            find_verdict=lambda inquiry: None,
            await_answer=self.await_answer,
            waiting_of=lambda net: self.waiting[net],
        )
        self.allowed = self.allow()

    def allow(self) -> Allowed:
        """Make a verdict that is renewed."""
        allowed = self.verdicts.allow(self.principal("ada"))
        inquiry: Any = SimpleNamespace(rule=SimpleNamespace(timeout_s=2.0), size=1_000)
        allowed.renewing = VerdictRenewal(
            Renewal(inquiry, "/s"), self.services, self.kept, random.Random(0), self.ended.append
        )
        return allowed

    @property
    def renewal(self) -> VerdictRenewal:
        return renewal(self.allowed)

    def principal(self, name: str) -> Principal:
        return Principal(name, READ, self.clock.wall() + KEPT_S)

    def await_answer(self, inquiry: object, net: str, ready: Callable[[], None]) -> Waiting:
        self.asked_for.append(net)
        self.asked.append(Waiting(ready))
        return self.asked[-1]

    def verdict(self, name: str) -> ForwardVerdict:
        until = self.clock.wall() + KEPT_S
        return ForwardVerdict(self.principal(name), until, until)

    def begin(self, count: int = 1, net: str = "net") -> list[Connection]:
        """Begin reads of new connections whose verdict was found by a later request."""
        reads = [Connection() for _ in range(count)]
        for one in reads:
            self.renewal.stay(one, self.allowed, net)
        return reads


def renewal(allowed: Allowed) -> VerdictRenewal:
    assert isinstance(allowed.renewing, VerdictRenewal)
    return allowed.renewing


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
        assert {one.reader for one in reads} == {f"ada {round_}"}
        assert len({id(one.verdict) for one in reads}) == 1
    assert scene.ended == []
    # A read that begins by the remembered verdict gets the present one.
    assert scene.begin()[0].verdict is reads[0].verdict


def test_reads_that_follow_each_other_set_no_timer() -> None:
    scene = Scene()
    for _ in range(100):
        [one] = scene.begin()
        one.end_read()
        one.close()
    assert scene.wheel.added == 1
    scene.clock.advance(KEPT_S)
    assert (scene.asked, len(scene.wheel), repr(scene.renewal)) == ([], 0, "<VerdictRenewal 0 reads, resting>")
    assert repr(scene.kept) == "<KeptRenewals 0 renewals, 0 bytes>"


def test_a_connection_stays_with_a_kept_renewal_until_that_rests() -> None:
    scene = Scene()
    [one] = scene.begin()
    assert one.renewing is scene.renewal
    one.end_read()
    assert repr(scene.renewal) == "<VerdictRenewal 0 reads, scheduled>"
    # Its next read needs only the present verdict.
    one.verdict = scene.renewal.verdict
    scene.clock.advance(KEPT_S - 1.5)
    scene.asked[0].answer(scene.verdict("ada again"))
    assert one.reader == "ada again"
    one.end_read()
    scene.clock.advance(KEPT_S - 1.5)
    assert (len(scene.asked), repr(scene.renewal)) == (1, "<VerdictRenewal 0 reads, resting>")
    assert not one.stays


def test_a_connection_leaves_a_renewal_when_it_reads_with_another_or_closes() -> None:
    scene = Scene()
    other = scene.allow()
    [one], [left] = scene.begin(), scene.begin()
    one.end_read()
    renewal(other).stay(one, other, "net")
    assert (one.renewing, repr(renewal(other))) == (other.renewing, "<VerdictRenewal 1 reads, scheduled>")
    left.close()
    scene.clock.advance(KEPT_S - 1.5)
    # Only the other verdict has a read.
    assert (len(scene.asked), scene.asked_for) == (1, ["net"])
    assert repr(scene.renewal) == "<VerdictRenewal 0 reads, resting>"
    # A read that was found by no later request ends alone, and the connection stays.
    scene.renewal.begin_read(one, scene.allowed, "net")
    one.end_read()
    assert (repr(scene.renewal), one.renewing) == ("<VerdictRenewal 0 reads, resting>", other.renewing)


class Stream(Connection):
    """What answers one live read, as an HTTP/2 stream does."""

    outlasts_reads = False


@pytest.mark.parametrize("kind", [Connection, Stream])
def test_no_channel_that_is_over_is_kept(kind: type[Connection]) -> None:
    scene, waits = Scene(), Connection()
    scene.renewal.stay(waits, scene.allowed, "net")
    channel = kind()
    scene.renewal.stay(channel, scene.allowed, "net")
    channel.end_read()
    if kind is Connection:
        channel.close()
    is_alive = weakref.ref(channel)
    del channel
    assert is_alive() is None


def test_a_verdict_that_no_later_request_finds_has_no_timer_without_reads() -> None:
    scene = Scene()
    for _ in range(3):
        allowed, reads = scene.allow(), [Connection(), Connection()]
        for one in reads:
            renewal(allowed).begin_read(one, allowed, "net")
        for one in reads:
            assert len(scene.wheel) == 1
            one.end_read()
        assert (len(scene.wheel), repr(allowed.renewing)) == (0, "<VerdictRenewal 0 reads, resting>")
        # The end of the read may be stated twice.
        renewal(allowed).end_read(reads[0])
    assert repr(scene.kept) == "<KeptRenewals 0 renewals, 0 bytes>"


def test_renewals_are_kept_without_reads_up_to_a_bound() -> None:
    scene = Scene()
    most = MOST_KEPT_BYTES // 2_500
    every = [(scene.allow(), Connection()) for _ in range(most + 2)]
    for allowed, one in every:
        renewal(allowed).stay(one, allowed, "net")
    assert repr(scene.kept) == f"<KeptRenewals {most} renewals, {most * 2_500} bytes>"
    assert len(scene.wheel) == most + 2
    for _, one in every:
        one.end_read()
    # Beyond the bound, a renewal rests at the end of its reads.  The others need no timer for their next reads.
    states = [repr(allowed.renewing) for allowed, _ in every]
    assert states[most:] == 2 * ["<VerdictRenewal 0 reads, resting>"]
    assert states[:most] == most * ["<VerdictRenewal 0 reads, scheduled>"]
    assert (len(scene.wheel), scene.wheel.added) == (most, most + 2)
    allowed, one = every[-1]
    renewal(allowed).stay(one, allowed, "net")
    assert (one.renewing, len(scene.wheel)) == (None, most + 1)
    one.end_read()
    # Once a kept renewal rests, another may be kept.
    renewal(every[0][0]).rest()
    renewal(allowed).stay(one, allowed, "net")
    assert one.renewing is allowed.renewing
    one.end_read()
    scene.clock.advance(KEPT_S)
    assert (len(scene.wheel), repr(scene.kept)) == (0, "<KeptRenewals 0 renewals, 0 bytes>")


def test_a_renewal_is_kept_once_a_later_request_has_found_its_verdict() -> None:
    scene, reads = Scene(), [Connection(), Connection()]
    scene.renewal.begin_read(reads[0], scene.allowed, "net")
    assert scene.kept.cost == 0
    scene.renewal.stay(reads[1], scene.allowed, "net")
    assert scene.kept.cost == 2_500
    for read in reads:
        read.end_read()
    # A clock step does not rest a renewal that has reads.
    scene.renewal.stay(reads[0], scene.allowed, "net")
    scene.kept.rest_idle()
    assert (repr(scene.renewal), scene.kept.cost) == ("<VerdictRenewal 1 reads, scheduled>", 2_500)


def test_the_service_is_asked_for_the_network_with_the_fewest_waiting_requests() -> None:
    scene = Scene()
    scene.begin(net="stranger")
    scene.begin(net="other")
    for net in ("left", "idle"):
        [left] = scene.begin(net=net)
        left.end_read()
    scene.begin(net="closed")[0].close()
    scene.waiting.update({"stranger": 1_000, "other": 1})
    scene.clock.advance(KEPT_S - 1.5)
    assert scene.asked_for == ["other"]


def test_a_renewal_without_reads_leaves_its_question_and_begins_again_with_the_next_read() -> None:
    scene, one = Scene(), Connection()
    scene.renewal.begin_read(one, scene.allowed, "net")
    scene.clock.advance(KEPT_S - 1.5)
    one.end_read()
    assert scene.asked[0].has_left
    assert (len(scene.wheel), repr(scene.renewal)) == (0, "<VerdictRenewal 0 reads, resting>")
    [other] = scene.begin()
    scene.clock.advance(1.4)
    assert len(scene.asked) == 2
    scene.asked[1].answer(scene.verdict("ada again"))
    assert other.reader == "ada again"


def test_an_answer_for_no_read_renews_nothing() -> None:
    scene = Scene()
    [one] = scene.begin()
    scene.clock.advance(KEPT_S - 1.5)
    one.end_read()
    scene.asked[0].answer(scene.verdict("ada again"))
    assert (len(scene.wheel), repr(scene.renewal)) == (0, "<VerdictRenewal 0 reads, resting>")


def test_a_refusal_ends_all_reads_and_is_asked_for_again_for_a_later_one() -> None:
    scene = Scene()
    reads = scene.begin(3)
    scene.clock.advance(KEPT_S - 1.5)
    scene.asked[0].answer(ForwardVerdict(None, 0.0, 0.0))
    assert scene.ended == reads
    late = scene.begin()
    for one in reads:
        one.end_read()
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
    allowed.renewing = scene.renewal
    scene.renewal.begin_read(read := Connection(), allowed, "net")
    assert read.verdict is allowed
    scene.clock.advance(0.9)
    assert (len(scene.asked), scene.ended) == (1, [])
    scene.clock.advance(0.3)
    assert scene.ended == [read]


def test_idle_renewals_rest_after_a_clock_step_so_that_later_reads_have_the_right_time() -> None:
    scene = Scene()
    [read] = scene.begin()
    read.end_read()
    scene.clock.step_wall(KEPT_S / 2)
    scene.kept.rest_idle()
    assert (repr(scene.renewal), len(scene.wheel), scene.kept.cost) == ("<VerdictRenewal 0 reads, resting>", 0, 0)
    scene.begin()
    scene.clock.advance(KEPT_S / 2 - 1.5)
    assert len(scene.asked) == 1
