"""Surrogate keys in both header fields."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.protocol.freshness_headers import surrogate_keys


@pytest.mark.parametrize(
    ("lines", "keys"),
    [
        ([], set()),
        ([("Surrogate-Key", "a b  c")], {"a", "b", "c"}),
        ([("surrogate-key", "a"), ("Surrogate-Key", "b")], {"a", "b"}),
        ([("Cache-Tag", "a, b,c ,, ")], {"a", "b", "c"}),
        ([("Cache-Tag", "two words")], {"two words"}),
        ([("Cache-Tag", "a"), ("Surrogate-Key", "a A")], {"a", "A"}),
        ([("Surrogate-Key", "  ")], set()),
    ],
)
def test_keys_of_both_fields_and_all_lines_count_as_they_are_written(
    lines: list[tuple[str, str]], keys: set[str]
) -> None:
    assert surrogate_keys(CIMultiDict(lines)) == keys
