"""Lines of raw header sections: patterns that find lines by their names, and the Origin line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final


def lines_named(names: Sequence[str]) -> re.Pattern[bytes]:
    """Compile a pattern for a header line with one of these names.  The pattern includes the line break before the
    line.

    The pattern accepts each name in two spellings, Any-Name and any-name, and in mixtures of both.  A pattern that
    ignores case would be three times as slow.
    """
    if not names:
        return re.compile(rb"(?!)")
    # Group the names by their first letters, so that most other lines fail after one comparison a letter.
    by_letter: dict[str, list[str]] = {}
    for name in names:
        first, *others = name[1:].split("-")
        rest = "-".join([re.escape(first), *(_either_case(part[:1]) + re.escape(part[1:]) for part in others)])
        by_letter.setdefault(name[0], []).append(rest)
    spelled = [f"{_either_case(letter)}(?:{'|'.join(rests)})" for letter, rests in by_letter.items()]
    return re.compile(rb"\r\n(?:" + "|".join(spelled).encode() + rb"):[\t\x20-\x7e]*+(?=\r\n)")


def _either_case(character: str) -> str:
    """Make a pattern for a character in both cases.  A character that is not a letter is escaped: some, such as `^`,
    have a meaning in patterns.
    """
    return f"[{character.upper()}{character}]" if character.isalpha() else re.escape(character)


_ORIGIN: Final = lines_named(("origin",))


def web_origin(text: bytes) -> tuple[bytes, bytes] | None:
    """Return the line and the value of the section's Origin header.  None unless the section has exactly one Origin
    header, in a usual spelling.
    """
    found = _ORIGIN.search(text)
    if found is None or text.lower().count(b"\r\norigin") != 1:
        return None
    return found[0], found[0].partition(b":")[2].strip(b" \t")
