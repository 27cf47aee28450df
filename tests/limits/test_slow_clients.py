"""Least rates of uploads and of reading."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.slow_clients import GRACE_S, keeps_up, upload_time_left


@given(st.floats(0, 1_000), st.integers(0, 1 << 30), st.integers(1, 1 << 20))
def test_an_upload_has_time_for_what_it_has_sent_and_the_grace(waited_s: float, received: int, rate: int) -> None:
    left = upload_time_left(waited_s, received, rate, 30)
    assert left == GRACE_S + received / rate - waited_s
    assert upload_time_left(waited_s, received + rate, rate, 30) > left


def test_the_grace_is_no_longer_than_silence_may_be_and_no_rate_is_no_bound() -> None:
    assert upload_time_left(0, 0, 240, 1) == 1
    assert upload_time_left(1e6, 0, 0, 1) == math.inf


def test_a_reader_keeps_up_with_its_bytes_in_each_window() -> None:
    assert keeps_up(7_200, 30, 240)
    assert not keeps_up(7_199, 30, 240)
    assert keeps_up(1, 30, 0)
    assert not keeps_up(0, 30, 0)
