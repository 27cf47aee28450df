"""Token rate: in no window is more admitted than the burst and what came in meanwhile, and waiting helps."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.accounts import Account
from gateway.limits.rate_limits import Rate

RATES = st.floats(0.01, 1_000)
BURSTS = st.integers(1, 50)
PAUSES = st.lists(st.one_of(st.just(0.0), st.floats(0, 5)), max_size=60)


@given(RATES, BURSTS, PAUSES)
def test_no_window_admits_more_than_the_burst_and_the_rate(per_s: float, burst: int, pauses: list[float]) -> None:
    rate, now = Rate(per_s, burst), 100.0
    net = Account("net")
    admitted: list[float] = []
    for pause in pauses:
        now += pause
        if not rate.wait_s(net, now):
            rate.take(net, now)
            admitted.append(now)
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            allowed = burst + (admitted[last] - admitted[first]) * per_s
            assert last - first + 1 <= allowed + 1e-6 * (1 + per_s)


@given(RATES, BURSTS, PAUSES, st.floats(0, 10))
def test_tokens_only_grow_while_none_are_taken(per_s: float, burst: int, pauses: list[float], later: float) -> None:
    rate, now = Rate(per_s, burst), 100.0
    net = Account("net")
    for pause in pauses:
        now += pause
        rate.take(net, now, 2.5)
    assert rate.tokens_left(net, now + later) >= rate.tokens_left(net, now)
    assert rate.wait_s(net, now + later) <= rate.wait_s(net, now)
    # After the wait that was named, the request is admitted.
    wait_s = rate.wait_s(net, now)
    assert rate.wait_s(net, now + wait_s + 1e-6) == 0
    assert rate.tokens_left(net, now) <= burst


@given(RATES, BURSTS, st.lists(st.floats(0, 100), max_size=40))
def test_taking_what_is_left_never_makes_a_debt(per_s: float, burst: int, costs: list[float]) -> None:
    rate = Rate(per_s, burst)
    net = Account("net")
    for cost in costs:
        rate.take_left(net, 1.0, cost)
        assert rate.tokens_left(net, 1.0) >= -1e-6 * (1 + per_s)


@given(RATES, BURSTS, st.floats(0, 60), st.floats(0, 60))
def test_a_bucket_that_is_kept_empty_fills_from_the_end_of_that_time(
    per_s: float, burst: int, until: float, later: float
) -> None:
    rate = Rate(per_s, burst)
    net = Account("net")
    rate.take(net, 0.0)
    rate.keep_empty(net, 0.0, until)
    assert rate.wait_s(net, until) > 0
    assert abs(rate.tokens_left(net, until + later) - min(burst, later * per_s)) < 1e-6 * (1 + burst + per_s)
    assert rate.tokens_left(Account("other"), until) == burst


def test_a_debt_outlasts_the_time_for_which_a_bucket_is_kept_empty() -> None:
    rate = Rate(1, 10)
    net = Account("net")
    rate.take(net, 0.0, 50)
    rate.keep_empty(net, 0.0, 5.0)
    assert rate.tokens_left(net, 5.0) == -35
