"""Revocations at their bound: none that is in effect is dropped."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.aio.clock import ManualClock
from gateway.auth import remembered_verdicts
from gateway.auth.remembered_verdicts import Revocation, RevocationsFull, Verdicts

MOST = 3


class Revocations(RuleBasedStateMachine):
    """A table with room for three revocations, on a manual clock."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(remembered_verdicts, "MOST_REVOCATIONS", MOST)
        self.clock = ManualClock()
        self.verdicts = Verdicts(self.clock.wall, self.clock.now)
        self.until: dict[str, float] = {}
        """When each revocation ends that was confirmed."""

    def teardown(self) -> None:
        self.patch.undo()

    def in_effect(self) -> dict[str, float]:
        return {name: until for name, until in self.until.items() if until > self.clock.wall()}

    @rule(seconds=st.sampled_from([1.0, 10.0, 100.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(name=st.sampled_from("abcdefg"), for_s=st.sampled_from([0.0, 5.0, 50.0, 500.0]), given=st.booleans())
    def revoke(self, name: str, for_s: float, *, given: bool) -> None:
        before, until = self.in_effect(), self.clock.wall() + for_s
        has_room = len({*before, name}) <= MOST
        revocation = Revocation("token", name)
        if given:
            try:
                self.verdicts.revoke(revocation, for_s)
                assert has_room
                self.until[name] = until
            except RevocationsFull:
                assert not has_room
        elif self.verdicts.take_over(revocation, for_s):
            assert has_room
            self.until[name] = until
        else:
            assert not has_room or for_s <= self.verdicts.remaining_s(revocation) + 1

    @invariant()
    def each_confirmed_one_holds_until_its_end(self) -> None:
        held = {one.name: for_s + self.clock.wall() for one, for_s in self.verdicts.revocations()}
        assert held == pytest.approx(self.in_effect())


TestRevocations = Revocations.TestCase


def test_a_full_table_is_reported_once_and_again_after_it_had_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remembered_verdicts, "MOST_REVOCATIONS", 1)
    clock = ManualClock()
    verdicts = Verdicts(clock.wall, clock.now)
    for _ in range(2):
        verdicts.revoke(Revocation("token", "a"), 10)
        for name in "bcd":
            assert not verdicts.take_over(Revocation("token", name), 10)
        clock.advance(10)
        verdicts.revoke(Revocation("token", "e"), 1)
        clock.advance(1)
    assert caplog.messages == ["1 revocations are in effect: this one is refused until one of them ends"] * 2
