"""Round steps of time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.report.gather import step_for


@given(st.integers(0, 4_000_000_000), st.integers(0, 400_000_000), st.integers(2, 400))
def test_a_step_divides_time_into_at_most_the_given_pieces(first: int, reach: int, most: int) -> None:
    last = first + reach
    step = step_for(first, last, most)
    assert step % 60 == 0
    assert len(range(first // step * step, last + 1, step)) <= most
