"""A cache of parsed header sections.

The requests of one client differ mostly in the request line; the header section behind it is the same, byte for byte.
A section that was parsed once as part of a complete, valid request is valid behind any other plain request line.  The
cache therefore returns its parsed fields, with everything derived from them, and only the line is parsed.

Every other request goes to the parser (`gateway.http.request`): requests that arrive in pieces or several at a time,
chunked bodies, upgrades, unusual request lines.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.http.request import LONGEST_LINE, Event, Fields, Mark, RequestHead

# Enum members are slow to reach in Python 3.11, and every request passes here.
_END: Final = Mark.END
_LINE: Final = re.compile(rb"(GET|HEAD|POST|PUT|DELETE) (/[A-Za-z0-9\-._~%!$&'()*+,;=:@/?]*) HTTP/1\.1\r\n")
_METHODS: Final = {method.encode(): method for method in ("GET", "HEAD", "POST", "PUT", "DELETE")}
_HEAD_END: Final = b"\r\n\r\n"
_MOST_SECTIONS: Final = 1 << 10
_MOST_SECTION_BYTES: Final = 1 << 10
_UNCACHEABLE: Final = ("Transfer-Encoding", "Upgrade", "Expect")


class HeaderCache:
    """Parsed header sections by their bytes; the oldest of more than 1,024 is dropped."""

    def __init__(self) -> None:
        self._sections: dict[bytes, Fields] = {}
        self._heads: dict[bytes, RequestHead] = {}
        """Whole heads, with the request line, of other requests than GETs: clients repeat their writes' heads."""

    def __len__(self) -> int:
        return len(self._sections)

    def __repr__(self) -> str:
        return f"<HeaderCache {len(self._sections)} sections>"

    def clear(self) -> None:
        """Forget all sections, because the values derived from them are no longer valid."""
        self._sections.clear()
        self._heads.clear()

    def lookup(self, data: bytes) -> list[Event] | None:
        """The events of `data` if it is exactly one complete request with a cached header section; else None."""
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
        fields = self._sections.get(data[line.end() : end])
        if fields is None or fields.length != len(data) - end:
            return None
        target = line[2]
        if len(target) > LONGEST_LINE:
            return None
        head = RequestHead(_METHODS[line[1]], target.decode(), "1.1", fields)
        if head.method != "GET" and end <= _MOST_SECTION_BYTES:
            if len(self._heads) >= _MOST_SECTIONS:
                del self._heads[next(iter(self._heads))]
            self._heads[data[:end]] = head
        return [head, data[end:], _END] if fields.length else [head, _END]

    def store(self, data: bytes, events: list[Event]) -> None:
        """Remember the header section of `data`, which the parser turned into `events` from its first byte on."""
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
        if len(self._sections) >= _MOST_SECTIONS:
            del self._sections[next(iter(self._sections))]
        self._sections[data[line.end() : end]] = fields
