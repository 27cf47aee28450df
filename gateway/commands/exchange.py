"""The HTTP requests of the commands, and their errors.

aiohttp's exceptions are translated here.  A failed connection, a truncated body, 429 and 5xx become `Transient`: a
retry may help.  Other errors become `CommandFailed`.

Only reads follow redirects.  A redirected write might arrive as a read (RFC 9110 section 15.4), and the user must know
where the data goes.  Therefore the command fails, and names the target of the redirect.  The user's headers often have
credentials.  They are sent only to the origin of the given URL, and not to the target of a redirect.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway import __version__
from gateway.aio.clock import Clock, pause
from gateway.commands.failure import CommandFailed
from gateway.upstream.resolver import look_up

CONNECT_S: Final = 10.0
_READS: Final = ("GET", "HEAD")
SILENCE_S: Final = 90.0
"""The timeout without any data.  It is longer than any long-poll (60 s at some origins) and any heartbeat interval."""

_SHOWN_CHARS: Final = 200
_MOST_RETRY_AFTER_S: Final = 60.0


class Transient(Exception):
    """A failure that a retry may cure, after `floor_s` seconds at the earliest.

    `is_silence`: no data has arrived within `SILENCE_S`, which is normal on an idle stream.
    """

    def __init__(self, text: str, floor_s: float = 0.0, *, is_silence: bool = False) -> None:
        super().__init__(" ".join(text.split()))
        self.floor_s = floor_s
        self.is_silence = is_silence


class Backoff:
    """Pauses that double from 0.1 s to 10 s, each with a random factor between 0.5 and 1."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._next_s = 0.1

    def reset(self) -> None:
        """Start again from the shortest pause, after a success."""
        self._next_s = 0.1

    async def pause(self, floor_s: float = 0.0) -> None:
        """Pause, for at least `floor_s` seconds."""
        delay_s = max(floor_s, self._next_s * self._rng.uniform(0.5, 1.0))
        self._next_s = min(10.0, self._next_s * 2)
        await pause(self._clock, delay_s)


class _Names(AbstractResolver):
    """Resolves names within `CONNECT_S`."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            async with asyncio.timeout(CONNECT_S):
                found = await look_up(host, port)
        except TimeoutError:
            raise socket.gaierror(socket.EAI_AGAIN, f"its name was not resolved within {CONNECT_S:g} s") from None
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
            for address in dict.fromkeys(found)
        ]

    async def close(self) -> None:
        """Do nothing: a lookup in progress cannot be cancelled."""


def open_session(url: str, headers: Mapping[str, str], silence_s: float = SILENCE_S) -> aiohttp.ClientSession:
    """Open a session without cookies, with timeouts for connecting and for silence.

    `headers` are sent only to the origin of `url`.  Raises CommandFailed if both the URL and the headers have
    credentials.
    """
    origin = _parsed(url).origin()
    if _parsed(url).user is not None and any(name.lower() == "authorization" for name in headers):
        raise CommandFailed("credentials in the URL and in an Authorization header as well: leave one of them out")

    async def add_headers(outgoing: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        if outgoing.url.origin() == origin:
            outgoing.headers.update(headers)
        return await send(outgoing)

    return aiohttp.ClientSession(
        headers={"User-Agent": f"durable-gateway/{__version__}"},
        middlewares=(add_headers,) if headers else (),
        cookie_jar=aiohttp.DummyCookieJar(),
        connector=aiohttp.TCPConnector(limit=0, resolver=_Names()),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=silence_s),
    )


@asynccontextmanager
async def request(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send one request.  Connection failures raise `Transient`, even while the body is read inside the block."""
    target = _parsed(url)
    is_read = method in _READS
    try:
        async with session.request(method, target, headers=headers, data=body, allow_redirects=is_read) as response:
            if 300 <= response.status < 400 and not is_read:
                location = printable(response.headers.get("Location", "an unnamed URL"))
                raise CommandFailed(f"{url}: {response.status}, redirected to {location}; a {method} does not follow")
            yield response
    except (aiohttp.InvalidURL, UnicodeError):
        raise CommandFailed(f"{url}: not a valid URL, or redirected to an invalid one") from None
    except aiohttp.TooManyRedirects:
        raise CommandFailed(f"{url}: redirected too often") from None
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, ssl.SSLError) and error.os_error.reason in _NO_TLS:
            raise CommandFailed(f"{target.host}:{target.port}: {_reason(error.os_error)}") from None
        raise Transient(f"cannot connect to {target.host}:{target.port}: {_reason(error.os_error)}") from None
    except TimeoutError:
        raise Transient(f"no sign of life from {target.host}:{target.port} in time", is_silence=True) from None
    except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, ConnectionError):
        raise Transient(f"the connection to {target.host}:{target.port} was lost") from None
    except aiohttp.ClientError as error:
        raise Transient(f"{target.host}:{target.port}: {_text_of(error)}") from None


async def origin_error(response: aiohttp.ClientResponse) -> CommandFailed | Transient:
    """Return the error for an answer outside 2xx.  The first line of its body is the reason."""
    body = (await response.content.read(4 * _SHOWN_CHARS)).decode("utf-8", "replace")
    return refusal(response, next((line.strip() for line in body.splitlines() if line.strip()), ""))


def refusal(response: aiohttp.ClientResponse, reason: str) -> CommandFailed | Transient:
    """Return the error for an answer outside 2xx.  If `reason` is empty, the status line's reason is used."""
    text = f"{response.status} {printable(reason or response.reason or '')}".strip()
    if response.status == 429 or response.status >= 500:
        return Transient(text, _retry_after_s(response.headers.get("Retry-After")))
    return CommandFailed(f"{response.url.with_query(None)}: {text}")


def _parsed(url: str) -> URL:
    return URL(url, encoded=url.isascii())


def printable(text: str) -> str:
    """Return a server's text without control characters, cut to `_SHOWN_CHARS`."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)[:_SHOWN_CHARS]


def _retry_after_s(value: str | None) -> float:
    """Return the seconds of a Retry-After, at most `_MOST_RETRY_AFTER_S`; 0 for a date or without the header."""
    if value is None or not value.isascii() or not value.isdigit():
        return 0.0
    return min(float(value[:6]), _MOST_RETRY_AFTER_S)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        # Do not use `errno`, which is a number of OpenSSL here, not of the operating system.
        if error.reason in _NO_TLS:
            return "the server does not speak TLS; is it an http:// URL?"
        return f"TLS failed: {(error.reason or 'no reason given').replace('_', ' ').lower()}"
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else (error.strerror or str(error))


_NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"})
"""The reasons that OpenSSL gives if the server answers in plain HTTP."""


def _text_of(error: BaseException) -> str:
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    return text[:_SHOWN_CHARS]
