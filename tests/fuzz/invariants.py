"""What holds of every parser, whatever it is fed, in plain functions that the targets share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


def slices(data: bytes) -> Iterator[list[bytes]]:
    """The same bytes in pieces of several sizes, of which the first piece is whole."""
    yield [data]
    for size in (1, 2, 7, 64):
        # Long input byte by byte would take most of the time and find little.
        if len(data) <= 64 * size:
            yield [data[at : at + size] for at in range(0, len(data), size)]


def joined(events: Sequence[Any]) -> list[Any]:
    """Events with the pieces of a body joined: how often it was cut says nothing."""
    found: list[Any] = []
    for event in events:
        if isinstance(event, bytes) and found and isinstance(found[-1], bytes):
            found[-1] += event
        elif event != b"":
            found.append(event)
    return found


def same_in_slices(data: bytes, run: Callable[[list[bytes]], Any]) -> Any:
    """`run` gives the same for all ways to cut the data; returns what it gives."""
    first: Any = None
    for number, pieces in enumerate(slices(data)):
        found = run(pieces)
        if not number:
            first = found
        assert found == first, (pieces[:5], found, first)
    return first


def is_bounded(size: int, source: bytes | str, factor: int = 4, more: int = 4_096) -> None:
    """What a parser makes of its input is not many times its size."""
    assert size <= factor * len(source) + more, (size, len(source))
