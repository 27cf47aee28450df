"""Tables with a bound on their entries: the oldest make room for new ones."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


def evict_oldest(table: OrderedDict[Key, Value], most: int) -> list[tuple[Key, Value]]:
    """Remove and return the oldest entries beyond `most`.

    The table is an OrderedDict, because a plain dictionary looks for its oldest entry behind the places of all that
    were evicted.
    """
    return [table.popitem(last=False) for _ in range(len(table) - most)]
