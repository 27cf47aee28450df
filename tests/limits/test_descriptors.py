"""Open files are shared so that no party's connections take those of another."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.limits.descriptors import SPARE, Descriptors, fit

DEFAULTS = Descriptors(20_000, 512, 10_000)


def test_bounds_that_fit_are_kept() -> None:
    enough = sum(DEFAULTS) + 64 + SPARE
    assert fit(DEFAULTS, 64, enough) == DEFAULTS
    assert fit(DEFAULTS, 64, enough - 1) != DEFAULTS


def test_a_common_limit_leaves_most_to_clients() -> None:
    assert fit(DEFAULTS, 64, 20_000) == (12_420, 512, 4_968)
    assert fit(DEFAULTS, 64, 1_024) == (560, 112, 224)
    assert fit(DEFAULTS, 64, 256) == (120, 24, 48)


@given(
    st.builds(Descriptors, st.integers(1, 10**6), st.integers(1, 65_535), st.integers(1, 10**6)),
    st.integers(4, 10_000),
    st.integers(64, 10**7),
)
def test_no_bound_rises_and_all_of_them_fit(wanted: Descriptors, admin: int, open_files: int) -> None:
    found = fit(wanted, admin, open_files)
    assert all(1 <= new <= old for new, old in zip(found, wanted, strict=True))
    assert sum(found) + min(admin + SPARE, open_files // 4) <= open_files
