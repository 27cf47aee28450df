"""Token buckets: in no window is more admitted than the burst and what came in meanwhile, and waiting helps."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.buckets import Buckets

RATES = st.floats(0.01, 1_000)
BURSTS = st.integers(1, 50)
PAUSES = st.lists(st.one_of(st.just(0.0), st.floats(0, 5)), max_size=60)


@given(RATES, BURSTS, PAUSES)
def test_no_window_admits_more_than_the_burst_and_the_rate(per_s: float, burst: int, pauses: list[float]) -> None:
    buckets, now = Buckets(per_s, burst), 100.0
    admitted: list[float] = []
    for pause in pauses:
        now += pause
        if not buckets.wait_s("net", now):
            buckets.take("net", now)
            admitted.append(now)
    for first in range(len(admitted)):
        for last in range(first, len(admitted)):
            allowed = burst + (admitted[last] - admitted[first]) * per_s
            assert last - first + 1 <= allowed + 1e-6 * (1 + per_s)


@given(RATES, BURSTS, PAUSES, st.floats(0, 10))
def test_tokens_only_grow_while_none_are_taken(per_s: float, burst: int, pauses: list[float], later: float) -> None:
    buckets, now = Buckets(per_s, burst), 100.0
    for pause in pauses:
        now += pause
        buckets.take("net", now, 2.5)
    assert buckets.left("net", now + later) >= buckets.left("net", now)
    assert buckets.wait_s("net", now + later) <= buckets.wait_s("net", now)
    # After the wait that was named, the request is admitted.
    wait_s = buckets.wait_s("net", now)
    assert buckets.wait_s("net", now + wait_s + 1e-6) == 0
    assert buckets.left("net", now) <= burst


@given(RATES, BURSTS, st.lists(st.floats(0, 100), max_size=40))
def test_taking_what_is_left_never_makes_a_debt(per_s: float, burst: int, costs: list[float]) -> None:
    buckets = Buckets(per_s, burst)
    for cost in costs:
        buckets.take_left("net", 1.0, cost)
        assert buckets.left("net", 1.0) >= -1e-6 * (1 + per_s)


def test_keys_are_independent_and_full_buckets_are_forgotten_at_the_bound() -> None:
    buckets = Buckets(1, 10, most_keys=8)
    for n in range(8):
        buckets.take(f"{n}", 0.0, n + 1)
    assert [buckets.left(f"{n}", 0.0) for n in range(8)] == [9, 8, 7, 6, 5, 4, 3, 2]
    # Three of them are full again by now.
    buckets.take("new", 3.0)
    assert len(buckets) == 6
    assert [buckets.left(f"{n}", 3.0) for n in range(8)] == [10, 10, 10, 9, 8, 7, 6, 5]


def test_at_the_bound_the_fullest_are_forgotten_first() -> None:
    buckets = Buckets(1, 10, most_keys=8)
    for n in range(8):
        buckets.take(f"{n}", 0.0, n + 1)
    buckets.take("new", 0.0)
    assert len(buckets) == 8
    assert buckets.left("0", 0.0) == 10
    assert [buckets.left(f"{n}", 0.0) for n in range(1, 8)] == [8, 7, 6, 5, 4, 3, 2]


@given(RATES, BURSTS, st.floats(0, 60), st.floats(0, 60))
def test_a_bucket_that_is_kept_empty_fills_from_the_end_of_that_time(
    per_s: float, burst: int, until: float, later: float
) -> None:
    buckets = Buckets(per_s, burst)
    buckets.take("net", 0.0)
    buckets.keep_empty("net", 0.0, until)
    assert buckets.wait_s("net", until) > 0
    assert abs(buckets.left("net", until + later) - min(burst, later * per_s)) < 1e-6 * (1 + burst + per_s)
    assert buckets.left("other", until) == burst


def test_a_debt_outlasts_the_time_for_which_a_bucket_is_kept_empty() -> None:
    buckets = Buckets(1, 10)
    buckets.take("net", 0.0, 50)
    buckets.keep_empty("net", 0.0, 5.0)
    assert buckets.left("net", 5.0) == -35
