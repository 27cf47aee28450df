"""When a stream expires: the lifetime that is known, that is lost, and that counts meanwhile."""

import pytest

from gateway.protocol.freshness_headers import Lifetime
from gateway.tape.origin_statements import UNLIMITED, Expiry


def known(lifetime: Lifetime) -> Expiry:
    expiry = Expiry()
    expiry.know(lifetime)
    return expiry


def test_what_is_not_known_does_not_expire() -> None:
    expiry = Expiry()
    assert not expiry.is_limited
    assert not expiry.may_have_passed(1e9, 1e12)
    assert not expiry.has_passed(1e12)


def test_a_sliding_ttl_passes_without_contact() -> None:
    expiry = known(Lifetime(10, None))
    assert expiry.is_limited
    assert [expiry.may_have_passed(idle_s, 1e12) for idle_s in (0.0, 9.9, 10.0)] == [False, False, True]
    assert not expiry.has_passed(1e12)


@pytest.mark.parametrize("ttl_s", [0, 10])
def test_a_sliding_ttl_does_not_run_while_there_is_contact(ttl_s: int) -> None:
    assert not known(Lifetime(ttl_s, None)).may_have_passed(None, 1e12)


def test_an_absolute_expiry_passes_whatever_is_asked() -> None:
    expiry = known(Lifetime(None, 5_000.0))
    assert [expiry.may_have_passed(0.0, wall) for wall in (4_999.9, 5_000.0)] == [False, True]
    assert [expiry.has_passed(wall) for wall in (4_999.9, 5_000.0)] == [False, True]


@pytest.mark.parametrize("times", [1, 2])
def test_the_lifetime_before_counts_while_the_own_is_lost(times: int) -> None:
    expiry = known(Lifetime(None, 5_000.0))
    for _ in range(times):
        expiry.lose()
    assert expiry.lifetime is None
    assert expiry.may_have_passed(0.0, 5_000.0)
    # It is not known to be over: another stream may be there.
    assert not expiry.has_passed(5_000.0)
    expiry.know(UNLIMITED)
    assert not expiry.is_limited
    assert not expiry.may_have_passed(0.0, 5_000.0)


def asks(expiry: Expiry, now: float) -> bool:
    """Whether a read asks for the lifetime at this time."""
    if not expiry.is_wanted(now):
        return False
    expiry.asked(now)
    return True


def test_only_an_unknown_lifetime_is_asked_for() -> None:
    expiry = known(UNLIMITED)
    assert not asks(expiry, 100.0)
    expiry.lose()
    assert asks(expiry, 100.0)
    expiry.know(UNLIMITED)
    assert not asks(expiry, 200.0)
    assert [asks(Expiry(), 100.0) for _ in range(2)] == [True, True]


def seconds_asked(expiry: Expiry, until: int) -> list[int]:
    return [second for second in range(until) if asks(expiry, 100.0 + second)]


def test_the_pause_doubles_while_a_lost_lifetime_stays_unknown() -> None:
    expiry = Expiry()
    expiry.lose()
    assert seconds_asked(expiry, 250) == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]


def test_writes_that_fail_again_and_again_do_not_shorten_the_pause() -> None:
    expiry = Expiry()
    asked = 0
    for second in range(600):
        expiry.lose()
        asked += asks(expiry, 100.0 + second)
    assert asked == 6 + 9


def test_the_pause_begins_anew_once_the_lifetime_was_known() -> None:
    expiry = Expiry()
    expiry.lose()
    seconds_asked(expiry, 100)
    expiry.know(UNLIMITED)
    expiry.lose()
    assert seconds_asked(expiry, 8) == [0, 1, 3, 7]
