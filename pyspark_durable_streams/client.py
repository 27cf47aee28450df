"""HTTP as the source and the sink need it: synchronous, pooled, and every answer whole or an error.

A body that ends before its length, or without its last chunk, is no answer: it is tried again where trying again is
allowed, and an error where it is not; so is a body whose end only the closing of the connection tells.  A request that
may be repeated is, after connection errors, 429 and 5xx, with pauses that double and are jittered, with Retry-After as
their floor; any other 4xx is final.  Redirects are not followed, because credentials would go along.

Nothing waits for ever: connecting, silence inside a reply, and the whole of a request with its repetitions are
bounded.  The configuration pickles, so that each worker makes a client and connections of its own; the values of
headers are in no repr, because Spark prints plans and logs what is in them.
"""

from __future__ import annotations

import random
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
# What a path may have as it is (RFC 3986), and `%`: names that are encoded already stay as they are.
_SAFE: Final = "/:@!$&'()*+,;=~-._%?"
_DRAINED_BYTES: Final = 1 << 17
_SHOWN_CHARS: Final = 200
_T = TypeVar("_T")


class Clock(Protocol):
    """Time as the client needs it."""

    def now(self) -> float:
        """Seconds that only ever grow."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class MachineClock:
    """The machine's own."""

    def now(self) -> float:
        return time.monotonic()  # noqa: TID251  (runs in Spark's processes, which hand in no clock)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: TID251  (there is no loop here to block)


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Where requests go, with which headers, and how long they may take; what a worker makes its client from."""

    url: str
    """What every path is below, without a slash at its end."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request; never shown."""
    connect_s: float = 10.0
    read_s: float = 60.0
    """Longest silence before and inside a reply."""
    total_s: float = 300.0
    """Longest that a request may take with all its tries and pauses."""
    tries: int = 12
    """Enough for an origin to restart: the pauses between them add up to about 40 s."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 10.0

    def __post_init__(self) -> None:
        wrong = "url: http://host[:port][/path] or https://… without a query is wanted"
        try:
            parts = urlsplit(self.url)
            # A port that is none is found out when it is asked for.
            is_wrong = parts.port == 0 or parts.scheme not in ("http", "https") or not parts.hostname
        except ValueError:
            raise BadOption(wrong) from None
        if is_wrong or parts.query or parts.fragment:
            raise BadOption(wrong)
        if parts.username is not None or parts.password is not None:
            raise BadOption("url: credentials belong into the header Authorization, where no plan shows them")


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer; the names of `headers` are matched in any case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class OpenReply:
    """An answer whose body is still coming; `chunks` raises Unreachable when it ends early or falls silent."""

    status: int
    headers: Mapping[str, str]
    chunks: Iterator[bytes]


class Client:
    """Requests to one origin or gateway; safe to use from several threads."""

    def __init__(
        self, config: ClientConfig, *, clock: Clock | None = None, uniform: Callable[[], float] = random.random
    ) -> None:
        self.config = config
        self.requests = 0
        """Sent so far, tries counted."""
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
        """Give all idle connections back."""
        self._pool.clear()

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        retry: bool = True,
        most_bytes: int | None = None,
        most_s: float = inf,
    ) -> Reply:
        """The whole answer, of any status; `path` is below the configured URL, with its query.

        With `retry`, which is for what may be done twice, a failed connection, a body cut short, 429 and 5xx are tried
        again, and Unreachable is raised when the tries or the time are used up.  Without, they are not: Unreachable for
        the first two, and the answer for the others.  Any other 4xx is the answer, with as much of its body as came.  A
        body longer than `most_bytes` is BadReply, and one that takes longer than `most_s` is given up at its next
        chunk, or where it falls silent.
        """

        def whole(deadline: float) -> Reply:
            raw = self._send(method, path, headers, body, deadline)
            try:
                chunks: list[bytes] = []
                size = 0
                # Of a refusal the status is enough.
                is_refusal = 400 <= raw.status < 500 and raw.status != 429
                with suppress(Unreachable) if is_refusal else nullcontext():
                    for chunk in self._chunks(raw, method, path, deadline):
                        chunks.append(chunk)
                        size += len(chunk)
                        if most_bytes is not None and size > most_bytes:
                            raise BadReply(f"{method} {self._shown(path)}: an answer of more than {most_bytes} bytes")
                reply = Reply(raw.status, raw.headers, b"".join(chunks))
            finally:
                _let_go(raw)
            if retry:
                _raise_if_passing(reply.status, reply.headers, reply.body, f"{method} {self._shown(path)}")
            return reply

        return self._tried(whole, self.config.tries if retry else 1, most_s)

    @contextmanager
    def open(self, path: str, headers: Mapping[str, str] | None = None) -> Iterator[OpenReply]:
        """The answer to a GET with its body still to come; leaving the block early drops the connection.

        Until the head is there it is tried again as `request` is.  After that a failure is Unreachable: whoever reads
        knows how much of the body to pass over when asking once more.  A body may be a whole stream, so only silence in
        it is bounded.
        """

        def begun(deadline: float) -> urllib3.BaseHTTPResponse:
            raw = self._send("GET", path, headers, None, deadline)
            try:
                _raise_if_passing(raw.status, raw.headers, b"", f"GET {self._shown(path)}")
            except BaseException:
                _let_go(raw)
                raise
            return raw

        raw = self._tried(begun, self.config.tries)
        try:
            yield OpenReply(raw.status, raw.headers, self._chunks(raw, "GET", path, inf))
        finally:
            _let_go(raw)

    def _tried(self, attempt: Callable[[float], _T], tries: int, most_s: float = inf) -> _T:
        config = self.config
        deadline = self._clock.now() + min(config.total_s, most_s)
        pause = config.first_pause_s
        for number in range(1, tries + 1):
            try:
                return attempt(deadline)
            except _Passing as passing:
                wait = max(pause * (0.5 + 0.5 * self._uniform()), passing.floor_s)
                if number == tries or self._clock.now() + wait >= deadline:
                    tried = f" ({number} tries)" if number > 1 else ""
                    raise Unreachable(f"{passing}{tried}") from passing.__cause__
                self._clock.sleep(wait)
                pause = min(config.longest_pause_s, pause * 2)
        raise AssertionError("at least one try is made")

    def _send(
        self, method: str, path: str, headers: Mapping[str, str] | None, body: bytes | None, deadline: float
    ) -> urllib3.BaseHTTPResponse:
        if leads_out(path):
            raise BadOption(f"{path.partition('?')[0]!r} leads out of the url: a name has no . or .. between slashes")
        self.requests += 1
        config = self.config
        left = max(deadline - self._clock.now(), 0.001)
        # What the user gave is overridden by what a request needs, whatever the case of the names.
        merged = {name.lower(): value for name, value in {"accept-encoding": "identity", **config.headers}.items()}
        merged.update({name.lower(): value for name, value in (headers or {}).items()})
        try:
            return self._pool.request(
                method,
                self._base + quote(path, safe=_SAFE),
                headers=merged,
                body=body,
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=min(config.connect_s, left), read=min(config.read_s, left)),
            )
        except HTTPError as error:
            raise _Passing(f"{method} {self._shown(path)}: {_reason(error)}") from error

    def _chunks(self, raw: urllib3.BaseHTTPResponse, method: str, path: str, deadline: float) -> Iterator[bytes]:
        is_framed = raw.headers.get("Content-Length") is not None or (
            raw.headers.get("Transfer-Encoding", "").lower().endswith("chunked")
        )
        if not (is_framed or method == "HEAD" or raw.status in (204, 304)):
            raise _Passing(f"{method} {self._shown(path)}: a reply that does not say where it ends may lack its end")
        is_coded = "Content-Encoding" in raw.headers
        try:
            while chunk := raw.read1(_CHUNK_BYTES, decode_content=is_coded):
                if self._clock.now() > deadline:
                    raise _Passing(f"{method} {self._shown(path)}: still sending when its time was up")
                yield chunk
        except HTTPError as error:
            raise _Passing(f"{method} {self._shown(path)}: {_reason(error)}") from error

    def _shown(self, path: str) -> str:
        return self._base + path


class _Passing(Unreachable):
    """It may work the next time; not before `floor_s` seconds have gone by."""

    def __init__(self, text: str, floor_s: float = 0.0) -> None:
        super().__init__(" ".join(text.split()))
        self.floor_s = floor_s


def leads_out(path: str) -> bool:
    """Whether a path has a segment `.` or `..`, which clients and servers take out together with what is before it.

    Names of streams may come from data, and data must not choose what else at the origin is written to.
    """
    segments = path.partition("?")[0].replace("\\", "/").split("/")
    return any(unquote(segment) in (".", "..") for segment in segments)


def refusal(reply: Reply, what: str) -> Refused:
    """The error for an answer that is not what was asked for: one line with its status and what the origin said."""
    said = " ".join(reply.body[:_SHOWN_CHARS].decode("utf-8", "replace").split())
    return Refused(f"{what}: {reply.status}{' ' + said if said else ''}", reply.status)


def _raise_if_passing(status: int, headers: Mapping[str, str], body: bytes, what: str) -> None:
    if status == 429 or status >= 500:
        text = str(refusal(Reply(status, headers, body), what))
        raise _Passing(text, _retry_after_s(headers.get("Retry-After")))


def _retry_after_s(value: str | None) -> float:
    if value is None:
        return 0.0
    try:
        return max(0.0, urllib3.Retry().parse_retry_after(value))
    except HTTPError:
        return 0.0  # what cannot be read asks for nothing


def _reason(error: HTTPError) -> str:
    # urllib3's texts begin with the address of a connection object, which is of no use to anybody.
    return f"{type(error).__name__}: {str(error).rpartition('>: ')[2]}"


def _let_go(raw: urllib3.BaseHTTPResponse) -> None:
    # One that was not read to its end must not go back to the pool with the rest of it unread: what is short is read.
    if not raw.closed:
        left = raw.headers.get("Content-Length", "")
        if left.isdigit() and int(left) <= _DRAINED_BYTES:
            raw.drain_conn()
        else:
            raw.close()
    raw.release_conn()
