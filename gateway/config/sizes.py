"""Sizes in bytes, and how a configuration spells them."""

from __future__ import annotations

import re
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
_BYTE_UNITS: Final = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": 1024 * GIB}
_BYTES: Final = re.compile(r"([0-9]{1,18}) ?([KMGT]iB|B|)")


def parse_bytes(value: object) -> object:
    """Parse a size such as `"256MiB"`; anything but text is returned as it is.  Raises ValueError with one line."""
    if not isinstance(value, str):
        return value
    match = _BYTES.fullmatch(value.strip())
    if match is None:
        raise ValueError(f'expected bytes as an integer or such as "64KiB", "256MiB", "1GiB", got {value!r}')
    return int(match[1]) * _BYTE_UNITS[match[2]]


def format_bytes(size: int) -> str:
    """A size in the spelling of a file: `256MiB`, or plain digits if no unit divides it."""
    for unit, factor in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)
