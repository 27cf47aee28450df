"""Live requests remembered by their meaning, so that the next reader's request need not be parsed.

When one event wakes a thousand clients, all of them send the same request again.  The first such request is parsed and
handled.  Its read is kept under the meaning of its header section (`gateway.server.request_keys`), which the requests
of other clients share.  For each later request the engine decides whether it may wait without a request to the origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.engine.read import Read
from gateway.engine.route import HeaderRules
from gateway.engine.sse import SseOpening
from gateway.protocol.mode import Mode
from gateway.server.poll_group import PollGroup
from gateway.server.request_keys import Known, Meaning, Section, Sections, VerdictKey
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import CommonFacts

_MOST_BYTES: Final = 1 << 22
_COST: Final = 6_500
"""Bytes charged for a request in addition to its line and its meaning: its read, and the beginning of its answer."""


@dataclass(slots=True)
class SseHead:
    """The head of an SSE response and what it was made from; it can be sent again within the same second."""

    headers: CIMultiDict[str]
    """The stream's headers that its answers repeat."""
    content_type: str | None
    second: int
    head: bytes

    def is_of(self, stream: Stream, second: int) -> bool:
        """Whether this is the head of an answer that begins in this second (Unix time)."""
        return self.second == second and self.headers is stream.headers and self.content_type == stream.content_type


@dataclass(slots=True)
class Join(Known):
    """The meaning of a live request."""

    read: Read
    mode: Mode
    origin: bytes | None
    """The web origin that the answer to the first request names; the answer to each other request names that request's
    own.  None if the answers name none."""
    facts: CommonFacts | None = None
    """The facts that the requests' records have in common; None without an access log."""
    group: PollGroup | None = None
    """The clients that have sent such a long-poll and wait for its answer."""
    sse_head: SseHead | None = None
    sse_opening: SseOpening | None = None
    """The beginning of the latest reader's answer, for the next one."""
    sse_first: tuple[bytes, bytes] = (b"", b"")
    """The bytes of that beginning, split at the name of the web origin; without a name, all are in the first part."""
    line: bytes | None = None
    """The request line, once the request is remembered."""
    verdict_key: VerdictKey | None = None
    """The key of verdicts on it in a header section: the stream, or the request line."""


class Joins:
    """Joins of live requests; the oldest are evicted first.  Owner of the joins that meanings hold.

    `generation` counts calls to `clear`.  A request read in an earlier generation was read under other routes, and must
    not be remembered.
    """

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self._all: dict[tuple[bytes, Meaning], Join] = {}
        """The remembered joins, by request line and meaning."""
        self._size = 0
        self.generation = 0

    def __repr__(self) -> str:
        return f"<Joins {len(self._all)} requests, {self._size} bytes>"

    def __len__(self) -> int:
        return len(self._all)

    def remember(self, request: bytes, join: Join, rules: HeaderRules) -> Section | None:
        """Remember `join` for `request`, which arrived whole and alone, and for all requests with the same meaning.

        `rules` are those of the request's route.  Returns the request's header section; None if it is not remembered.
        """
        if (split := self._sections.split(request)) is None:
            return None
        line, section = split
        join.line = line
        join.verdict_key = join.verdict_key or line
        meaning = self._sections.for_lives(section, rules)
        self._forget(line, meaning)
        self._size += _cost(line, meaning)
        while self._size > _MOST_BYTES and self._all:
            self._forget(*next(iter(self._all)))
        self._all[line, meaning] = join
        meaning.learn(line, join)
        return section

    def _forget(self, line: bytes, meaning: Meaning) -> None:
        join = self._all.pop((line, meaning), None)
        if join is not None:
            self._size -= _cost(line, meaning)
            meaning.forget_known(line, join)

    def clear(self) -> None:
        """Forget everything, because the routes have changed."""
        self.generation += 1
        while self._all:
            self._forget(*next(iter(self._all)))


def _cost(line: bytes, meaning: Meaning) -> int:
    return _COST + len(line) + len(meaning.text)
