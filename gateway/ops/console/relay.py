"""Reads and writes streams for the console through the gateway's public port, like any other client.

The page cannot use the public port itself, because the port is another web origin, and each route decides whether it
allows CORS.  The admin port relays instead.  Strangers may have written the content of streams, and scripts at the
page's origin could purge and drain.  Answers are therefore always sent as `application/octet-stream` and sandboxed,
with the stream's own type in a header.  The page's credentials are not forwarded, so the page gets the same answers as
the public.

A tail in the page is a live read with a connection of its own.  The number of reads is bounded, and a read beyond the
bound is refused at once.  Redirects are refused too.  A redirect's Location is meant for clients of the public port,
and the page's browser would follow it.

A stream with a basin is an S2 stream: its requests have the header `s2-basin`, and its writes follow the S2 API.

A write is a JSON command, so the admin port's check of changes applies to it.  Writes are refused unless
`server.console_writes` is on.  Each write is sent once and never repeated.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

import orjson
from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, hdrs, web
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from yarl import URL

from gateway import __version__
from gateway.config.gateway import GatewayConfig
from gateway.engine.s2.request import BASIN_HEADER
from gateway.protocol import names
from gateway.upstream.origin_pool import origin_names

_TARGET: Final = r"/[!\"$-~]{0,8000}"
"""A percent-encoded path and query: printable ASCII without spaces and without a fragment."""
_BASIN: Final = r"[a-z0-9\-]{1,48}"
_HOST: Final = r"[A-Za-z0-9.\-]{1,253}(:[0-9]{1,5})?"
_READ_TIMEOUT: Final = ClientTimeout(total=None, sock_connect=5.0, sock_read=330.0)
"""The most seconds without bytes of a read.  They are more than the longest heartbeat interval, 300 s, so the public
port sends at least one heartbeat in this time.
"""
_WRITE_TIMEOUT: Final = ClientTimeout(total=120.0, sock_connect=5.0)
_MOST_READS: Final = 128
"""The most concurrent reads.  People watch far fewer tails, and the public port allows many more connections."""
_BODY_S: Final = 30.0
"""The most seconds for a command's body to arrive."""
_SEND_BOUND_S: Final = 30.0
"""Seconds without progress of the page after which its read is aborted."""
_LOOPBACK_FOR: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_SANDBOXED: Final = {
    "Content-Type": "application/octet-stream",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Content-Disposition": "attachment",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_JSON_HEADERS: Final = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_MOST_LOCATION_CHARS: Final = 500
RELAYED_TYPE: Final = "Relayed-Content-Type"
_PASSED_HEADERS: Final = (
    names.STREAM_NEXT_OFFSET,
    names.STREAM_UP_TO_DATE,
    names.STREAM_CLOSED,
    names.STREAM_CURSOR,
    names.SSE_DATA_ENCODING,
    "Cache-Status",
    "ETag",
    "Age",
    "Location",
    "Retry-After",
)


class Write(BaseModel):
    """A write that a form of the page requests."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    do: Literal["create", "append", "close", "delete"]
    target: Annotated[str, StringConstraints(pattern=f"^{_TARGET}$")]
    host: Annotated[str, StringConstraints(pattern=f"^({_HOST})?$")] = ""
    basin: Annotated[str, StringConstraints(pattern=f"^({_BASIN})?$")] = ""
    """The basin of an S2 stream, whose path is `target`.  Empty for a Durable Stream."""
    content_type: Annotated[str, StringConstraints(pattern=r"^[!-~ ]{0,200}$")] = ""
    body: str = ""
    ttl_s: Annotated[int, Field(ge=0, le=10**9)] | None = None


_METHODS: Final = {"create": "PUT", "append": "POST", "close": "POST", "delete": "DELETE"}

_Request = tuple[str, str, dict[str, str], bytes]
"""Method, target, headers and body."""


class Relay:
    """Reads and writes for the page.  It owns an HTTP session and the count of open reads.

    `gateway_url` returns the gateway's URL for clients, and `inside_url` returns the URL for this process.  Each result
    is empty while there is no such URL.
    """

    def __init__(
        self, config: Callable[[], GatewayConfig], gateway_url: Callable[[], str], inside_url: Callable[[], str]
    ) -> None:
        self._config = config
        self._gateway_url = gateway_url
        self._inside_url = inside_url
        self._session: ClientSession | None = None
        self._reads = 0

    def __repr__(self) -> str:
        return f"<Relay {self._reads} reads>"

    def routes(self) -> list[web.RouteDef]:
        """Make the routes `GET /api/console`, `GET /api/console/read`, `POST /api/console/write`."""
        return [
            web.get("/api/console", self.about),
            web.get("/api/console/read", self.read, allow_head=False),
            web.post("/api/console/write", self.write),
        ]

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """Keep the HTTP session open while the admin port runs."""
        async with ClientSession(
            auto_decompress=False,
            # The connection is to this process, and its certificate need not cover the address.
            connector=TCPConnector(limit=0, ssl=False),
            cookie_jar=DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Content-Type"),
        ) as self._session:
            yield
        self._session = None

    async def about(self, _: web.Request) -> web.Response:
        """Return the facts that the page needs at the start: how streams are reached, and whether writes are
        allowed.
        """
        config = self._config()
        origins = origin_names(config.routes)
        routes = [
            {
                "name": route.name,
                "host": route.host,
                "prefix": route.prefix.rstrip("/"),
                "strip_prefix": route.strip_prefix,
                # The origin's name, in the same form as in `/api/streams`.
                "origin": origins[route.name],
                "base": URL(route.members[0].url).raw_path.rstrip("/"),
            }
            for route in config.routes
        ]
        return _json(
            {
                "version": __version__,
                "node": config.server.node_name,
                "gateway_url": self._gateway_url(),
                "may_write": config.server.console_writes,
                "routes": routes,
            }
        )

    async def read(self, request: web.Request) -> web.StreamResponse:
        """Answer `?target=/path?query&host=&basin=&accept=`: pass on the public port's answer while it lasts."""
        if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            return _refused(403, "Reads are for the console's own page")
        target, host, basin, accept = (request.query.get(name, "") for name in ("target", "host", "basin", "accept"))
        if re.fullmatch(_TARGET, target) is None or re.fullmatch(f"({_HOST})?", host) is None:
            return _refused(400, "target should be a percent-encoded path and host a host name")
        if re.fullmatch(f"({_BASIN})?", basin) is None or accept not in ("", names.SSE_TYPE):
            return _refused(400, f"basin should be the name of a basin, and accept {names.SSE_TYPE} or nothing")
        headers = _headers(host, basin)
        if accept:
            headers[hdrs.ACCEPT] = accept
        if self._reads >= _MOST_READS:
            return _refused(503, f"The console is reading {_MOST_READS} streams, which is the most at a time")
        self._reads += 1
        try:
            async with self._ask("GET", target, headers, None, _READ_TIMEOUT) as reply:
                if 300 <= reply.status < 400:
                    return _refused(502, f"The stream has moved: {_redirect_text(reply)}")
                return await _relay(request, reply)
        except (ClientError, TimeoutError):
            return _refused(502, "The gateway's public port does not answer")
        finally:
            self._reads -= 1

    async def write(self, request: web.Request) -> web.Response:
        """Make one write.  Answers 200 with the public port's status and text, whatever they are."""
        if not self._config().server.console_writes:
            return _refused(403, "Writing in the console is off: server.console_writes is false")
        try:
            async with asyncio.timeout(_BODY_S):
                body_text = await request.read()
        except TimeoutError:
            return _refused(408, f"The body did not arrive completely within {_BODY_S:.0f} s")
        try:
            command = Write.model_validate_json(body_text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            return _refused(400, f"{where}: {first['msg']}" if where else first["msg"])
        if command.basin and command.do == "close":
            return _refused(400, "S2 streams are never closed")
        method, target, headers, body = _s2_request(command) if command.basin else _request(command)
        try:
            async with self._ask(method, target, headers, body, _WRITE_TIMEOUT) as reply:
                text = (await reply.content.read(2_000)).decode("utf-8", "replace")
                shown = {name.lower(): reply.headers[name] for name in _PASSED_HEADERS if name in reply.headers}
                return _json({"status": reply.status, "text": " ".join(text.split()), "headers": shown})
        except (ClientError, TimeoutError):
            return _refused(502, "The gateway's public port does not answer; the write may or may not have happened")

    def _ask(
        self, method: str, target: str, headers: dict[str, str], body: bytes | None, timeout: ClientTimeout
    ) -> Any:
        url = URL(self._inside_url())
        if self._session is None or url.host is None:
            raise ClientError
        base = str(url.with_host(_LOOPBACK_FOR.get(url.host, url.host))).rstrip("/")
        return self._session.request(
            method, URL(base + target, encoded=True), headers=headers, data=body, timeout=timeout, allow_redirects=False
        )


def _redirect_text(reply: ClientResponse) -> str:
    """Return the status and the Location of a redirect, as printable text."""
    location = reply.headers.get(hdrs.LOCATION, "")[:_MOST_LOCATION_CHARS]
    words = "".join(char if char.isprintable() else "\ufffd" for char in location)
    return f"{reply.status} {words}".strip()


def _headers(host: str, basin: str = "") -> dict[str, str]:
    headers: dict[str, str] = {hdrs.ACCEPT_ENCODING: "identity"}
    if host:
        headers[hdrs.HOST] = host
    if basin:
        headers[BASIN_HEADER] = basin
    return headers


def _request(command: Write) -> _Request:
    """Make a write to a Durable Stream."""
    headers = _headers(command.host)
    if command.content_type and command.do in ("create", "append"):
        headers[hdrs.CONTENT_TYPE] = command.content_type
    if command.ttl_s is not None and command.do == "create":
        headers[names.STREAM_TTL] = str(command.ttl_s)
    if command.do == "close":
        headers[names.STREAM_CLOSED] = "true"
    body = command.body.encode() if command.do in ("create", "append") else b""
    return _METHODS[command.do], command.target, headers, body


def _s2_request(command: Write) -> _Request:
    """Make a write to an S2 stream.  `ttl_s` is the retention of its records."""
    headers = _headers(command.host, command.basin)
    if command.do == "delete":
        return "DELETE", command.target, headers, b""
    headers[hdrs.CONTENT_TYPE] = names.JSON_TYPE
    if command.do == "create":
        config = {} if command.ttl_s is None else {"retention_policy": {"age": command.ttl_s}}
        return "PUT", command.target, headers, orjson.dumps(config)
    return "POST", f"{command.target}/records", headers, orjson.dumps({"records": [{"body": command.body}]})


async def _relay(request: web.Request, reply: ClientResponse) -> web.StreamResponse:
    """Pass on the reply's status, stream headers and body.  If the reply breaks off, abort the response."""
    headers = {name: reply.headers[name] for name in _PASSED_HEADERS if name in reply.headers and name != hdrs.LOCATION}
    response = web.StreamResponse(
        status=reply.status,
        headers={**headers, **_SANDBOXED, RELAYED_TYPE: reply.headers.get(hdrs.CONTENT_TYPE, "")},
    )
    await response.prepare(request)
    try:
        async for chunk in reply.content.iter_any():
            async with asyncio.timeout(_SEND_BOUND_S):
                await response.write(chunk)
        async with asyncio.timeout(_SEND_BOUND_S):
            await response.write_eof()
    except (ClientError, TimeoutError, ConnectionError):
        # An orderly end would make a truncated body look complete.
        with suppress(AttributeError):
            request.transport.abort()  # type: ignore[union-attr]
    return response


def _json(value: Any) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type="application/json", headers=_JSON_HEADERS)


def _refused(status: int, text: str) -> web.Response:
    return web.Response(
        status=status,
        body=orjson.dumps({"error": text}),
        content_type="application/json",
        headers=_JSON_HEADERS,
    )
