"""Remembered answers: whole responses from memory, repeated as bytes for equal requests.

The first request of its kind is parsed and handled.  If its answer needs neither the origin nor further work, the
answer is remembered under a key of two parts: the request line, and the meaning of the header section.  The meaning is
the section without the headers that do not affect the answer (`gateway.server.header_meanings`).  All keys are made of
requests that the HTTP parser has accepted.

A rendered answer is valid up to the time `until`.  This is the end of the second that the answer's Date and Age state.
`until` is earlier if the stream expires earlier, or if the origin has to be asked earlier.  Two events make an answer
invalid before `until`:

- `forget_stream`, when the stream ends or loses bytes (or S2 records).  If an answer's bytes were read before that
  call, the answer is not remembered after the call.
- A change of the stream's `Version`.  The stream then needs revalidation, or its tail (its end) is no longer the tail
  in the answer.

Answers take memory in addition to the tape (the stream's bytes in memory): keys, heads, joined bodies, and body bytes
that the tape does not hold.  This memory is borrowed from the cache's budget.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.answer import BodyRun, NamedTail
from gateway.engine.route import HeaderRules
from gateway.http.http2.blocks import block_of
from gateway.http.outgoing import JOINED_BYTES, date_line, field_lines, status_line
from gateway.limits.memory import SharedBytes
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import StreamKey
from gateway.server.header_meanings import Known, Meaning, Section, Sections
from gateway.server.query_credentials import VerdictKey
from gateway.tape.costs import ANSWER_COST, ANSWER_SHARE
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import Repeated
from gateway.telemetry.metrics import MetricsRecorder


class Repeatable(NamedTuple):
    """An answer from memory that may be repeated for equal requests."""

    run: BodyRun
    """The stream's bytes that the answer contains."""
    outcome: Outcome
    status: int
    headers: CIMultiDict[str]
    body: Sequence[bytes]
    saved_bytes: int = 0
    """The bytes that content coding saved."""
    copied: int = 0
    """Bytes of the body that only this answer holds.  The other bytes are in `shared`."""
    shared: SharedBytes | None = None
    """Divides the cost of the body's bytes among clients.  None if the answer has to make its own `SharedBytes`."""


class RememberedAnswer(Known):
    """One remembered answer.  `render` writes the fields that change each second: Date (RFC 9110 §6.6.1) and Age (RFC
    9111 §5.1)."""

    has_recurring_lines = True
    __slots__ = (
        "_block",
        "_body",
        "_has_age",
        "_head",
        "_is_own",
        "_start",
        "alias",
        "body_bytes",
        "copied",
        "cost",
        "edition",
        "hits",
        "is_guarded",
        "joined",
        "key",
        "mode",
        "outcome",
        "pieces",
        "repeated",
        "request",
        "route",
        "saved_bytes",
        "shared",
        "stream",
        "tail",
        "trust_s",
        "until",
        "verdict_key",
        "version",
    )

    def __init__(
        self,
        answer: Repeatable,
        trust_s: float,
        tail: NamedTail | None,
        mode: Mode,
        route: str,
        repeated: Repeated | None,
        verdict_key: VerdictKey | None = None,
    ) -> None:
        """`verdict_key` is None if requests for the answer need no authorisation."""
        self.is_guarded = verdict_key is not None
        """Whether each request for the answer needs authorisation."""
        self.verdict_key = verdict_key
        """The key of the verdict on the first request for this answer: the stream, or the request line.  The line is
        empty until the answer is remembered.  Header sections keep their verdicts under such keys."""
        run, outcome, status, headers, body, saved_bytes, copied, shared = answer
        self.stream = run.stream
        self.edition = run.edition
        """The stream's edition when the body was read.  The edition changes when bytes are dropped."""
        self.route = route
        self.repeated = repeated
        """The fields that all access-log records of this answer have in common; None without an access log."""
        self.trust_s = trust_s
        self.tail = tail
        """The stream's tail that the answer contains; None if the answer depends on no tail."""
        self.mode = mode
        self.outcome = outcome
        self.body_bytes = sum(map(len, body))
        self.saved_bytes = saved_bytes
        """The bytes that content coding saved."""
        self._start = run.start if run.start != run.end else None
        """The position of the body's first byte in the stream.  For a 304, the position of the body that the 304
        replaces.  None if that body is empty.
        """
        self._has_age = "Age" in headers
        for name in ("Age", "Date"):
            headers.popall(name, None)
        self._head = status_line(status) + field_lines(headers)
        self._body = (b"".join(body),) if self.is_small else tuple(body)
        self.copied = 2 * self.body_bytes if self.is_small else copied
        """Bytes of the body that the tape does not hold."""
        self._is_own = shared is None
        self.shared = SharedBytes(self.body_bytes, in_cache=True) if shared is None else shared
        """Divides the cost of the body's bytes among the clients that have not read them.  Only needed for large
        bodies.
        """
        self.joined: bytes | None = None
        """The whole response, if it is small."""
        self.pieces: tuple[bytes, ...] = ()
        """The head and the pieces of the body, if the response is large."""
        self._block: bytes | None = None
        """The head as an HTTP/2 field block; None until a client over HTTP/2 needs it."""
        self.until = -math.inf
        self.version = self.stream.version
        """The stream's version when the answer was last rendered, or last found unchanged."""
        self.hits = 0
        """The number of hits (requests that got this answer) that the metrics do not include yet."""
        self.key: tuple[bytes, Meaning] | None = None
        """The line that all requests for the answer have in common (`Sections.common_line`), and the header section's
        meaning."""
        self.request = b""
        """The bytes of the first request that got this answer."""
        self.alias = b""
        """The bytes of the request under which `RememberedAnswers.exact` holds this answer."""
        self.cost = 0
        """Bytes lent from the cache's budget."""

    @property
    def is_small(self) -> bool:
        return self.body_bytes <= JOINED_BYTES

    def cost_under(self, line: bytes, meaning: Meaning, request: bytes) -> int:
        """Return the bytes that the answer costs if it is remembered for this request."""
        return ANSWER_COST + 2 * len(self._head) + self.copied + len(line) + len(meaning.text) + 3 * len(request)

    def dropped(self) -> None:
        """Called when the answer is no longer remembered.  From now on, the answer's bytes are charged to the clients
        that have not read them yet.
        """
        if self._is_own:
            self.shared.in_cache = False

    @property
    def body(self) -> tuple[bytes, ...]:
        """The body, in one piece if it is small; an empty tuple without a body."""
        return self._body if self.body_bytes else ()

    def block(self) -> bytes:
        """Return the rendered head as an HTTP/2 field block (RFC 7541)."""
        if self._block is None:
            joined = self.joined
            self._block = block_of(joined[: len(joined) - self.body_bytes] if joined is not None else self.pieces[0])
        return self._block

    def is_unchanged(self) -> bool:
        """Return whether the rendered answer still fits the stream's current state.  Does not check `until`."""
        seen, now = self.version, self.stream.version
        if not seen.same_doubts_as(now) or (self.tail is not None and not seen.same_tail_as(now)):
            return False
        # Keep this version, so that the next check is a single comparison.
        self.version = now
        return True

    @property
    def _as_of(self) -> float:
        """The time at which the origin last confirmed the content, in monotonic seconds."""
        stream = self.stream
        if self.tail is not None and stream.sighting is not None:
            return stream.sighting.seen_at
        return stream.confirmed_at(self._start) if self._start is not None else stream.contacted_at

    def render(self, now: float, wall: float) -> bool:
        """Render the response for this second.  Returns False if the origin has to be asked first."""
        stream = self.stream
        if stream.ended is not None or stream.has_expired(now, wall) or not stream.may_answer_alone(now, self.trust_s):
            return False
        named_until = bytes_until = math.inf
        if self._start is not None and (bytes_until := stream.bytes_until(self._start, self.trust_s)) <= now:
            return False
        if self.tail is not None:
            is_tail = self.tail.version.same_tail_as(stream.version)
            named_until = stream.tail_until(self.tail.at) if is_tail else -math.inf
            if named_until <= now:
                return False
        age = b"Age: %d\r\n" % max(0, int(now - self._as_of)) if self._has_age else b""
        head = self._head + age + date_line(int(wall)) + b"\r\n"
        self._block = None
        if self.is_small:
            self.joined = head + self._body[0]
        else:
            self.pieces = (head, *self._body)
        self.until = min(now + 1 - wall % 1, stream.trusted_until(now, self.trust_s), named_until, bytes_until)
        life = stream.expiry.lifetime
        if life is not None and life.expires_at is not None:
            self.until = min(self.until, now + life.expires_at - wall)
        self.version = stream.version
        return True


class RememberedAnswers:
    """The owner of all remembered answers of the process.  `touch` is called with the stream of each rendered answer,
    so that the stream counts as used."""

    def __init__(
        self,
        clock: Clock,
        store: TapeStore,
        metrics: MetricsRecorder,
        sections: Sections,
        touch: Callable[[Stream], None],
        has_refusals: Callable[[StreamKey], bool],
        look: Callable[[Stream], object] | None = None,
    ) -> None:
        """`has_refusals` returns whether the origin has recently refused a reader of the stream.  `look` applies what
        other workers have written to a stream's path; None if this process is the only one.
        """
        self._look = look
        self._clock = clock
        self._now = clock.now
        self._store = store
        self._metrics = metrics
        self._touch = touch
        self._sections = sections
        self._has_refusals = has_refusals
        self.exact: dict[bytes, tuple[RememberedAnswer, Section]] = {}
        """Answers by the exact bytes of a request, each with its header section.  This is the fastest look-up for
        clients that send equal bytes."""
        self._by_stream: dict[Stream, set[RememberedAnswer]] = {}
        self._all: OrderedDict[RememberedAnswer, None] = OrderedDict()
        self._uncounted: set[RememberedAnswer] = set()
        """Answers that may have hits since the last count."""
        self._served = 0
        self.cost = 0
        self.generation = 0
        """The number of calls to `reset`.  A request read in an earlier generation was read under other routes, so its
        answer is not remembered."""

    def reset(self) -> None:
        """Forget all answers, because the routes have changed."""
        self.generation += 1
        for remembered in list(self._all):
            self._drop(remembered)

    def __repr__(self) -> str:
        return f"<RememberedAnswers {len(self._all)} answers, {self.cost} bytes>"

    def __len__(self) -> int:
        return len(self._all)

    @property
    def budget_bytes(self) -> int:
        """The upper bound on the bytes of all answers together."""
        return self._store.budget_bytes // ANSWER_SHARE

    @property
    def served(self) -> int:
        """Answers sent since the start."""
        self.count()
        return self._served

    # -- finding

    def find(self, request: bytes) -> RememberedAnswer | None:
        """Return the answer to this request if it is remembered and valid; None otherwise."""
        found = self._sections.find(request)
        if found is None or not isinstance(found[0], RememberedAnswer) or not self.is_current(found[0], request):
            return None
        return found[0]

    def is_current(self, remembered: RememberedAnswer, request: bytes) -> bool:
        """Return whether the answer is valid for this request now.  The answer may stem from another request with the
        same meaning."""
        if self._look is not None:
            self._look(remembered.stream)
            if remembered not in self._all:
                # The writes of other workers have ended the stream, or dropped its bytes.
                return False
        if self._has_refusals(remembered.stream.key) and request != remembered.request:
            # This client may be the refused reader, so the origin has to decide.
            return False
        if self._now() < remembered.until and (
            remembered.version is remembered.stream.version or remembered.is_unchanged()
        ):
            return True
        return self._renew(remembered, request)

    def _charge(self, remembered: RememberedAnswer, cost: int) -> None:
        """Add `cost` to the bytes lent for the answer.  A negative cost returns bytes to the cache."""
        remembered.cost += cost
        self.cost += cost
        if cost < 0:
            self._store.take_back(-cost)

    def _renew(self, remembered: RememberedAnswer, request: bytes) -> bool:
        self._count(remembered)
        if not remembered.render(self._clock.now(), self._clock.wall()):
            return False
        # A render happens at most once a second, so the stream is touched at most once a second.
        self._touch(remembered.stream)
        self._uncounted.add(remembered)
        if request != remembered.alias:
            self._move_alias(remembered, request)
        return True

    def _move_alias(self, remembered: RememberedAnswer, request: bytes) -> None:
        """Hold the answer in `exact` under the bytes of this request, in place of the earlier bytes.  Does nothing if
        another answer would have to be evicted to make room.
        """
        cost = 2 * (len(request) - len(remembered.alias))
        if request in self.exact or (split := self._sections.split(request)) is None:
            return
        assert remembered.key is not None
        if split[0] != remembered.key[0]:
            # Keep the earlier bytes: the request line has credentials, and the answer's verdict is kept under the
            # credentials in the earlier bytes.
            return
        if cost <= 0 or (self.cost + cost <= self.budget_bytes and self._store.lend(cost, remembered.stream)):
            self._charge(remembered, cost)
            del self.exact[remembered.alias]
            self.exact[request], remembered.alias = (remembered, split[1]), request

    # -- counting

    def count(self) -> None:
        """Report all hits since the last count to the metrics."""
        now = self._clock.now()
        for remembered in list(self._uncounted):
            self._count(remembered)
            if now >= remembered.until:
                self._uncounted.discard(remembered)

    def _count(self, remembered: RememberedAnswer) -> None:
        hits, remembered.hits = remembered.hits, 0
        if hits:
            self._served += hits
            sent = hits * remembered.body_bytes
            saved = hits * remembered.saved_bytes
            self._metrics.hits(remembered.mode, remembered.outcome, hits, sent, remembered.route, saved_bytes=saved)
            stream = remembered.stream
            stream.count_reads(hits, hits)
            stream.sent_bytes += sent

    # -- remembering and forgetting

    def remember(self, request: bytes, remembered: RememberedAnswer, rules: HeaderRules) -> None:
        """Remember an answer for all requests with the meaning of `request`, whose route has these `rules`.

        Does nothing if the stream has ended or lost bytes since the answer's bytes were read, or if the cache has no
        memory to lend.
        """
        if (split := self._sections.split(request)) is None:
            return
        line, section = split
        if remembered.is_guarded:
            remembered.verdict_key = remembered.verdict_key or line
            key = self._sections.common_line(line, remembered.verdict_key)
            if key is None or remembered.verdict_key not in section.allowed:
                # An equal request could not use the answer, because no verdict on the request is kept.
                return
            line = key
        meaning = self._sections.for_hits(section, rules)
        stream = remembered.stream
        if stream.ended is not None or not stream.is_awake or stream.version.edition != remembered.edition:
            return
        cost = remembered.cost_under(line, meaning, request)
        if cost > self.budget_bytes:
            return
        if isinstance(old := meaning.known.get(line), RememberedAnswer):
            self._drop(old)
        if (found := self.exact.get(request)) is not None:
            self._drop(found[0])
        while self.cost + cost > self.budget_bytes:
            self._drop(next(iter(self._all)))
        if not self._store.lend(cost, remembered.stream):
            return
        self._charge(remembered, cost)
        remembered.key, remembered.request, remembered.alias = (line, meaning), request, request
        meaning.learn(line, remembered)
        self._all[remembered] = None
        self.exact[request] = (remembered, section)
        self._by_stream.setdefault(remembered.stream, set()).add(remembered)

    def forget(self, remembered: RememberedAnswer) -> None:
        """Forget an answer, because another takes its place."""
        if remembered in self._all:
            self._drop(remembered)

    def forget_stream(self, stream: Stream) -> None:
        """Forget every answer with bytes of this stream."""
        if stream in self._by_stream:
            for remembered in list(self._by_stream[stream]):
                self._drop(remembered)

    def _drop(self, remembered: RememberedAnswer) -> None:
        assert remembered.key is not None
        self._count(remembered)
        self._uncounted.discard(remembered)
        line, meaning = remembered.key
        meaning.forget_known(line, remembered)
        del self.exact[remembered.alias], self._all[remembered]
        remembered.dropped()
        self._charge(remembered, -remembered.cost)
        siblings = self._by_stream[remembered.stream]
        siblings.discard(remembered)
        if not siblings:
            del self._by_stream[remembered.stream]
