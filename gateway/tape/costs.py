"""What the cache budget is charged: the allocator's figures for CPython, rounded.

`tests/memory/test_budget.py` measures them.  The pipeline's simulation charges the same, on workers that have the
standard library and a few packages only: nothing is imported here.
"""

from __future__ import annotations

from typing import Final

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
