"""The charges of the cache budget for tapes and records: the allocator's figures for CPython, rounded.

`tests/memory/test_budget.py` measures them.  The pipeline's simulation charges the same, on workers that have the
standard library and a few packages only: nothing else is imported here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multidict import CIMultiDict

    from gateway.protocol.sharing import StreamKey

TOKEN_COST: Final = 240
"""Bytes charged per token in addition to its characters: two dictionary slots, a mark, the string's header.  It
dominates the cost of small messages."""
BLOCK_COST: Final = 340
"""Bytes charged per block in addition to its bytes and tokens: the object, its lists, a dictionary slot."""
TAPE_COST: Final = 1_000
"""Bytes charged for an empty tape."""
STREAM_COST: Final = 800
"""Bytes charged for a record in addition to the text it holds: the object, its key, dictionary slots."""
EMPTY_COST: Final = TAPE_COST + STREAM_COST
"""Bytes charged for a stream of which nothing is held, without the characters of its name."""
BODY_SHARE: Final = 2
"""A body of up to 1 / this of the budget is stored,"""
BODY_USUAL_BYTES: Final = 64 << 20
"""and of up to this, the default of `limits.max_flight_bytes`."""
CODED_COST: Final = 400
"""Bytes charged per coded body in addition to its data: keys, dictionary slots, the object."""
CODED_SHARE: Final = 4
"""Coded bodies take up to 1 / this of the budget,"""
CODED_USUAL_BYTES: Final = 32 << 20
"""and up to this, the default of `limits.compress_cache_bytes`."""
CODED_BODY_SHARE: Final = 4
"""One coded body may take up to 1 / this of what all may."""
ANSWER_COST: Final = 1_200
"""Bytes charged for a remembered answer in addition to its key, heads and body: objects and dictionary slots."""
ANSWER_SHARE: Final = 8
"""Remembered answers take up to 1 / this of the budget."""
SMALL_BYTES: Final = 1 << 14
"""A body up to this size is held by its remembered answer, once more joined with the head."""
USUAL_TEXTS: Final = 1_250
"""About the bytes charged for the text that a stream's record holds: its name, and the headers of the origin."""
USUAL_COST: Final = EMPTY_COST + BLOCK_COST + USUAL_TEXTS
"""About the bytes charged for a stream in addition to its bytes and tokens."""


@dataclass(slots=True)
class RouteUsage:
    """The contents of the streams of one route: tapes, blocks, and bytes of the budget."""

    tapes: int = 0
    blocks: int = 0
    cost: int = 0


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
