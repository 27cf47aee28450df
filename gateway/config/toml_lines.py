"""The line numbers of the keys in a TOML file, for error messages.

`tomllib` does not keep positions.  This module finds the positions by scanning the text.  It runs only on a text that
`tomllib` has accepted, so the text is valid TOML.  A key inside an inline table has no entry; the line of its parent is
used.
"""

from __future__ import annotations

import re
from typing import Final

Path = tuple[str | int, ...]

_HEADER: Final = re.compile(r"\s*(\[\[|\[)\s*(.+?)\s*\]{1,2}\s*(?:#.*)?$")
_KEY_PART: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*(\.|=|$)""")
_DELIMITERS: Final = ('"""', "'''", '"', "'")


def key_lines(text: str) -> dict[Path, int]:
    """Return the line numbers of all table headers and keys, from 1.  In a path, `[[table]]`s are numbered from 0."""
    lines = text.split("\n")
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if header := _HEADER.fullmatch(line):
            names, _ = _key(header[2])
            table = _entered(names, counts, opens_item=header[1] == "[[")
            found.setdefault(table, number)
            continue
        names, rest = _key(line)
        if names and rest is not None:
            for depth in range(1, len(names) + 1):
                found.setdefault(table + names[:depth], number)
            number += _continuation(rest, lines, number)
    return found


def line_of(lines: dict[Path, int], path: Path) -> int | None:
    """Return the line of `path`, or of the nearest table around it; None if there is none."""
    for depth in range(len(path), 0, -1):
        if (line := lines.get(path[:depth])) is not None:
            return line
    return None


def _key(text: str) -> tuple[tuple[str, ...], str | None]:
    """Return the parts of the dotted key at the start of `text`, and the text after its `=` (None without `=`)."""
    names: list[str] = []
    position = 0
    while match := _KEY_PART.match(text, position):
        names.append(next(part for part in match.group(1, 2, 3) if part is not None))
        position = match.end()
        if match[4] != ".":
            return tuple(names), text[position:] if match[4] == "=" else None
    return (), None


def _entered(names: tuple[str, ...], counts: dict[Path, int], *, opens_item: bool) -> Path:
    """Return the path of the table that a header opens, with the index of the latest item of each array of tables."""
    path: Path = ()
    for depth, name in enumerate(names, 1):
        path = (*path, name)
        if opens_item and depth == len(names):
            counts[path] = counts.get(path, 0) + 1
        if path in counts:
            path = (*path, counts[path] - 1)
    return path


def _continuation(value: str, lines: list[str], following: int) -> int:
    """Return how many lines from index `following` belong to the value that begins with the line `value`."""
    taken = 0
    depth = 0
    delimiter = ""
    while True:
        position = 0
        while position < len(value):
            if delimiter:
                if value[position] == "\\" and delimiter[0] == '"':
                    position += 2
                elif value.startswith(delimiter, position):
                    position += len(delimiter)
                    delimiter = ""
                else:
                    position += 1
                continue
            character = value[position]
            if character == "#":
                break
            if character in "\"'":
                delimiter = next(mark for mark in _DELIMITERS if value.startswith(mark, position))
                position += len(delimiter)
                continue
            depth += (character in "[{") - (character in "]}")
            position += 1
        if (depth <= 0 and len(delimiter) != 3) or following + taken >= len(lines):
            return taken
        value = lines[following + taken]
        taken += 1
