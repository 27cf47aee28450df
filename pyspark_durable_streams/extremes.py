"""JSON that Arrow's reader refuses wherever it is, even in fields that the schema lacks.

Two kinds of text follow the grammar of RFC 8259 but have no value: a number with an exponent that no double has, such
as `1e400` (section 6), and half of a surrogate pair, such as `"\ud83d"` (section 7).  One of them in a block makes the
reader refuse the block.  They are overwritten in place, so that it reads everything else.  Whether such a value is in a
column of the schema, and hence a misfit, is decided before (`fitting.strictly`).
"""

from __future__ import annotations

import json
import re
from typing import Final

_MOST_EXPONENT: Final = 308
"""The reader adds the digits of the fraction to it."""
_MAY_BE: Final = re.compile(rb"[eE]\+?\d{3}|\\u[dD][89a-fA-F]")
_TOKEN: Final = re.compile(rb'("(?:[^"\\]|\\.)*")([ \t\r]*:)?|-?\d[\d.]*[eE]\+?\d{3,}')
_NUMBER: Final = re.compile(r"-?\d+(?:\.(\d*))?[eE]\+?(\d{3,})")
_HALF: Final = re.compile("[\ud800-\udfff]")
_ESCAPE: Final = re.compile(rb"\\u[dD][89a-fA-F]..")


def may_be_in(lines: bytes) -> bool:
    """Whether one of them may be in the lines."""
    return _MAY_BE.search(lines) is not None


def is_beyond_double(number: str) -> bool:
    """Whether the reader refuses a number for its exponent."""
    found = _NUMBER.fullmatch(number)
    return found is not None and int(found[2].lstrip("0")[:6] or 0) > _MOST_EXPONENT + len(found[1] or "")


def overwritten(lines: bytes) -> bytes:
    """The lines with null in place of such values; in such keys another text replaces the escape.

    Every other byte stays at its position.
    """
    return b"\n".join(_TOKEN.sub(_replaced, line) if may_be_in(line) else line for line in lines.split(b"\n"))


def _replaced(token: re.Match[bytes]) -> bytes:
    text, string, colon = token.group(0, 1, 2)
    if string is None:
        return b"null".ljust(len(text)) if is_beyond_double(text.decode()) else text
    if b"\\u" not in string or not _HALF.search(_text(string)):
        return text
    return _ESCAPE.sub(b"~~~~~~", text) if colon else b"null".ljust(len(text))


def _text(string: bytes) -> str:
    try:
        return str(json.loads(string))
    except ValueError:
        return ""
