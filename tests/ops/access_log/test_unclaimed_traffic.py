"""Unclaimed work waiting for a line: none is lost, none is counted twice."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gateway.ops.access_log.unclaimed_traffic import Ledger, Unclaimed
from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import RecordedStream

PLACES = [RecordedStream("default", f"/{name}", None) for name in "abcde"]

moves = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(PLACES), st.integers(0, 3), st.integers(0, 100)),
    st.tuples(st.just("claim"), st.sampled_from(PLACES), st.just(0), st.just(0)),
    st.tuples(st.just("due"), st.just(PLACES[0]), st.integers(0, 5), st.just(0)),
)


@given(st.lists(moves))
def test_every_sum_is_taken_exactly_once(steps: list[tuple[str, RecordedStream, int, int]]) -> None:
    ledger, now = Ledger(most=3), 0.0
    added: Counter[RecordedStream] = Counter()
    taken: Counter[RecordedStream] = Counter()

    def take(found: Unclaimed | None) -> None:
        if found is not None:
            taken[found.place] += 1_000 * found.requests + found.fetched_bytes

    for what, place, number, size in steps:
        now += 1.0
        if what == "add":
            added[place] += 1_000 * number + size
            take(ledger.add(place, Mode.SSE, number, size, now))
        elif what == "claim":
            take(ledger.claim(place))
        else:
            for found in ledger.due(now - number):
                assert found.since <= now - number
                take(found)
            assert ledger.oldest is None or ledger.oldest > now - number
        assert len(ledger) <= 3
    for found in ledger.due(now):
        take(found)
    assert +taken == +added


def test_a_sum_with_anything_live_in_it_is_live() -> None:
    ledger = Ledger()
    for mode in (Mode.CATCHUP, Mode.SSE, Mode.HEAD):
        ledger.add(PLACES[0], mode, 1, 0, 0.0)
    found = ledger.claim(PLACES[0])
    assert found is not None
    assert (found.mode, found.requests) == (Mode.SSE, 3)
