"""A synchronous, pooled HTTP client for source and sink; each answer is complete or an error.

A body that ends before its length or without its last chunk is not an answer, and neither is one that ends only with
the connection.  Such a request is repeated if it may be, else it fails.  Repeatable requests are repeated after
connection errors, 429 and 5xx, with jittered pauses that double; Retry-After is their lower bound.  Any other 4xx is
final.  Redirects are not followed, because they would carry the credentials along.

Every wait is bounded: connecting, silence within a reply, and a request with all its repetitions.  The configuration
can be pickled, so that each worker makes its own client and connections.  Header values appear in no repr, because
Spark prints plans and logs their contents.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit

import urllib3
from urllib3.exceptions import HTTPError

from pyspark_durable_streams.errors import BadOption, BadReply, Refused, Unreachable

_CHUNK_BYTES: Final = 1 << 20
_CONNECTIONS: Final = 16
# Characters that a path may contain (RFC 3986), and `%`: names that are already encoded stay as they are.
_SAFE: Final = "/:@!$&'()*+,;=~-._%?"
_DRAINED_BYTES: Final = 1 << 17
_SHOWN_CHARS: Final = 200
_TOLD_FROM_S: Final = 1.0
"""A try that fails is logged as a warning if it and the pause after it take at least this many seconds."""
_NOTICE_S: Final = 3.0
"""A server that has not answered before is named as a warning after this many seconds without an answer."""
_log: Final = logging.getLogger("pyspark_durable_streams")
_T = TypeVar("_T")


class Clock(Protocol):
    """The client's source of time."""

    def now(self) -> float:
        """Monotonic seconds."""

    def sleep(self, seconds: float) -> None:
        """Block for this long."""


class MachineClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.monotonic()  # noqa: TID251  (runs in Spark's processes, which hand in no clock)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: TID251  (there is no loop here to block)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The URL, headers and time limits of requests; a worker makes its client from it."""

    url: str
    """The base of every path, without a trailing slash."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request; never in a repr."""
    connect_s: float = 10.0
    read_s: float = 60.0
    """The longest silence before and within a reply, in seconds."""
    total_s: float = 300.0
    """The longest time for a request with all its tries and pauses, in seconds."""
    tries: int = 12
    """Enough for an origin to restart: the pauses add up to about 40 s."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0

    def __post_init__(self) -> None:
        wrong = "url: http://host[:port][/path] or https://… without a query is expected"
        try:
            parts = urlsplit(self.url)
            # An invalid port raises only when it is read.
            is_wrong = parts.port == 0 or parts.scheme not in ("http", "https") or not parts.hostname
        except ValueError:
            raise BadOption(wrong) from None
        if is_wrong or parts.query or parts.fragment:
            raise BadOption(wrong)
        if parts.username is not None or parts.password is not None:
            raise BadOption("url: credentials belong in the header Authorization, which no plan shows")


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer; the names of `headers` are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class OpenReply:
    """An answer whose body is still arriving; `chunks` raises Unreachable if it ends early or stalls."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class Client:
    """Sends requests to one origin or gateway; safe to use from several threads."""

    def __init__(
        self, config: ClientConfig, *, clock: Clock | None = None, uniform: Callable[[], float] = random.random
    ) -> None:
        self.config = config
        self.requests = 0
        """Requests sent so far, including repetitions."""
        self._has_answered = False
        self._clock = clock if clock is not None else MachineClock()
        self._uniform = uniform
        self._base = config.url.rstrip("/")
        self._pool = urllib3.PoolManager(
            num_pools=2,
            maxsize=_CONNECTIONS,
            retries=False,
            timeout=urllib3.Timeout(connect=config.connect_s, read=config.read_s),
        )

    def __reduce__(self) -> tuple[type[Client], tuple[ClientConfig]]:
        return type(self), (self.config,)

    def close(self) -> None:
        """Close all idle connections."""
        self._pool.clear()

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        retry: bool = True,
        max_bytes: int | None = None,
        max_s: float = inf,
    ) -> Reply:
        """The complete answer, of any status; `path` is relative to the configured URL and includes the query.

        With `retry`, for idempotent requests, a failed connection, a truncated body, 429 and 5xx are tried again;
        Unreachable when the tries or the time are used up.  Without it nothing is tried again: Unreachable for the
        first two, and the answer for the others.  Any other 4xx is the answer, with as much of its body as arrived.  A
        body longer than `max_bytes` raises BadReply.  One that takes longer than `max_s` fails at its next chunk, or
        when it stalls.
        """

        def whole(deadline: float) -> Reply:
            raw = self._send(method, path, headers, body, deadline)
            try:
                chunks: list[bytes] = []
                size = 0
                # For a refusal the status is enough.
                is_refusal = 400 <= raw.status < 500 and raw.status != 429
                with suppress(Unreachable) if is_refusal else nullcontext():
                    for chunk in self._chunks(raw, method, path, deadline):
                        chunks.append(chunk)
                        size += len(chunk)
                        if max_bytes is not None and size > max_bytes:
                            raise BadReply(f"{method} {self._shown(path)}: answer of more than {max_bytes} bytes")
                reply = Reply(raw.status, raw.headers, b"".join(chunks))
            finally:
                _release(raw)
            if retry:
                _raise_if_transient(reply.status, reply.headers, reply.body, f"{method} {self._shown(path)}")
            return reply

        return self._with_retries(whole, self.config.tries if retry else 1, max_s)

    @contextmanager
    def open(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[OpenReply]:
        """The answer to a GET whose body is still arriving; leaving the block early drops the connection.

        Until the head arrives, the request is tried again as in `request`.  After that a failure is Unreachable: only
        the reader knows how much of the body to skip in a repetition.  A body may be a whole stream, so only silence
        within it is bounded.
        """

        def begun(deadline: float) -> urllib3.BaseHTTPResponse:
            raw = self._send("GET", path, headers, None, deadline)
            try:
                _raise_if_transient(raw.status, raw.headers, b"", f"GET {self._shown(path)}")
            except BaseException:
                _release(raw)
                raise
            return raw

        raw = self._with_retries(begun, self.config.tries)
        try:
            yield OpenReply(raw.status, raw.headers, self._chunks(raw, "GET", path, inf))
        finally:
            _release(raw)

    def _with_retries(self, attempt: Callable[[float], _T], tries: int, max_s: float = inf) -> _T:
        config = self.config
        deadline = self._clock.now() + min(config.total_s, max_s)
        pause = config.first_pause_s
        for number in range(1, tries + 1):
            begun_at = self._clock.now()
            try:
                return attempt(deadline)
            except _TransientError as transient:
                wait = max(pause * (0.5 + 0.5 * self._uniform()), transient.floor_s)
                if number == tries or self._clock.now() + wait >= deadline:
                    tried = f" ({number} tries)" if number > 1 else ""
                    raise Unreachable(f"{transient}{tried}") from transient.__cause__
                lasts_s = self._clock.now() - begun_at + wait
                level = logging.WARNING if lasts_s >= _TOLD_FROM_S else logging.DEBUG
                _log.log(level, "%s: try %d of %d in %.0f s", transient, number + 1, tries, wait)
                self._clock.sleep(wait)
                pause = min(config.longest_pause_s, pause * 2)
        raise AssertionError("unreachable: tries must be at least 1")

    def _send(
        self, method: str, path: str, headers: Mapping[str, str] | None, body: bytes | None, deadline: float
    ) -> urllib3.BaseHTTPResponse:
        if leaves_base(path):
            raise BadOption(f"{path.partition('?')[0]!r} leads out of the url: no . or .. is allowed between slashes")
        self.requests += 1
        config = self.config
        left = max(deadline - self._clock.now(), 0.001)
        # A request's own headers override the user's, whatever the case of the names.
        merged = {name.lower(): value for name, value in {"accept-encoding": "identity", **config.headers}.items()}
        merged.update({name.lower(): value for name, value in (headers or {}).items()})
        times = urllib3.Timeout(connect=min(config.connect_s, left), read=min(config.read_s, left))
        what = f"{method} {self._shown(path)}"
        try:
            with nullcontext() if self._has_answered else _noticed(what, times):
                raw = self._pool.request(
                    method,
                    self._base + quote(path, safe=_SAFE),
                    headers=merged,
                    body=body,
                    redirect=False,
                    retries=False,
                    preload_content=False,
                    timeout=times,
                )
        except HTTPError as error:
            raise _TransientError(f"{what}: {_reason(error)}") from error
        self._has_answered = True
        return raw

    def _chunks(self, raw: urllib3.BaseHTTPResponse, method: str, path: str, deadline: float) -> Iterator[bytes]:
        is_framed = raw.headers.get("Content-Length") is not None or (
            raw.headers.get("Transfer-Encoding", "").lower().endswith("chunked")
        )
        if not (is_framed or method == "HEAD" or raw.status in (204, 304)):
            raise _TransientError(f"{method} {self._shown(path)}: the reply states no length and may be truncated")
        is_coded = "Content-Encoding" in raw.headers
        try:
            while chunk := raw.read1(_CHUNK_BYTES, decode_content=is_coded):
                if self._clock.now() > deadline:
                    raise _TransientError(f"{method} {self._shown(path)}: time is up, and the body is not complete")
                yield chunk
        except HTTPError as error:
            raise _TransientError(f"{method} {self._shown(path)}: {_reason(error)}") from error

    def _shown(self, path: str) -> str:
        return self._base + path


@contextmanager
def _noticed(what: str, times: urllib3.Timeout) -> Iterator[None]:
    """Log a request that is still without an answer after `_NOTICE_S`: a wrong address may be silent for long."""
    said = "%s: no answer yet, waiting for up to %.0f s to connect and %.0f s for the answer"
    timer = threading.Timer(_NOTICE_S, _log.warning, (said, what, times.connect_timeout, times.read_timeout))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _TransientError(Unreachable):
    """A failure that a later try may not have; wait at least `floor_s` seconds."""

    def __init__(self, text: str, floor_s: float = 0.0) -> None:
        super().__init__(" ".join(text.split()))
        self.floor_s = floor_s


def leaves_base(path: str) -> bool:
    """Whether a path has a segment `.` or `..`, which clients and servers resolve against the segment before it.

    Names of streams may come from data, and data must not address other resources of the origin.
    """
    segments = path.partition("?")[0].replace("\\", "/").split("/")
    return any(unquote(segment) in (".", "..") for segment in segments)


def origin_error(reply: Reply, what: str) -> Refused:
    """The error for an unexpected answer: one line with its status and the beginning of its body."""
    said = " ".join(reply.body[:_SHOWN_CHARS].decode("utf-8", "replace").split())
    return Refused(f"{what}: {reply.status}{' ' + said if said else ''}", reply.status)


def _raise_if_transient(status: int, headers: Mapping[str, str], body: bytes, what: str) -> None:
    if status == 429 or status >= 500:
        text = str(origin_error(Reply(status, headers, body), what))
        raise _TransientError(text, _retry_after_s(headers.get("Retry-After")))


def _retry_after_s(value: str | None) -> float:
    if value is None:
        return 0.0
    try:
        return max(0.0, urllib3.Retry().parse_retry_after(value))
    except HTTPError:
        return 0.0  # an unparsable value counts as absent


def _reason(error: HTTPError) -> str:
    # urllib3's texts begin with the repr of a connection object, which is of no use here.
    text = str(error.args[1] if len(error.args) == 2 and isinstance(error.args[1], str) else error)
    return f"{type(error).__name__}: {text.rpartition('>: ')[2]}"


def _release(raw: urllib3.BaseHTTPResponse) -> None:
    # A connection with an unread body must not return to the pool, so a short rest is read and a longer one is dropped.
    if not raw.closed:
        left = raw.headers.get("Content-Length", "")
        if left.isdigit() and int(left) <= _DRAINED_BYTES:
            raw.drain_conn()
        else:
            raw.close()
    raw.release_conn()
