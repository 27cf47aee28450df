"""Joins: live requests that are remembered, so that the next reader's equal request need not be parsed.

If one event wakes a thousand clients, each of them sends its request again.  The first such request is parsed and
handled.  The resulting read is kept under the request line and the header section's meaning.  The meaning is the
section without the headers that do not affect the answer (`gateway.server.header_meanings`), so it is the same for the
other clients.  For each later request, the engine decides whether the reader may wait without a request to the origin.

A long-poll is *late* if its bytes are in memory when it arrives.  This happens if messages follow each other faster
than the client can send requests.  Other clients may be late at the same offset.  The second of their requests is
therefore parsed, and its answer is remembered until the tail moves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.engine.read import Read
from gateway.engine.route import HeaderRules
from gateway.engine.sse import SseOpening
from gateway.protocol.mode import Mode
from gateway.protocol.stream_version import Version
from gateway.server.header_meanings import Known, Meaning, Presented, Section, Sections
from gateway.server.poll_group import PollGroup
from gateway.server.query_credentials import Beginnings, VerdictKey
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import CommonFacts

_MOST_BYTES: Final = 1 << 24
"""Room for the SSE readers of some 2,500 streams.  A live request that is not remembered costs two to three times as
much.
"""
_COST: Final = 6_500
"""Bytes charged for a join in addition to its line and meaning: its read, and the beginning of its answer."""


@dataclass(slots=True)
class SseHead:
    """The head of an SSE response, which is repeated for answers that begin in the same second."""

    headers: CIMultiDict[str]
    """The stream's headers when this head was made, compared by identity."""
    content_type: str | None
    second: int
    head: bytes

    def is_of(self, stream: Stream, second: int) -> bool:
        """Return whether this head is valid for an answer that begins in this second of Unix time."""
        return self.second == second and self.headers is stream.headers and self.content_type == stream.content_type


class LatePolls(NamedTuple):
    """The late long-polls of a join, which arrived after the bytes that they read.

    The first of them is answered like a long-poll that waits.  The second is parsed, so that its answer is remembered.
    """

    version: Version
    """The stream's version.  After the version has changed, an earlier answer states an outdated tail."""
    parsed: set[bytes | None]
    """The web origins whose second late long-poll has been parsed.  An answer contains one web origin."""


@dataclass(slots=True)
class Join(Known):
    """A remembered live request."""

    # Each long-poll of one client has another offset.
    has_recurring_lines = False
    read: Read
    mode: Mode
    origin: bytes | None
    """The web origin in the answer to the first request; None if answers contain no web origin.  Each later answer
    contains the web origin of its own client.
    """
    facts: CommonFacts | None = None
    """The fields that the log records of all these requests have in common; None without an access log."""
    group: PollGroup | None = None
    """The group of long-polls that wait for this request's answer now."""
    sse_head: SseHead | None = None
    sse_opening: SseOpening | None = None
    """The beginning of the latest reader's answer, for the next reader."""
    sse_first: tuple[bytes, bytes] = (b"", b"")
    """The bytes of that beginning, split at the web origin's name.  Without such a name, the first part has all bytes.
    """
    late: LatePolls | None = None
    """The late long-polls among these requests; None if none was late."""
    line: bytes | None = None
    """The request line of the first request, once the request is remembered."""
    key: bytes = b""
    """The request line that all these requests have in common.  For requests with credentials in their queries, this is
    the line without the credentials (`gateway.server.query_credentials.Divided`)."""
    alias: bytes = b""
    """The bytes of the first request, once the request is remembered."""
    most_s: float = math.inf
    """The most seconds that the read may last."""
    verdict_key: VerdictKey = b""
    """The key under which header sections keep verdicts of authorisation on the first request: the stream, or the
    request line."""


class Joins:
    """The owner of all joins of the process.  The oldest are evicted first.

    `generation` counts calls to `clear`.  A request read in an earlier generation was read under other routes, so it is
    not remembered.
    """

    def __init__(self, sections: Sections) -> None:
        self._sections = sections
        self._all: dict[tuple[bytes, Meaning], Join] = {}
        """Joins by their keys and meanings."""
        self.exact: dict[bytes, tuple[Join, Section]] = {}
        """Joins by the exact bytes of a request, each with its header section.  This is the fastest look-up for clients
        that send equal bytes.  A section with a cost of 0 is no longer kept by `Sections`, and must be looked up
        again."""
        self._size = 0
        self.beginnings = Beginnings()
        """The beginnings of request lines that connections keep for the next look-up."""
        self.generation = 0

    def __repr__(self) -> str:
        return f"<Joins {len(self._all)} requests, {self._size} bytes>"

    def __len__(self) -> int:
        return len(self._all)

    def remember(self, request: bytes, join: Join, rules: HeaderRules) -> Section | None:
        """Remember `join` for all requests with the meaning of `request`, whose route has these `rules`.

        Returns the request's header section, or None if the request cannot be remembered.
        """
        if (split := self._sections.split(request)) is None:
            return None
        line, section = split
        join.verdict_key = join.verdict_key or line
        if (key := self._sections.common_line(line, join.verdict_key)) is None:
            return None
        join.line, join.key, join.alias = line, key, request
        meaning = self._sections.for_lives(section, rules)
        if (former := self._all.get((join.key, meaning))) is not None:
            join.late = former.late
        self._forget(join.key, meaning)
        self._size += _cost(meaning, join)
        while self._size > _MOST_BYTES and self._all:
            self._forget(*next(iter(self._all)))
        self._all[join.key, meaning] = join
        self.exact[request] = (join, section)
        meaning.learn(join.key, join)
        return section

    def find(self, request: bytes) -> Known | None:
        """Return the join or the remembered answer that an equal request would get."""
        found = self._sections.find(request)
        known = found[0] if found is not None else None
        return known.known if isinstance(known, Presented) else known

    def found_by_meaning(self, join: Join, section: Section) -> None:
        """From now on, find the join by the exact bytes of the first request.  `section` is the header section of these
        bytes.

        The section of the first request is not kept, unless another request had the same section before.
        """
        if section.cost:
            self.exact[join.alias] = (join, section)

    def _forget(self, key: bytes, meaning: Meaning) -> None:
        join = self._all.pop((key, meaning), None)
        if join is not None:
            self._size -= _cost(meaning, join)
            self.exact.pop(join.alias, None)
            meaning.forget_known(key, join)

    def clear(self) -> None:
        """Forget all joins, because the routes have changed."""
        self.generation += 1
        while self._all:
            self._forget(*next(iter(self._all)))


def _cost(meaning: Meaning, join: Join) -> int:
    # Count the request's bytes twice, because `exact` and the text of the request's section both contain them.
    return _COST + len(join.key) + len(meaning.text) + 2 * len(join.alias)
