"""The bytes that the cache budget is charged for objects in memory: figures of CPython's allocator, rounded.

`tests/memory/test_budget.py` measures these figures.  The pipeline's simulation uses them as well, on Spark workers
that have few packages.  Therefore this module imports only the standard library at run time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from multidict import CIMultiDict

    from gateway.protocol.sharing import StreamKey

TOKEN_COST: Final = 240
"""Bytes charged per token in addition to its characters: two dictionary slots, a mark (the token's position in the
block), and the string's header.  Most of the cost of a small message is the cost of its token."""
BLOCK_COST: Final = 340
"""Bytes charged per block in addition to its bytes and tokens: the object, its lists, a dictionary slot."""
TAPE_COST: Final = 1_000
"""Bytes charged for an empty tape."""
STREAM_COST: Final = 800
"""Bytes charged per stream in addition to its tape and its texts: the object, its key, dictionary slots."""
EMPTY_COST: Final = TAPE_COST + STREAM_COST
"""Bytes charged for a stream without bytes, in addition to the characters of its name."""
RECORD_COST: Final = 260
"""Bytes charged per record of an S2 stream in addition to its metered bytes (S2's measure of a record's size): the
object, its numbers, its body's header, two slots."""
RECORD_HEADER_COST: Final = 170
"""Bytes charged per header of a record in addition to its bytes."""
RECORD_BLOCK_COST: Final = 400
"""Bytes charged per block of records in addition to its records."""
BODY_SHARE: Final = 2
"""Only a body of at most 1 / `BODY_SHARE` of the budget is stored."""
BODY_USUAL_BYTES: Final = 64 << 20
"""By default (`limits.max_flight_bytes`), only a body of at most this size is stored."""
CODED_COST: Final = 400
"""Bytes charged per compressed body in addition to its data: keys, dictionary slots, the object."""
CODED_SHARE: Final = 4
"""All compressed bodies together take at most 1 / `CODED_SHARE` of the budget."""
CODED_USUAL_BYTES: Final = 32 << 20
"""By default (`limits.compress_cache_bytes`), all compressed bodies together take at most this size."""
CODED_BODY_SHARE: Final = 4
"""One compressed body takes at most 1 / `CODED_BODY_SHARE` of the bound for all of them."""
ANSWER_COST: Final = 1_200
"""Bytes charged for a remembered answer (a response kept for repetition) in addition to its key, heads and body:
objects and dictionary slots."""
ANSWER_SHARE: Final = 8
"""All remembered answers together take at most 1 / `ANSWER_SHARE` of the budget."""
SMALL_BYTES: Final = 1 << 14
"""If the body of a remembered answer is at most this long, the answer holds a copy of the body, joined with the
response head."""
USUAL_TEXTS: Final = 1_250
"""The bytes usually charged for the texts of a stream: its name, and the origin's headers."""
USUAL_COST: Final = EMPTY_COST + BLOCK_COST + USUAL_TEXTS
"""The bytes usually charged for a stream in addition to its bytes and tokens."""


@dataclass(slots=True)
class RouteUsage:
    """The sums over all streams of one route: tapes, blocks, and bytes of the budget."""

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
    """Return the bytes charged for a stream with its key, but without tape and headers."""
    return STREAM_COST + len(key.group.path) + len(key.query) + len(key.partition.readers)


def headers_cost(headers: CIMultiDict[str] | None) -> int:
    """Return the bytes charged for headers.  Each name is charged twice, because `CIMultiDict` keeps it as received and
    in lower case."""
    cost = 0
    if headers:
        for name, value in headers.items():
            cost += _HEADER_COST + 2 * len(name) + len(value)
    return cost


def surrogate_keys_cost(keys: Collection[str]) -> int:
    """Return the bytes charged for a stream's surrogate keys.  A key that several streams share is charged to each of
    these streams."""
    return sum(map(len, keys)) + _SURROGATE_KEY_COST * len(keys)


def texts_cost(texts: Iterable[str | None]) -> int:
    """Return the bytes charged for other strings.  None costs nothing."""
    return sum(_TEXT_COST + len(text) for text in texts if text is not None)
