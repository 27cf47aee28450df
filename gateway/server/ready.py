"""Ready answers: what a plain hit looks like in bytes, kept beside the very request that led to it.

The first time a request goes the strict way.  When its answer is a plain hit, one that needs neither the origin nor
anything that is still in the air, the bytes of the request become a key to it.  No second parser judges requests: these
very bytes were judged by the strict one.

Requests that differ from call to call in headers that mean nothing here (trace ids, user agents, cookies where they are
no credentials) share one key: the request without those lines.  Such a line is taken out only where it is of the one
shape that cannot hide anything, a known name, a colon and printable characters up to the line's end.

An answer shows bytes of a tape, and dies with them: `forget` is called when the stream ends or its bytes are dropped.
Beyond that it holds only while the stream may be answered for without the origin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from multidict import CIMultiDict

from gateway.clock import Clock
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server.head import date_line, field_lines, status_line
from gateway.tape.stream import Stream

MAX_REQUEST_BYTES: Final = 4_096
"""A longer request is not remembered; it is also well below what the strict parser accepts in one line."""

_MEANINGLESS: Final = (
    "accept",
    "accept-language",
    "baggage",
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
_MOST_LINES: Final = 64
"""More of them than this in one request and the strict parser shall count."""

_JOINED_BYTES: Final = 1 << 14
"""A body up to this size is kept joined with its head for a second: one write, no list."""

_ENTRIES: Final = 65_536
_KEY_BYTES: Final = 64 << 20


class Ready:
    """One answer in bytes; `render` puts in what changes by the second (RFC 9110 §6.6.1, RFC 9111 §5.1)."""

    __slots__ = (
        "_body",
        "_head",
        "_joined",
        "_laid_at",
        "_second",
        "body_bytes",
        "is_forgotten",
        "mode",
        "outcome",
        "stream",
        "trust_s",
    )

    def __init__(
        self,
        stream: Stream,
        trust_s: float,
        mode: Mode,
        outcome: Outcome,
        status: int,
        headers: CIMultiDict[str],
        body: Sequence[bytes],
        laid_at: float | None,
    ) -> None:
        self.stream = stream
        self.trust_s = trust_s
        self.mode = mode
        self.outcome = outcome
        self.body_bytes = sum(map(len, body))
        self.is_forgotten = False
        for name in ("Age", "Date"):
            headers.popall(name, None)
        self._head = status_line(status) + field_lines(headers)
        self._body = tuple(body) if self.body_bytes > _JOINED_BYTES else (b"".join(body),)
        self._laid_at = laid_at
        self._second = -1
        self._joined: tuple[bytes, ...] = ()

    def holds(self, now: float, wall: float) -> bool:
        """Whether the answer may be given now without asking anyone."""
        stream = self.stream
        if self.is_forgotten or stream.ended is not None or stream.has_expired(now, wall):
            return False
        return stream.may_answer_alone(now, self.trust_s)

    def is_of(self, wall: float) -> bool:
        """Whether it has been rendered in this second already."""
        return int(wall) == self._second

    def render(self, now: float, wall: float) -> tuple[bytes, ...]:
        """The whole response as of this second; one piece for a small one."""
        second = int(wall)
        if second != self._second:
            age = b"" if self._laid_at is None else b"Age: %d\r\n" % max(0, int(now - self._laid_at))
            head = self._head + age + date_line(second) + b"\r\n"
            self._joined = (head + self._body[0],) if self.body_bytes <= _JOINED_BYTES else (head, *self._body)
            self._second = second
        return self._joined


class ReadyAnswers:
    """Requests to ready answers.  One owner per process; bounded in entries and in bytes of keys."""

    def __init__(
        self, clock: Clock, credential_headers: Iterable[str], touch: Callable[[Stream], None] = lambda stream: None
    ) -> None:
        self._clock = clock
        self._touch = touch
        self._by_request: dict[bytes, Ready] = {}
        self._by_stream: dict[Stream, set[bytes]] = {}
        self._key_bytes = 0
        self.served = 0
        """Answers given."""
        credentials = {name.lower() for name in credential_headers}
        names = [name for name in (*_MEANINGLESS, "cookie") if name not in credentials]
        shape = rb"\r\n(?:" + b"|".join(re.escape(name.encode()) for name in names) + rb"):[\t\x20-\x7e]*(?=\r\n)"
        self._meaningless = re.compile(shape, re.IGNORECASE)

    def __len__(self) -> int:
        return len(self._by_request)

    def find(self, request: bytes) -> Ready | None:
        """The answer to exactly this request, or to one that differs in meaningless lines only; None to go on."""
        ready = self._by_request.get(request)
        if ready is None:
            reduced = self._reduce(request)
            ready = self._by_request.get(reduced) if reduced is not None else None
        if ready is None or not ready.holds(self._clock.now(), self._clock.wall()):
            return None
        self.served += 1
        return ready

    def render(self, ready: Ready) -> tuple[bytes, ...]:
        """The response as of this second; the stream counts as read once for each second in which it is."""
        wall = self._clock.wall()
        if not ready.is_of(wall):
            self._touch(ready.stream)
        return ready.render(self._clock.now(), wall)

    def remember(self, request: bytes, ready: Ready) -> None:
        """The strict way has answered `request` by `ready`; the request is kept without its meaningless lines."""
        key = self._reduce(request)
        if key is None or ready.stream.ended is not None:
            return
        self._drop(key)
        while self._by_request and (len(self._by_request) >= _ENTRIES or self._key_bytes + len(key) > _KEY_BYTES):
            self._drop(next(iter(self._by_request)))
        self._by_request[key] = ready
        self._by_stream.setdefault(ready.stream, set()).add(key)
        self._key_bytes += len(key)

    def forget(self, stream: Stream) -> None:
        """Drop every answer that shows bytes of `stream`."""
        for key in list(self._by_stream.get(stream, ())):
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        ready = self._by_request.pop(key, None)
        if ready is None:
            return
        ready.is_forgotten = True
        self._key_bytes -= len(key)
        keys = self._by_stream[ready.stream]
        keys.discard(key)
        if not keys:
            del self._by_stream[ready.stream]

    def _reduce(self, request: bytes) -> bytes | None:
        if len(request) > MAX_REQUEST_BYTES:
            return None
        reduced, lines = self._meaningless.subn(b"", request)
        return reduced if lines <= _MOST_LINES else None
