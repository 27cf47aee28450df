"""The assignment of streams to origins: by weight, and with as few moves as possible."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.origin_pool import ranked

NAMES = st.text("abcdefgh", min_size=1, max_size=3).map("http://{}".format)
ORIGINS = st.dictionaries(NAMES, st.integers(1, 5), min_size=1, max_size=6)
PATHS = [f"/stream/{number}" for number in range(200)]


@given(ORIGINS, NAMES, st.integers(1, 5))
def test_a_new_origin_takes_its_share_and_moves_nothing_else(origins: dict[str, int], new: str, weight: int) -> None:
    origins.pop(new, None)
    more = {**origins, new: weight}
    for path in PATHS:
        before, after = ranked(origins.items(), path), ranked(more.items(), path)
        assert [name for name in after if name != new] == before
        assert not before or after[0] in (before[0], new)


@given(ORIGINS, st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(origins: dict[str, int], rng: object) -> None:
    listed = list(origins.items())
    rng.shuffle(listed)  # type: ignore[attr-defined]
    for path in PATHS[:20]:
        assert ranked(listed, path) == ranked(origins.items(), path)


@given(ORIGINS)
def test_only_the_share_of_a_removed_origin_moves(origins: dict[str, int]) -> None:
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
