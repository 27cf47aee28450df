"""Ready answers: what a plain hit looks like in bytes, kept beside the very request that led to it.

The first time a request goes to a handler.  When its answer is a plain hit, one that needs neither the origin nor
anything that is still in the air, the bytes of the request become a key to it.  No second parser judges requests: these
very bytes were judged by the parser.

Requests that differ from call to call in headers that mean nothing here (trace ids, user agents, cookies where they are
no credentials) share one key: the request without those lines.  Such a line is taken out only where it is of the one
shape that cannot hide anything, a known name in one of its two usual spellings, a colon and printable characters up to
the line's end.

An answer is good until its `until`: the end of the second that its Date and Age tell of, or earlier where the stream's
trust or life ends.  What may end it at any other time has to say so: a stream that ended or lost bytes by `forget`, a
doubt by `Stream.stale_marks`, and whatever changes what is known of an open stream's tail, for the answers that name
it, by `Stream.tail_version`.  An answer whose bytes were read before such a `forget` is not remembered after it.

What answers hold beside the tape is lent from the cache's budget, to the byte: keys, each spelling for as long as it is
kept, heads, joined bodies, and those bytes of a body that are not the tape's own pieces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.answer import BodyRun, NamedTail
from gateway.http.http2.blocks import block_of
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server.head import date_line, field_lines, status_line
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import Repeated
from gateway.telemetry.metrics import MetricsRecorder

MAX_REQUEST_BYTES: Final = 4_096
"""A longer request is not remembered; it is also well below what the strict parser accepts in one line."""

_MEANINGLESS: Final = (
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
"""Headers that no answer depends on, unless a route takes them for credentials."""

_MOST_LINES: Final = 64
"""More of them than this in one request and the strict parser shall count."""

_USER_AGENT: Final = b"\r\nuser-agent:"

_HEAD_END: Final = b"\r\n\r\n"

_JOINED_BYTES: Final = 1 << 14
"""A body up to this size is kept joined with its head: one write, no list."""

_ENTRY_COST: Final = 1_200
"""Bytes charged for an answer beside its key, heads and body: objects and dictionary slots."""

_SPELLING_COST: Final = 150
"""Bytes charged for a request in full beside its own."""

_MOST_SPELLINGS: Final = 4
"""Requests in full that lead to one answer without a look at their lines."""

_LARGEST_SHARE: Final = 8
"""Ready answers take up to this fraction of the cache's budget."""

_SEEN: Final = 1 << 15
"""Requests of late that are known to have come once: about 3 MB of marks."""


class RememberedAnswer:
    """One answer in bytes; `render` puts in what changes by the second (RFC 9110 §6.6.1, RFC 9111 §5.1)."""

    __slots__ = (
        "_block",
        "_body",
        "_head",
        "_laid_at",
        "body_bytes",
        "copied",
        "cost",
        "edition",
        "hits",
        "joined",
        "key",
        "mode",
        "outcome",
        "pieces",
        "repeated",
        "route",
        "saved_bytes",
        "spellings",
        "stale_marks",
        "stream",
        "tail",
        "trust_s",
        "until",
    )

    def __init__(
        self,
        shown: BodyRun,
        trust_s: float,
        tail: NamedTail | None,
        mode: Mode,
        outcome: Outcome,
        status: int,
        headers: CIMultiDict[str],
        body: Sequence[bytes],
        saved_bytes: int,
        copied: int,
        laid_at: float | None,
        route: str,
        repeated: Repeated | None,
    ) -> None:
        self.stream = shown.stream
        self.edition = shown.edition
        """That of the stream when the body was read."""
        self.route = route
        self.repeated = repeated
        """What the access log says of every answer; None where none is kept."""
        self.trust_s = trust_s
        self.tail = tail
        """The tail that it names; None where it would say the same wherever the tail is."""
        self.mode = mode
        self.outcome = outcome
        self.body_bytes = sum(map(len, body))
        self.saved_bytes = saved_bytes
        """How many more the body had before it was coded."""
        for name in ("Age", "Date"):
            headers.popall(name, None)
        self._head = status_line(status) + field_lines(headers)
        self._body = (b"".join(body),) if self.is_small else tuple(body)
        self.copied = 2 * self.body_bytes if self.is_small else copied
        """Bytes of bodies held beside the tape."""
        self._laid_at = laid_at
        self.joined: bytes | None = None
        """The whole response, where it is small."""
        self.pieces: tuple[bytes, ...] = ()
        """The whole response, where it is not."""
        self._block: bytes | None = None
        """The head as it is over HTTP/2, where somebody has asked for it."""
        self.until = -math.inf
        self.stale_marks = -1
        """Those of the stream when this was rendered."""
        self.hits = 0
        """Answers given that have not been counted yet."""
        self.key: tuple[bool, bytes] | None = None
        self.spellings: list[bytes] = []
        self.cost = 0
        """Bytes of the cache's budget lent for it, spellings included."""

    @property
    def is_small(self) -> bool:
        return self.body_bytes <= _JOINED_BYTES

    def cost_under(self, key: bytes) -> int:
        """Bytes that this takes when it is remembered under `key`, without spellings."""
        return _ENTRY_COST + 2 * len(self._head) + self.copied + len(key)

    @property
    def body(self) -> tuple[bytes, ...]:
        """The body, as one where it is small; nothing where there is none."""
        return self._body if self.body_bytes else ()

    def block(self) -> bytes:
        """The head that was rendered last, as a field block (RFC 7541)."""
        if self._block is None:
            joined = self.joined
            self._block = block_of(joined[: len(joined) - self.body_bytes] if joined is not None else self.pieces[0])
        return self._block

    def is_good(self, now: float) -> bool:
        """Whether it may be given at `now` as it was rendered."""
        stream = self.stream
        return (
            now < self.until
            and stream.stale_marks == self.stale_marks
            and (self.tail is None or stream.tail_version == self.tail.version)
        )

    def render(self, now: float, wall: float) -> bool:
        """Make it the response of this second; False where the stream may not be answered for without the origin."""
        stream = self.stream
        if stream.ended is not None or stream.has_expired(now, wall) or not stream.may_answer_alone(now, self.trust_s):
            return False
        named_until = math.inf
        if self.tail is not None:
            named_until = stream.tail_until(self.tail.at) if stream.tail_version == self.tail.version else -math.inf
            if named_until <= now:
                return False
        age = b"" if self._laid_at is None else b"Age: %d\r\n" % max(0, int(now - self._laid_at))
        head = self._head + age + date_line(int(wall)) + b"\r\n"
        self._block = None
        if self.is_small:
            self.joined = head + self._body[0]
        else:
            self.pieces = (head, *self._body)
        self.until = min(now + 1 - wall % 1, stream.trusted_until(now, self.trust_s), named_until)
        if stream.lifetime is not None and stream.lifetime.expires_at is not None:
            self.until = min(self.until, now + stream.lifetime.expires_at - wall)
        self.stale_marks = stream.stale_marks
        return True


class RememberedAnswers:
    """Requests to ready answers.  One owner per process.  `touch` is told of streams that are answered from."""

    def __init__(
        self,
        clock: Clock,
        store: TapeStore,
        metrics: MetricsRecorder,
        credential_headers: Iterable[Collection[str]],
        touch: Callable[[Stream], None],
    ) -> None:
        self._clock = clock
        self._store = store
        self._metrics = metrics
        self._touch = touch
        self.exact: dict[bytes, RememberedAnswer] = {}
        """Requests byte for byte: where a connection looks first."""
        self._by_loose: dict[bytes, RememberedAnswer] = {}
        self._by_tight: dict[bytes, RememberedAnswer] = {}
        self._by_stream: dict[Stream, set[RememberedAnswer]] = {}
        self._all: dict[RememberedAnswer, None] = {}
        self._lively: set[RememberedAnswer] = set()
        """Those that may have been given since they were counted."""
        self._seen: set[int] = set()
        self._served = 0
        self.cost = 0
        self.generation = 0
        """Counts the beginnings: an answer to a request of an earlier one was led to by other routes, and is not to be
        remembered."""
        self.take(credential_headers)

    def take(self, credential_headers: Iterable[Collection[str]]) -> None:
        """Begin anew, with routes that take these headers for credentials."""
        self.generation += 1
        for remembered in list(self._all):
            self._drop(remembered)
        by_route = [{name.lower() for name in names} for names in credential_headers]
        self._loose_names = [name for name in _MEANINGLESS if not all(name in names for names in by_route)]
        tight_names = [name for name in _MEANINGLESS if not any(name in names for names in by_route)]
        self._loose = _lines(self._loose_names)
        self._tight = _lines(tight_names) if tight_names != self._loose_names else None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def budget_bytes(self) -> int:
        """Most bytes that answers may take."""
        return self._store.budget_bytes // _LARGEST_SHARE

    @property
    def served(self) -> int:
        """Answers given."""
        self.count()
        return self._served

    # -- finding

    def find(self, request: bytes) -> RememberedAnswer | None:
        """The answer to exactly this request, or to one that differs in meaningless lines only; None to go on."""
        remembered = self.exact.get(request)
        if remembered is None:
            remembered = self._find_reduced(request)
            if remembered is None:
                return None
            self._note(request, remembered)
        if remembered.is_good(self._clock.now()) or self._renew(remembered):
            return remembered
        return None

    def _find_reduced(self, request: bytes) -> RememberedAnswer | None:
        if self._by_loose and (reduced := _reduce(self._loose, request)) is not None:
            remembered = self._by_loose.get(reduced)
            if remembered is not None:
                return remembered
        if self._by_tight and self._tight is not None and (reduced := _reduce(self._tight, request)) is not None:
            return self._by_tight.get(reduced)
        return None

    def _note(self, request: bytes, remembered: RememberedAnswer) -> None:
        """A request that comes again as it was is found without a look at its lines; one that came once is not kept."""
        mark = hash(request)
        if mark in self._seen:
            self._spell(request, remembered)
        else:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(mark)

    def _spell(self, request: bytes, remembered: RememberedAnswer) -> None:
        """Have the request lead to the answer as it is, where there is room for it: nothing else goes for that."""
        if len(remembered.spellings) >= _MOST_SPELLINGS:
            oldest = remembered.spellings.pop(0)
            del self.exact[oldest]
            self._charge(remembered, -_alias_cost(oldest))
        cost = _alias_cost(request)
        if self.cost + cost <= self.budget_bytes and self._store.lend(cost, remembered.stream):
            self._charge(remembered, cost)
            remembered.spellings.append(request)
            self.exact[request] = remembered

    def _charge(self, remembered: RememberedAnswer, cost: int) -> None:
        """Note what was lent for the answer; what is negative is given back."""
        remembered.cost += cost
        self.cost += cost
        if cost < 0:
            self._store.take_back(-cost)

    def _renew(self, remembered: RememberedAnswer) -> bool:
        self._count(remembered)
        if not remembered.render(self._clock.now(), self._clock.wall()):
            return False
        # The stream counts as read once for each second in which it is.
        self._touch(remembered.stream)
        self._lively.add(remembered)
        return True

    # -- counting

    def count(self) -> None:
        """Tell the recorder of all that was given."""
        now = self._clock.now()
        for remembered in list(self._lively):
            self._count(remembered)
            if now >= remembered.until:
                self._lively.discard(remembered)

    def _count(self, remembered: RememberedAnswer) -> None:
        hits, remembered.hits = remembered.hits, 0
        if hits:
            self._served += hits
            sent = hits * remembered.body_bytes
            saved = hits * remembered.saved_bytes
            self._metrics.hits(remembered.mode, remembered.outcome, hits, sent, remembered.route, saved_bytes=saved)
            stream = remembered.stream
            stream.count_reads(hits, hits)
            stream.count_sent(sent)

    # -- remembering and forgetting

    def remember(self, request: bytes, remembered: RememberedAnswer, credential_headers: Collection[str]) -> None:
        """A handler has answered `request` by `remembered`; the request is kept without its meaningless lines.

        `credential_headers` are those of its route, in lower case.
        """
        is_loose = self._tight is None or not any(name in credential_headers for name in self._loose_names)
        shape = self._loose if is_loose or self._tight is None else self._tight
        by_key = self._by_loose if is_loose else self._by_tight
        key = _reduce(shape, request)
        if key is None or remembered.stream.ended is not None or remembered.stream.edition != remembered.edition:
            return
        cost = remembered.cost_under(key)
        if cost > self.budget_bytes:
            return
        if (old := by_key.get(key)) is not None:
            self._drop(old)
        if (old := self.exact.get(request)) is not None:
            self._drop(old)
        while self.cost + cost > self.budget_bytes:
            self._drop(next(iter(self._all)))
        if not self._store.lend(cost, remembered.stream):
            return
        self._charge(remembered, cost)
        remembered.key = (is_loose, key)
        by_key[key] = remembered
        self._all[remembered] = None
        self._by_stream.setdefault(remembered.stream, set()).add(remembered)
        self._spell(request, remembered)

    def forget(self, stream: Stream) -> None:
        """Drop every answer that shows bytes of `stream`."""
        for remembered in list(self._by_stream.get(stream, ())):
            self._drop(remembered)

    def _drop(self, remembered: RememberedAnswer) -> None:
        assert remembered.key is not None
        self._count(remembered)
        self._lively.discard(remembered)
        is_loose, key = remembered.key
        del (self._by_loose if is_loose else self._by_tight)[key]
        for request in remembered.spellings:
            del self.exact[request]
        del self._all[remembered]
        self._charge(remembered, -remembered.cost)
        siblings = self._by_stream[remembered.stream]
        siblings.discard(remembered)
        if not siblings:
            del self._by_stream[remembered.stream]


def _alias_cost(request: bytes) -> int:
    return _SPELLING_COST + len(request)


def _lines(names: Sequence[str]) -> re.Pattern[bytes]:
    """A header line of one of these names, with the line end before it.

    Two spellings of each, Any-Name and any-name (any-Name and Any-name as well): a pattern without case is three times
    as slow.
    """
    if not names:
        return re.compile(rb"(?!)")
    spelled = [
        "-".join(f"[{part[0].upper()}{part[0]}]{re.escape(part[1:])}" for part in name.split("-")) for name in names
    ]
    return re.compile(rb"\r\n(?:" + "|".join(spelled).encode() + rb"):[\t\x20-\x7e]*(?=\r\n)")


def _reduce(shape: re.Pattern[bytes], request: bytes) -> bytes | None:
    """The request without the lines of `shape`; None where it is not one whole head and nothing more, or too much."""
    size = len(request)
    if size > MAX_REQUEST_BYTES or request.find(_HEAD_END) != size - len(_HEAD_END):
        return None
    reduced, lines = shape.subn(b"", request)
    if lines > 1 and request.lower().count(_USER_AGENT) > 1:
        # The strict parser refuses a second one (RFC 9110 §5.3), and without these lines there would be none to see.
        return None
    return reduced if lines <= _MOST_LINES else None
