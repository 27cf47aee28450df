"""How refusals are made like the 404 of an absent stream."""

from __future__ import annotations

import random

from gateway.auth.concealment import MOST_NAMES, Concealment


def test_a_refusal_takes_a_time_that_a_404_of_its_kind_has_taken() -> None:
    concealment = Concealment(random.Random(1))
    assert concealment.delay_s("read") == 0
    concealment.note("read", 0.5, is_absent=False)
    assert concealment.delay_s("read") == 0.5
    concealment.note("read", 0.1, is_absent=True)
    concealment.note("read", 0.2, is_absent=True)
    assert {concealment.delay_s("read") for _ in range(50)} == {0.1, 0.2}
    assert concealment.delay_s("append") in (0.1, 0.2)


def test_names_refused_of_late_are_bounded_and_forgotten_in_time() -> None:
    concealment = Concealment()
    for number in range(MOST_NAMES + 1):
        concealment.remember(number, "stream", 8.0, 10.0)
    assert repr(concealment) == f"<Concealment 0 times, {MOST_NAMES} names>"
    assert concealment.given_at(0, ("stream",), 9.0) is None
    assert concealment.given_at(1, ("metadata", "stream"), 9.0) == 8.0
    assert concealment.given_at(1, ("stream",), 10.0) is None


def test_a_refusal_that_is_not_given_yet_is_shared_however_short_404s_are_remembered() -> None:
    concealment = Concealment()
    concealment.remember("s", "stream", 5.0, 1.0)
    assert concealment.given_at("s", ("stream",), 4.9) == 5.0
    assert concealment.given_at("s", ("stream",), 5.0) is None
