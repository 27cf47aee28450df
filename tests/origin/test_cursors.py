from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.origin.cursors import EPOCH_S, next_cursor


def test_the_cursor_is_the_number_of_the_interval() -> None:
    assert [next_cursor(None, EPOCH_S + seconds, Random(1)) for seconds in (0, 19.9, 20, 200)] == ["0", "0", "1", "10"]


@given(st.integers(0, 10**12), st.integers(0, 10**10), st.randoms(use_true_random=False))
def test_a_client_always_gets_a_greater_cursor(seen: int, seconds: int, random: Random) -> None:
    given_back = int(next_cursor(str(seen), EPOCH_S + seconds, random))
    assert given_back > seen
    assert given_back == seconds // 20 or seen < given_back <= seen + 180


@pytest.mark.parametrize("junk", ["", "abc", "-5", "1.5", "٣", "9" * 400])
def test_a_cursor_that_is_no_number_counts_as_absent(junk: str) -> None:
    assert next_cursor(junk, EPOCH_S + 40, Random(1)) == "2"
