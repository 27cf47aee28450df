"""How refusals are made like the 404 of an absent stream."""

from __future__ import annotations

import random

from gateway.auth.absence_times import MOST_NAMES, AbsenceTimes


def test_a_refusal_takes_a_time_that_a_404_of_its_kind_has_taken() -> None:
    absence_times = AbsenceTimes(random.Random(1))
    assert absence_times.delay_s("read") == 0
    absence_times.note("read", 0.5, is_absent=False)
    assert absence_times.delay_s("read") == 0.5
    absence_times.note("read", 0.1, is_absent=True)
    absence_times.note("read", 0.2, is_absent=True)
    assert {absence_times.delay_s("read") for _ in range(50)} == {0.1, 0.2}
    assert absence_times.delay_s("append") in (0.1, 0.2)


def test_names_refused_of_late_are_bounded_and_forgotten_in_time() -> None:
    absence_times = AbsenceTimes()
    for number in range(MOST_NAMES + 1):
        absence_times.remember(number, "stream", 8.0, 10.0)
    assert repr(absence_times) == f"<AbsenceTimes 0 times, {MOST_NAMES} names>"
    assert absence_times.given_at(0, ("stream",), 9.0) is None
    assert absence_times.given_at(1, ("metadata", "stream"), 9.0) == 8.0
    assert absence_times.given_at(1, ("stream",), 10.0) is None


def test_a_refusal_that_is_not_given_yet_is_shared_however_short_404s_are_remembered() -> None:
    absence_times = AbsenceTimes()
    absence_times.remember("s", "stream", 5.0, 1.0)
    assert absence_times.given_at("s", ("stream",), 4.9) == 5.0
    assert absence_times.given_at("s", ("stream",), 5.0) is None
