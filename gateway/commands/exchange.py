"""Requests to a stream, and what their failures mean: try again, or give up with one line.

Foreign exceptions are translated here, once.  A connection that failed, a body that was cut short, 429 and 5xx are
`Transient`: the stream may well be there, so a reader resumes and a producer repeats itself.  Other 4xx are final.

Redirects are followed by reads alone.  A write that is sent elsewhere may arrive as a read (RFC 9110 section 15.4), and
whoever wrote has to know where to: it fails with the Location.  What the user gave as headers, credentials as a rule,
goes to the origin that was asked for and to no other that it redirects to.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from yarl import URL

from gateway import __version__
from gateway.aio.clock import Clock, pause
from gateway.commands.failure import CommandFailed

CONNECT_S: Final = 10.0
_READS: Final = ("GET", "HEAD")
SILENCE_S: Final = 90.0
"""Bound on silence: above the longest long-poll (60 s at some origins) and every heartbeat."""

_SHOWN_CHARS: Final = 200
_MOST_RETRY_AFTER_S: Final = 60.0


class Transient(Exception):
    """It may work the next time; not before `floor_s` seconds have gone by.

    `is_silence`: nothing was heard for as long as one waits, which on a quiet stream need not be a failure.
    """

    def __init__(self, text: str, floor_s: float = 0.0, *, is_silence: bool = False) -> None:
        super().__init__(" ".join(text.split()))
        self.floor_s = floor_s
        self.is_silence = is_silence


class Backoff:
    """Pauses that double from 0.1 s to 10 s, each shortened at random to between half and the whole of it."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._next_s = 0.1

    def reset(self) -> None:
        """It works again."""
        self._next_s = 0.1

    async def pause(self, floor_s: float = 0.0) -> None:
        delay_s = max(floor_s, self._next_s * self._rng.uniform(0.5, 1.0))
        self._next_s = min(10.0, self._next_s * 2)
        await pause(self._clock, delay_s)


def open_session(url: str, headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """A client without cookies, bounded in connecting and in silence; `headers` go to the origin of `url` alone.

    Raises CommandFailed where URL and headers both hold credentials.
    """
    origin = _parsed(url).origin()
    if _parsed(url).user is not None and any(name.lower() == "authorization" for name in headers):
        raise CommandFailed("credentials in the URL and in an Authorization header as well: leave one of them out")

    async def add_headers(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if request.url.origin() == origin:
            request.headers.update(headers)
        return await send(request)

    return aiohttp.ClientSession(
        headers={"User-Agent": f"durable-gateway/{__version__}"},
        middlewares=(add_headers,) if headers else (),
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S),
    )


@asynccontextmanager
async def asking(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """One request; failures of the connection, also while the body is read, are `Transient`."""
    target = _parsed(url)
    is_read = method in _READS
    try:
        async with session.request(method, target, headers=headers, data=body, allow_redirects=is_read) as response:
            if 300 <= response.status < 400 and not is_read:
                place = _shown(response.headers.get("Location", "a place that it does not name"))
                raise CommandFailed(f"{url}: {response.status}, it is at {place}; a {method} is not redirected")
            yield response
    except (aiohttp.InvalidURL, UnicodeError):
        raise CommandFailed(f"{url}: not a URL that can be asked, or redirected to one") from None
    except aiohttp.TooManyRedirects:
        raise CommandFailed(f"{url}: redirected too often") from None
    except aiohttp.ClientConnectorError as error:
        raise Transient(f"cannot connect to {target.host}:{target.port}: {_reason(error.os_error)}") from None
    except TimeoutError:
        raise Transient(f"no sign of life from {target.host}:{target.port} in time", is_silence=True) from None
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionError):
        raise Transient(f"the connection to {target.host}:{target.port} was lost") from None
    except aiohttp.ClientError as error:
        raise Transient(f"{target.host}:{target.port}: {_text_of(error)}") from None


async def refusal(response: aiohttp.ClientResponse) -> CommandFailed | Transient:
    """What an answer outside 2xx means; reads the beginning of its body for the reason."""
    said = (await response.content.read(4 * _SHOWN_CHARS)).decode("utf-8", "replace")
    first = next((line.strip() for line in said.splitlines() if line.strip()), "") or (response.reason or "")
    text = f"{response.status} {_shown(first)}".strip()
    if response.status == 429 or response.status >= 500:
        return Transient(text, _retry_after_s(response.headers.get("Retry-After")))
    return CommandFailed(f"{response.url.with_query(None)}: {text}")


def _parsed(url: str) -> URL:
    return URL(url, encoded=url.isascii())


def _shown(text: str) -> str:
    """A server's words, fit for a terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)[:_SHOWN_CHARS]


def _retry_after_s(value: str | None) -> float:
    """Seconds; a date, which is rare, counts as nothing said."""
    if value is None or not value.isascii() or not value.isdigit():
        return 0.0
    return min(float(value[:6]), _MOST_RETRY_AFTER_S)


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else (error.strerror or str(error))


def _text_of(error: BaseException) -> str:
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    return text[:_SHOWN_CHARS]
