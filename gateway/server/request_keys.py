"""Header sections by their meaning: requests that differ only in headers without influence on the answer share a key.

A key is a request's bytes without such lines.  They are trace ids, user agents, cookies where they are not credentials,
and Accept except on routes to S2; headers that name the client behind a proxy; and credentials on routes whose readers
share.  A line is taken out only if it has the one form that cannot hide anything: a known name in one of its two usual
spellings, a colon, and printable characters up to the end of the line.

Clients repeat their header sections behind other request lines.  `Sections` remembers for a section the keys it gives
and the client that it names, so that its lines are looked through once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from gateway.http.request import MOST_FIELDS
from gateway.protocol.client_address import Proxies

MAX_REQUEST_BYTES: Final = 4_096
"""Longer requests are not remembered.  The bound is far below what the strict parser accepts in one line."""

MEANINGLESS: Final = (
    "accept",
    "accept-language",
    "baggage",
    "cookie",
    "dnt",
    "referer",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "sec-fetch-user",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-correlation-id",
    "x-request-id",
)
"""Headers that no answer depends on, unless they are among the `meaningful_names` of its route."""

FORWARDING: Final = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-real-ip")
"""Headers that name a client behind a proxy.  They decide its limits and its log line, and no shared answer."""

_MOST_BREAKS: Final = MOST_FIELDS + 2
"""Line breaks of the longest section that the strict parser accepts."""

_MOST_BYTES: Final = 1 << 23
_COST: Final = 400
"""Bytes charged for a section in addition to its own and its keys'."""

_HEAD_END: Final = b"\r\n\r\n"


def lines_named(names: Sequence[str]) -> re.Pattern[bytes]:
    """A pattern for a header line with one of these names, along with the line break before it.

    Matches two spellings of each name, Any-Name and any-name (any-Name and Any-name as well): a pattern that ignores
    case is three times as slow.
    """
    if not names:
        return re.compile(rb"(?!)")
    spelled = [
        "-".join(f"[{part[0].upper()}{part[0]}]{re.escape(part[1:])}" for part in name.split("-")) for name in names
    ]
    return re.compile(rb"\r\n(?:" + "|".join(spelled).encode() + rb"):[\t\x20-\x7e]*(?=\r\n)")


def _is_section(text: bytes) -> bool:
    """Whether the text is exactly one section within the bounds."""
    size = len(text)
    return (
        size <= MAX_REQUEST_BYTES
        and text.endswith(_HEAD_END)
        and text.find(_HEAD_END) == size - len(_HEAD_END)
        and text.count(b"\r\n") <= _MOST_BREAKS
    )


class Section:
    """One header section, with its keys and its client."""

    __slots__ = ("_client", "_peer", "loose", "text", "tight")

    def __init__(self, text: bytes, loose: bytes, tight: bytes | None) -> None:
        self.text = text
        """The section, from the line break behind the request line on."""
        self.loose = loose
        """The section without the lines that are meaningless to at least one route."""
        self.tight = tight
        """The section without the lines that are meaningless to every route; None if the two are the same."""
        self._peer: str | None = ""
        self._client: str | None = None

    def client(self, proxies: Proxies, peer: str | None) -> str | None:
        """The client's address, without a port, for a request from `peer`; None if it is not known."""
        if peer != self._peer:
            self._client, self._peer = proxies.client_of(peer, self.text), peer
        return self._client


class Sections:
    """Header sections by their bytes, with the keys that they give; the oldest are evicted first."""

    def __init__(self, meaningful_names: Iterable[Collection[str]], personal_names: Iterable[str] = ()) -> None:
        self._sections: dict[bytes, Section] = {}
        self._size = 0
        self._latest: tuple[bytes, bytes, Section] | None = None
        self.reset(meaningful_names, personal_names)

    def __repr__(self) -> str:
        return f"<Sections {len(self._sections)} sections, {self._size} bytes>"

    def __len__(self) -> int:
        return len(self._sections)

    def reset(self, meaningful_names: Iterable[Collection[str]], personal_names: Iterable[str] = ()) -> None:
        """Forget everything, and begin with routes whose answers depend on these headers (`Route.meaningful_names`).

        `personal_names` are further headers that some route's answers do not depend on (`Route.personal_names`).
        """
        self._sections.clear()
        self._size = 0
        self._latest = None
        by_route = list(meaningful_names)
        names = list(dict.fromkeys((*MEANINGLESS, *FORWARDING, *personal_names)))
        self.loose_names = [name for name in names if not all(name in known for known in by_route)]
        tight_names = [name for name in names if not any(name in known for known in by_route)]
        self._loose = lines_named(self.loose_names)
        self._tight = lines_named(tight_names) if tight_names != self.loose_names else None

    def is_loose(self, meaningful_names: Collection[str]) -> bool:
        """Whether requests of a route with these `meaningful_names` have the loose key."""
        return self._tight is None or not any(name in meaningful_names for name in self.loose_names)

    def split(self, request: bytes) -> tuple[bytes, Section] | None:
        """The request line and the header section of a GET; None if it gives no key."""
        latest = self._latest
        # One request is looked up several times: to answer it, to limit it, and to log it.
        if latest is not None and latest[0] is request:
            return latest[1:]
        if len(request) > MAX_REQUEST_BYTES or not request.startswith(b"GET "):
            return None
        end = request.find(b"\r\n")
        section = self.of(request[end:])
        if section is None:
            return None
        self._latest = (request, line := request[:end], section)
        return line, section

    def of(self, text: bytes) -> Section | None:
        """The section with these bytes, from the line break behind the request line on; None if it gives no key."""
        section = self._sections.get(text)
        if section is not None:
            return section
        if not _is_section(text):
            return None
        tight = self._tight.sub(b"", text) if self._tight is not None else None
        section = Section(text, self._loose.sub(b"", text), tight)
        self._size += _cost(section)
        while self._size > _MOST_BYTES and self._sections:
            self._size -= _cost(self._sections.pop(next(iter(self._sections))))
        self._sections[text] = section
        return section


def _cost(section: Section) -> int:
    return _COST + len(section.text) + len(section.loose) + len(section.tight or b"")
