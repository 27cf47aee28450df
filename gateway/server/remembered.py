"""Remembered answers: plain hits as response bytes, found by the meaning of the request.

The first time, a request goes to a handler.  If its answer is a plain hit, which needs neither the origin nor any work
in progress, it is kept under the request line and the meaning of the header section (`gateway.server.request_keys`).
Requests that differ only in headers without influence on the answer have one meaning.  Requests are judged by one
parser only: a key is made of bytes that the parser has accepted.

An answer is valid until its `until`: the end of the second that its Date and Age name, or earlier if the stream's trust
or life ends.  Everything else that invalidates it is signalled: the end of a stream and the loss of its bytes or
records by `forget_stream`; a need for revalidation, and, for answers that name the tail, a change to the known tail of
an open stream, by the stream's `Version`.  An answer whose bytes were read before a call of `forget_stream` is not
remembered after it.

The memory that answers take in addition to the tape is lent from the cache's budget, to the byte: keys, heads, joined
bodies, and the bytes of a body that are not shared with the tape.
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
from gateway.server.request_keys import Known, Meaning, Section, Sections, VerdictKey
from gateway.tape.costs import ANSWER_COST, ANSWER_SHARE
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import Repeated
from gateway.telemetry.metrics import MetricsRecorder


class Repeatable(NamedTuple):
    """An answer from memory that may be repeated for equal requests."""

    run: BodyRun
    """The run of the stream's bytes that the answer is made of."""
    outcome: Outcome
    status: int
    headers: CIMultiDict[str]
    body: Sequence[bytes]
    saved_bytes: int = 0
    """How many bytes shorter the body is than before content coding."""
    copied: int = 0
    """Bytes of the body that only this answer holds; the others belong to `shared`."""
    shared: SharedBytes | None = None
    """The account of the body; None if the answer itself has one."""


class RememberedAnswer(Known):
    """One answer in bytes; `render` fills in what changes by the second (RFC 9110 §6.6.1, RFC 9111 §5.1)."""

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
        *,
        is_guarded: bool = False,
        verdict_key: VerdictKey | None = None,
    ) -> None:
        """`is_guarded` says that each request for the answer needs a verdict."""
        self.is_guarded = is_guarded
        self.verdict_key = verdict_key
        """The key of such verdicts in header sections: the stream, or the request line."""
        run, outcome, status, headers, body, saved_bytes, copied, shared = answer
        self.stream = run.stream
        self.edition = run.edition
        """The stream's edition when the body was read."""
        self.route = route
        self.repeated = repeated
        """The access log's line for every hit; None without an access log."""
        self.trust_s = trust_s
        self.tail = tail
        """The tail that the answer names; None if the answer does not depend on the tail."""
        self.mode = mode
        self.outcome = outcome
        self.body_bytes = sum(map(len, body))
        self.saved_bytes = saved_bytes
        """How many bytes shorter the body is than before content coding."""
        self._start = run.start if run.start != run.end else None
        """Where the bytes of the body, or of the body that a 304 stands for, begin; None if there are none."""
        self._has_age = "Age" in headers
        for name in ("Age", "Date"):
            headers.popall(name, None)
        self._head = status_line(status) + field_lines(headers)
        self._body = (b"".join(body),) if self.is_small else tuple(body)
        self.copied = 2 * self.body_bytes if self.is_small else copied
        """Body bytes held in addition to those of the tape."""
        self._is_own = shared is None
        self.shared = SharedBytes(self.body_bytes, in_cache=True) if shared is None else shared
        """The account of a large body."""
        self.joined: bytes | None = None
        """The whole response, if it is small."""
        self.pieces: tuple[bytes, ...] = ()
        """The whole response, if it is not small."""
        self._block: bytes | None = None
        """The head as a field block of HTTP/2, once it has been asked for."""
        self.until = -math.inf
        self.version = self.stream.version
        """A version of the stream for which the rendered answer is valid."""
        self.hits = 0
        """Hits that have not been counted in the metrics yet."""
        self.key: tuple[bytes, Meaning] | None = None
        """The request line, and the meaning of the header section."""
        self.request = b""
        """The request that the answer was made for."""
        self.alias = b""
        """The request whose bytes are the answer's key in `RememberedAnswers.exact`."""
        self.cost = 0
        """Bytes of the cache's budget lent for the answer."""

    @property
    def is_small(self) -> bool:
        return self.body_bytes <= JOINED_BYTES

    def cost_under(self, line: bytes, meaning: Meaning, request: bytes) -> int:
        """Bytes charged for the answer to this request, with this line and this meaning."""
        return ANSWER_COST + 2 * len(self._head) + self.copied + len(line) + len(meaning.text) + 3 * len(request)

    def dropped(self) -> None:
        """Called when the answer is not remembered any more.  From then on its own bytes are charged to the clients
        that have not taken them yet."""
        if self._is_own:
            self.shared.in_cache = False

    @property
    def body(self) -> tuple[bytes, ...]:
        """The body, in one piece if it is small; empty if there is none."""
        return self._body if self.body_bytes else ()

    def block(self) -> bytes:
        """The head as last rendered, as a field block (RFC 7541)."""
        if self._block is None:
            joined = self.joined
            self._block = block_of(joined[: len(joined) - self.body_bytes] if joined is not None else self.pieces[0])
        return self._block

    def is_unchanged(self) -> bool:
        """Whether everything that the answer depends on, except the time, is as it was when the answer was rendered."""
        seen, now = self.version, self.stream.version
        if not seen.same_doubts_as(now) or (self.tail is not None and not seen.same_tail_as(now)):
            return False
        # From now on, this check is one comparison.
        self.version = now
        return True

    @property
    def _as_of(self) -> float:
        """When the origin last confirmed the answer's content (monotonic seconds)."""
        stream = self.stream
        if self.tail is not None and stream.sighting is not None:
            return stream.sighting.seen_at
        return stream.confirmed_at(self._start) if self._start is not None else stream.contacted_at

    def render(self, now: float, wall: float) -> bool:
        """Render the response for this second; False if the origin has to be asked before the answer may be sent."""
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
    """Remembered answers by request.  Each process has one instance, which owns the answers.  `touch` is called with
    the stream of each answer that is rendered."""

    def __init__(
        self,
        clock: Clock,
        store: TapeStore,
        metrics: MetricsRecorder,
        sections: Sections,
        touch: Callable[[Stream], None],
        has_refusals: Callable[[StreamKey], bool],
    ) -> None:
        """`has_refusals` says whether the origin has recently refused some reader of a stream."""
        self._clock = clock
        self._now = clock.now
        self._store = store
        self._metrics = metrics
        self._touch = touch
        self._sections = sections
        self._has_refusals = has_refusals
        self.exact: dict[bytes, tuple[RememberedAnswer, Section]] = {}
        """Answers by the bytes of the requests that rendered them last, each with its header section.  Clients that all
        send the same bytes are answered by these."""
        self._by_stream: dict[Stream, set[RememberedAnswer]] = {}
        self._all: OrderedDict[RememberedAnswer, None] = OrderedDict()
        self._uncounted: set[RememberedAnswer] = set()
        """Answers that may have hits since the last count."""
        self._served = 0
        self.cost = 0
        self.generation = 0
        """Counts calls to `reset`: a request read in an earlier generation was read under other routes, and its answer
        must not be remembered."""

    def reset(self) -> None:
        """Drop everything, because the routes have changed."""
        self.generation += 1
        for remembered in list(self._all):
            self._drop(remembered)

    def __repr__(self) -> str:
        return f"<RememberedAnswers {len(self._all)} answers, {self.cost} bytes>"

    def __len__(self) -> int:
        return len(self._all)

    @property
    def budget_bytes(self) -> int:
        """The most bytes that answers may take."""
        return self._store.budget_bytes // ANSWER_SHARE

    @property
    def served(self) -> int:
        """Answers sent since the start."""
        self.count()
        return self._served

    # -- finding

    def find(self, request: bytes) -> RememberedAnswer | None:
        """The answer remembered for this request, or for one that differs from it only in lines without meaning; None
        if there is none."""
        found = self._sections.find(request)
        if found is None or not isinstance(found[0], RememberedAnswer) or not self.is_current(found[0], request):
            return None
        return found[0]

    def is_current(self, remembered: RememberedAnswer, request: bytes) -> bool:
        """Whether the answer is valid for this request now.  It may have been made for another request with the same
        meaning."""
        if self._has_refusals(remembered.stream.key) and request != remembered.request:
            # This reader may be the refused one.
            return False
        if self._now() < remembered.until and (
            remembered.version is remembered.stream.version or remembered.is_unchanged()
        ):
            return True
        return self._renew(remembered, request)

    def _charge(self, remembered: RememberedAnswer, cost: int) -> None:
        """Record that `cost` more bytes are lent for the answer; a negative number gives bytes back."""
        remembered.cost += cost
        self.cost += cost
        if cost < 0:
            self._store.take_back(-cost)

    def _renew(self, remembered: RememberedAnswer, request: bytes) -> bool:
        self._count(remembered)
        if not remembered.render(self._clock.now(), self._clock.wall()):
            return False
        # Touch the stream at most once a second, whatever its number of hits.
        self._touch(remembered.stream)
        self._uncounted.add(remembered)
        if request != remembered.alias:
            self._move_alias(remembered, request)
        return True

    def _move_alias(self, remembered: RememberedAnswer, request: bytes) -> None:
        """Make the bytes of this request the answer's key in `exact`, if that needs no other answer to be dropped."""
        cost = 2 * (len(request) - len(remembered.alias))
        if request in self.exact or (split := self._sections.split(request)) is None:
            return
        if cost <= 0 or (self.cost + cost <= self.budget_bytes and self._store.lend(cost, remembered.stream)):
            self._charge(remembered, cost)
            del self.exact[remembered.alias]
            self.exact[request], remembered.alias = (remembered, split[1]), request

    # -- counting

    def count(self) -> None:
        """Report to the metrics all hits since the last count."""
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
        """Remember the answer `remembered` for `request`, and for all requests with the same meaning.

        `rules` are those of the request's route.
        """
        if (split := self._sections.split(request)) is None:
            return
        line, section = split
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
        remembered.verdict_key = remembered.verdict_key or line
        meaning.learn(line, remembered)
        self._all[remembered] = None
        self.exact[request] = (remembered, section)
        self._by_stream.setdefault(remembered.stream, set()).add(remembered)

    def forget_stream(self, stream: Stream) -> None:
        """Drop every answer that contains bytes of `stream`."""
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
