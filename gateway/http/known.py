"""A cache of parsed header sections, which spares most requests the parser.

The requests of one client mostly differ only in the request line, and repeat the header section byte for byte.  A
section that was part of a valid request is valid after any other plain request line.  For such a section, the cache
returns the section's fields with all values derived from them, so that only the request line has to be parsed.

The appends of an idempotent producer differ in two more lines: the sequence number and the length.  Such a line is
taken out of the section only if it has a form that cannot hide other lines: a known name, a colon, and digits up to the
end of the line.  If the rest of the section has been parsed before, the appends share the values derived from the rest.
The gateway then reads only the two numbers of each append.

All other requests go to the parser (`gateway.http.request_parser`): requests that arrive in pieces or several at a
time, chunked bodies, upgrades, and unusual request lines.

`lines_named` and `web_origin` find lines of a raw section without parsing it.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from multidict import CIMultiDict, istr

from gateway.http.request_parser import LONGEST_LINE, MOST_FIELDS, Event, Fields, Mark, RequestHead
from gateway.limits.memory import evict_oldest

# Module names are faster to look up than enum members, and every request needs these members.
_END: Final = Mark.END
_LINE: Final = re.compile(rb"(GET|HEAD|POST|PUT|DELETE) (/[A-Za-z0-9\-._~%!$&'()*+,;=:@/?]*) HTTP/1\.1\r\n")
_METHODS: Final = {method.encode(): method for method in ("GET", "HEAD", "POST", "PUT", "DELETE")}
_HEAD_END: Final = b"\r\n\r\n"
VARIED: Final = frozenset({"producer-seq", "content-length"})
"""Headers whose numbers differ between an idempotent producer's appends."""
_VARIED_LINE: Final = re.compile(
    rb"\r\n(Producer-Seq|producer-seq|Content-Length|content-length): ([0-9]{1,18})(?=\r\n)"
)
"""Matches the line of a `VARIED` header.  The pattern begins with the preceding line end, because a search for a fixed
beginning is fast."""
_NAMES: Final = {
    name.encode(): istr(name) for name in ("Producer-Seq", "producer-seq", "Content-Length", "content-length")
}
_LENGTHS: Final = frozenset({"Content-Length", "content-length"})
_MOST_SECTIONS: Final = 1 << 10
_MOST_SECTION_BYTES: Final = 1 << 10
_UNCACHEABLE: Final = ("Transfer-Encoding", "Upgrade", "Expect")


class HeaderCache:
    """Parsed header sections by their bytes.  Each table keeps at most 1,024 entries, and drops the oldest first."""

    def __init__(self) -> None:
        self._sections: OrderedDict[bytes, Fields] = OrderedDict()
        self._commons: OrderedDict[bytes, Fields] = OrderedDict()
        """The sections of POSTs, from which the lines of `VARIED` headers were taken out."""
        self._heads: OrderedDict[bytes, RequestHead] = OrderedDict()
        """Whole heads of requests other than GETs, including the request line, because clients repeat the heads of
        their writes."""

    def __len__(self) -> int:
        return len(self._sections)

    def __repr__(self) -> str:
        return f"<HeaderCache {len(self._sections)} sections>"

    def clear(self) -> None:
        """Forget all sections, because the values derived from them have become invalid."""
        self._sections.clear()
        self._commons.clear()
        self._heads.clear()

    def _find_varied(self, section: bytes, length: int) -> Fields | None:
        """Find the fields of a section that differs from an earlier section only in the numbers of `VARIED` headers.
        The request's body has `length` bytes.

        The section begins with the preceding line end.  Returns None if no such earlier section is cached.
        """
        rest, *numbers = _VARIED_LINE.split(section)
        for at in range(2, len(numbers), 3):
            rest += numbers[at]
        common = self._commons.get(rest) if numbers else None
        if common is None:
            return None
        varied: list[tuple[str, str]] = []
        stated: int | None = None
        for at in range(0, len(numbers), 3):
            name, value = _NAMES[numbers[at]], numbers[at + 1]
            varied.append((name, value.decode()))
            if name in _LENGTHS:
                if stated is not None:
                    return None
                stated = int(value)
        if len(varied) - (stated is not None) > 1 or len(common.headers) + len(varied) > MOST_FIELDS:
            return None
        return common.varied_by(varied, length) if (stated or 0) == length else None

    def lookup(self, data: bytes) -> list[Event] | None:
        """Return the events of `data` if it is exactly one complete request with a cached section.  Return None for any
        other data.
        """
        size = data.find(_HEAD_END) + len(_HEAD_END)
        head = self._heads.get(data[:size])
        if head is None:
            return self._lookup_section(data)
        length = head.fields.length
        if length != len(data) - size:
            return None
        return [head, data[size:], _END] if length else [head, _END]

    def _lookup_section(self, data: bytes) -> list[Event] | None:
        line = _LINE.match(data)
        if line is None:
            return None
        end = data.find(_HEAD_END, line.end() - 2) + len(_HEAD_END)
        section, length = data[line.end() : end], len(data) - end
        fields = self._sections.get(section)
        if fields is None and line[1] == b"POST" and self._commons:
            fields = self._find_varied(data[line.end() - 2 : end], length)
        if fields is None or fields.length != length:
            return None
        target = line[2]
        if len(target) > LONGEST_LINE:
            return None
        head = RequestHead(_METHODS[line[1]], target.decode(), "1.1", fields)
        if not fields.varied and head.method != "GET" and end <= _MOST_SECTION_BYTES:
            self._heads[data[:end]] = head
            evict_oldest(self._heads, _MOST_SECTIONS)
        return [head, data[end:], _END] if fields.length else [head, _END]

    def store(self, data: bytes, events: list[Event]) -> None:
        """Remember the header section of `data`, which the parser has turned into `events`."""
        head = events[0] if events else None
        if not isinstance(head, RequestHead) or events[-1] is not _END:
            return
        fields = head.fields
        if not fields.keeps_alive or any(name in fields.headers for name in _UNCACHEABLE):
            return
        line = _LINE.match(data)
        end = data.find(_HEAD_END) + len(_HEAD_END)
        if line is None or end - line.end() > _MOST_SECTION_BYTES or fields.length != len(data) - end:
            return
        section = data[line.end() : end]
        self._sections[section] = fields
        evict_oldest(self._sections, _MOST_SECTIONS)
        if head.method == "POST":
            self._store_common(data[line.end() - 2 : end], fields)

    def _store_common(self, section: bytes, fields: Fields) -> None:
        """Remember the part of this section that later appends may share."""
        rest, count = _VARIED_LINE.subn(b"", section)
        if not count:
            return
        common = CIMultiDict((name, value) for name, value in fields.headers.items() if name.lower() not in VARIED)
        if len(common) + count != len(fields.headers):
            # The line of a `VARIED` header has a form that the pattern does not match.
            return
        self._commons[rest] = Fields(common, fields.keeps_alive, 0)
        evict_oldest(self._commons, _MOST_SECTIONS)


# -- lines of a raw section


def lines_named(names: Sequence[str]) -> re.Pattern[bytes]:
    """Compile a pattern for a header line with one of these names.  The pattern includes the line break before the
    line.

    The pattern accepts each name in two spellings, Any-Name and any-name, and in mixtures of both.  A pattern that
    ignores case would be three times as slow.
    """
    if not names:
        return re.compile(rb"(?!)")
    # Group the names by their first letters.  Most other lines then fail after one comparison for each group.
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
