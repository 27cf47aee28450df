"""What a stream's record costs beside its tape: its key, and the text that its origin and its clients make it hold.

The constants are the allocator's figures for CPython, rounded; `tests/memory/test_budget.py` measures them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from multidict import CIMultiDict

from gateway.protocol.sharing import StreamKey
from gateway.tape.costs import STREAM_COST

_HEADER_COST: Final = 170
"""Bytes charged per header line in addition to its characters: two strings and an entry."""
_SURROGATE_KEY_COST: Final = 330
"""Bytes charged per surrogate key in addition to its characters: the string, and its entry in the index."""
_TEXT_COST: Final = 60
"""Bytes charged per other string in addition to its characters."""


def key_cost(key: StreamKey) -> int:
    """Bytes charged for a record that holds nothing but its key."""
    return STREAM_COST + len(key.group.path) + len(key.query) + len(key.partition.readers)


def headers_cost(headers: CIMultiDict[str] | None) -> int:
    """Bytes charged for stored headers.  The dictionary keeps each name twice: as it came, and in lower case."""
    cost = 0
    if headers:
        for name, value in headers.items():
            cost += _HEADER_COST + 2 * len(name) + len(value)
    return cost


def surrogate_keys_cost(keys: Collection[str]) -> int:
    """Bytes charged for surrogate keys.  A key that several streams have is charged to each."""
    return sum(map(len, keys)) + _SURROGATE_KEY_COST * len(keys)


def texts_cost(texts: Iterable[str | None]) -> int:
    """Bytes charged for other strings; None costs nothing."""
    return sum(_TEXT_COST + len(text) for text in texts if text is not None)
