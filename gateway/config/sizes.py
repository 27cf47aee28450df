"""Sizes in bytes, and their notation in a configuration."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
_BYTE_UNITS: Final = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB}
_BYTES: Final = re.compile(r"([0-9]{1,18}) ?([KMGT]iB|B|)")


def parse_bytes(value: object) -> object:
    """Parse a size such as `"256MiB"`.  Return a value that is not text unchanged.  Raises ValueError."""
    if not isinstance(value, str):
        return value
    match = _BYTES.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'expected bytes as an integer or such as "64KiB", "256MiB", "1GiB", got {value!r}')
    return int(match[1]) * _BYTE_UNITS[match[2]]


def format_bytes(size: int) -> str:
    """Format a size like `256MiB`, or as plain digits if it is not a multiple of a unit."""
    for unit, factor in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
