"""Open files are shared so that no party's connections take those of another."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.memory import SPARE, Descriptors, fit

DEFAULTS = Descriptors(20_000, 512, 10_000, 256)


def test_bounds_that_fit_are_kept() -> None:
    enough = sum(DEFAULTS) + SPARE
    assert fit(DEFAULTS, enough) == DEFAULTS
    assert fit(DEFAULTS, enough - 1) != DEFAULTS


def test_a_common_limit_leaves_most_to_clients() -> None:
    assert fit(DEFAULTS, 20_000) == (12_300, 512, 4_920, 256)
    assert fit(DEFAULTS, 1_024) == (480, 96, 192, 192)
    assert fit(DEFAULTS, 256) == (120, 24, 48, 32)


@given(
    st.builds(
        Descriptors, st.integers(1, 10**6), st.integers(1, 65_535), st.integers(1, 10**6), st.integers(4, 10_000)
    ),
    st.integers(64, 10**7),
)
def test_no_bound_rises_and_all_of_them_fit(wanted: Descriptors, open_files: int) -> None:
    found = fit(wanted, open_files)
    assert all(1 <= new <= old for new, old in zip(found, wanted, strict=True))
    assert sum(found) + min(SPARE, open_files // 8) <= open_files
