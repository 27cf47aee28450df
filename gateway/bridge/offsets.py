"""Offsets of a bridged stream: the sequence number of the record that comes next, in 20 digits.

There is one at each record boundary.  All have the width of the largest sequence number, so that they compare as text
in the order of the records.
"""

from __future__ import annotations

from typing import Final

from gateway.s2.records import MAX_U64

WIDTH: Final = len(str(MAX_U64))


class BadOffset(ValueError):
    """The text is no offset of a bridged stream."""


def offset_at(seq_num: int) -> str:
    """The offset before the record `seq_num`."""
    return f"{seq_num:0{WIDTH}d}"


def parse_offset(text: str) -> int:
    """The sequence number of the record after an offset.  Raises `BadOffset`."""
    # ASCII first: `isdigit` takes digits of other scripts.
    if len(text) != WIDTH or not text.isascii() or not text.isdigit():
        raise BadOffset(text)
    seq_num = int(text)
    if seq_num > MAX_U64:
        raise BadOffset(text)
    return seq_num
