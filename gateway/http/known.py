"""Header sections that were read before.

What a client sends differs from request to request mostly in the request line: the header section behind it is the
same, byte for byte.  A section that was read once as a part of a whole and valid request is valid behind every other
plain request line, so it is looked up, with all that was made of it, and only the line is read.

Whatever is not plain is the parser's to judge (`gateway.http.request`): a request that comes in pieces, several at a
time, chunks, another protocol, a line of an unusual form.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.http.request import LONGEST_LINE, Event, Fields, Mark, RequestHead

_LINE: Final = re.compile(rb"(GET|HEAD|POST|PUT|DELETE) (/[A-Za-z0-9\-._~%!$&'()*+,;=:@/?]*) HTTP/1\.1\r\n")
_METHODS: Final = {method.encode(): method for method in ("GET", "HEAD", "POST", "PUT", "DELETE")}
_HEAD_END: Final = b"\r\n\r\n"
_MOST_SECTIONS: Final = 1 << 10
_MOST_SECTION_BYTES: Final = 1 << 10
_UNKNOWABLE: Final = ("Transfer-Encoding", "Upgrade", "Expect")


class KnownFields:
    """Sections by their bytes, the last thousand of them."""

    def __init__(self) -> None:
        self._sections: dict[bytes, Fields] = {}

    def __len__(self) -> int:
        return len(self._sections)

    def clear(self) -> None:
        """Know nothing any more: what was made of sections no longer holds."""
        self._sections.clear()

    def read(self, data: bytes) -> list[Event] | None:
        """The events of one whole request behind which nothing follows, where its section is known; else None."""
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
        return [head, data[end:], Mark.END] if fields.length else [head, Mark.END]

    def learn(self, data: bytes, events: list[Event]) -> None:
        """These bytes were read as these events, from the first of them on."""
        head = events[0] if events else None
        if not isinstance(head, RequestHead) or events[-1] is not Mark.END:
            return
        fields = head.fields
        if not fields.keeps_alive or any(name in fields.headers for name in _UNKNOWABLE):
            return
        line = _LINE.match(data)
        end = data.find(_HEAD_END) + len(_HEAD_END)
        if line is None or end - line.end() > _MOST_SECTION_BYTES or fields.length != len(data) - end:
            return
        if len(self._sections) >= _MOST_SECTIONS:
            del self._sections[next(iter(self._sections))]
        self._sections[data[line.end() : end]] = fields
