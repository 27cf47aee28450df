"""Which origin a stream belongs to: by weight, and moved only as far as it has to be."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.rendezvous import ranked

NAMES = st.text("abcdefgh", min_size=1, max_size=3).map("http://{}".format)
ORIGINS = st.dictionaries(NAMES, st.integers(1, 5), min_size=1, max_size=6)
PATHS = [f"/stream/{number}" for number in range(200)]


@given(ORIGINS, NAMES, st.integers(1, 5))
def test_an_origin_that_comes_takes_its_share_and_moves_nothing_else(
    origins: dict[str, int], new: str, weight: int
) -> None:
    origins.pop(new, None)
    more = {**origins, new: weight}
    for path in PATHS:
        before, after = ranked(origins.items(), path), ranked(more.items(), path)
        assert [name for name in after if name != new] == before
        assert not before or after[0] in (before[0], new)


@given(ORIGINS, st.randoms(use_true_random=False))
def test_the_order_of_the_list_says_nothing(origins: dict[str, int], rng: object) -> None:
    listed = list(origins.items())
    rng.shuffle(listed)  # type: ignore[attr-defined]
    for path in PATHS[:20]:
        assert ranked(listed, path) == ranked(origins.items(), path)


@given(ORIGINS)
def test_only_the_share_of_an_origin_that_goes_is_moved(origins: dict[str, int]) -> None:
    gone = next(iter(origins))
    less = {name: weight for name, weight in origins.items() if name != gone}
    for path in PATHS:
        before, after = ranked(origins.items(), path), ranked(less.items(), path)
        assert after == [name for name in before if name != gone]


def test_shares_are_as_the_weights() -> None:
    origins = {"http://a": 1, "http://b": 2, "http://c": 5}
    firsts = Counter(ranked(origins.items(), f"/s/{number}")[0] for number in range(8_000))
    for name, weight in origins.items():
        assert firsts[name] == pytest.approx(1_000 * weight, rel=0.1)
