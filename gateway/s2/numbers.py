"""Unsigned integers of 64 bits as text, in queries, in event ids and in the gateway's log."""

from __future__ import annotations

from typing import Final

from gateway.s2.records import MAX_U64

_MAX_DIGITS: Final = 20
"""Digits of the largest number; longer text is not converted, which takes time that grows with its square."""


def fixed_width(number: int) -> str:
    """A number as text whose order is that of the numbers."""
    return f"{number:0{_MAX_DIGITS}d}"


def parse_u64(text: str) -> int | None:
    """The number that decimal digits stand for; None for any other text."""
    if not (text.isascii() and text.isdigit()) or len(text) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= MAX_U64 else None
