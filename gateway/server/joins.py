"""Live requests remembered by their meaning, so that the next reader's request need not be parsed.

When one event wakes a thousand clients, all of them come back for the same.  The first such request is parsed and
handled.  Its read is kept under the request's bytes, and under its key (`gateway.server.request_keys`), which the
requests of other clients share.  Whether a later one may wait without a request to the origin is the engine's decision
each time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.engine.read import Read
from gateway.engine.sse_opening import SseOpening
from gateway.protocol.mode import Mode
from gateway.server.poll_group import PollGroup
from gateway.server.request_keys import Section, Sections
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import Record

_MOST_BYTES: Final = 1 << 22
_COST: Final = 5_500
"""Bytes charged for a request in addition to its own and its key: its read, and the beginning of its answer."""

_MARK: Final = b"live="
"""In the request line of every live request, unless its spelling is unusual."""


@dataclass(slots=True)
class SseHead:
    """The head of an SSE response and what it was made from; it can be sent again within the same second."""

    headers: CIMultiDict[str]
    """The stream's headers that its answers repeat."""
    content_type: str | None
    second: int
    head: bytes

    def is_of(self, stream: Stream, second: int) -> bool:
        """Whether the head is that of an answer that begins in this second (Unix time)."""
        return self.second == second and self.headers is stream.headers and self.content_type == stream.content_type


@dataclass(slots=True)
class Join:
    """What a live request asks for."""

    read: Read
    mode: Mode
    origin: str | None
    """The Origin header, which determines the CORS fields of the answer."""
    facts: Record | None = None
    """The part of the requests' records that they have in common; None without an access log."""
    group: PollGroup | None = None
    """The clients that have sent such a request and wait."""
    sse_head: SseHead | None = None
    sse_opening: SseOpening | None = None
    """The beginning of the latest reader's answer, for the next one."""
    line: bytes | None = None
    """The request line, once the request is remembered."""


Found = tuple[Join, Section]
"""The meaning of a request, and its header section."""


class Joins:
    """Joins of live requests, by the requests' bytes and by their keys; the oldest are evicted first.

    `generation` counts calls to `clear`.  A request read in an earlier generation was read under other routes, and must
    not be remembered.
    """

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self._by_bytes: dict[bytes, Found] = {}
        self._by_key: dict[tuple[bool, bytes], tuple[bytes, Join]] = {}
        """The remembered requests and their joins."""
        self._size = 0
        self.generation = 0
        self.get = self._by_bytes.get
        """The meaning of exactly this request; None if it is not remembered."""

    def __repr__(self) -> str:
        return f"<Joins {len(self._by_key)} requests, {self._size} bytes>"

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, request: bytes) -> Found | None:
        """The meaning of this request, if one that differs only in meaningless lines is remembered."""
        if not self._by_key or (split := self._sections.split(request)) is None or _MARK not in split[0]:
            return None
        line, section = split
        found = self._by_key.get((True, line + section.loose))
        if found is None and section.tight is not None:
            found = self._by_key.get((False, line + section.tight))
        return (found[1], section) if found is not None else None

    def remember(self, request: bytes, join: Join, meaningful_names: Collection[str]) -> Section | None:
        """Remember that `request`, which arrived whole and alone, asks for `join`, as do all with its key.

        `meaningful_names` are those of its route.  Returns its header section; None if it is not remembered.
        """
        if (split := self._sections.split(request)) is None:
            return None
        line, section = split
        join.line = line
        is_loose = section.tight is None or self._sections.is_loose(meaningful_names)
        key = (is_loose, line + (section.loose if is_loose or section.tight is None else section.tight))
        self._forget(key)
        self._size += len(request) + len(key[1]) + _COST
        while self._size > _MOST_BYTES and self._by_key:
            self._forget(next(iter(self._by_key)))
        self._by_key[key] = (request, join)
        self._by_bytes[request] = (join, section)
        return section

    def _forget(self, key: tuple[bool, bytes]) -> None:
        found = self._by_key.pop(key, None)
        if found is not None:
            del self._by_bytes[found[0]]
            self._size -= len(found[0]) + len(key[1]) + _COST

    def clear(self) -> None:
        """Forget everything, because the routes have changed."""
        self.generation += 1
        self._by_bytes.clear()
        self._by_key.clear()
        self._size = 0
