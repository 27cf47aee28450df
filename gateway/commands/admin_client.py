"""A client of the admin API.  Requests and answers are JSON, and each error is one line.

The token comes from the environment, because other users can see command-line flags in the list of processes.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

import typer

from gateway.commands.failure import CommandFailed
from gateway.commands.target import http_url
from gateway.config.addresses import DEFAULT_ADMIN
from gateway.config.variables import ADMIN_TOKEN_VARIABLE

if TYPE_CHECKING:
    import aiohttp

DEFAULT_URL: Final = f"http://{DEFAULT_ADMIN}"

_ANSWER_S: Final = 15.0
"""The timeout of a request in seconds.  A purge or a page may iterate over all streams."""

AdminUrl = Annotated[
    str,
    typer.Option("--admin", metavar="URL", help=f"The gateway's admin port; ${ADMIN_TOKEN_VARIABLE} holds its token."),
]


class AdminClient:
    """A client of one gateway's admin port."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, sends_token: bool) -> None:
        self.url = url
        self._session = session
        self._sends_token = sends_token

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Send a GET; return the answer's JSON object.  Raises CommandFailed."""
        return await self._send("GET", path + (f"?{urlencode(query)}" if query else ""), None)

    async def post(self, path: str, body: Mapping[str, Any], *, within_s: float = _ANSWER_S) -> dict[str, Any]:
        """Send a POST; return the answer's JSON object.  Raises CommandFailed."""
        import orjson

        return await self._send("POST", path, orjson.dumps(body), within_s)

    async def _send(self, method: str, path: str, body: bytes | None, within_s: float = _ANSWER_S) -> dict[str, Any]:
        import asyncio

        from gateway.commands.exchange import Transient, request

        headers = {"Content-Type": "application/json"} if body is not None else None
        try:
            async with (
                asyncio.timeout(within_s),
                request(self._session, method, f"{self.url}{path}", headers, body) as response,
            ):
                return self._answer(response.status, await response.read())
        except Transient as error:
            raise CommandFailed(f"admin port: {error}") from None
        except TimeoutError:
            raise CommandFailed(f"admin port: {self.url} did not answer within {within_s:g} s") from None

    def _answer(self, status: int, body: bytes) -> dict[str, Any]:
        import orjson

        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if 200 <= status < 300 and isinstance(answer, dict):
            return answer
        if status == 401 and self._sends_token:
            raise CommandFailed(f"the admin port does not accept the token in {ADMIN_TOKEN_VARIABLE}")
        if status == 401:
            raise CommandFailed(f"the admin port requires a token: set {ADMIN_TOKEN_VARIABLE}")
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            raise CommandFailed(answer["error"])
        raise CommandFailed(f"{self.url} is not a gateway's admin port: it answered {status} without the API's JSON")


def admin_url(text: str) -> str:
    """Check the URL of an admin port; return it with `http://` and without a trailing slash.  Raises BadParameter."""
    return http_url(text if "://" in text else f"http://{text}", "--admin").rstrip("/")


@asynccontextmanager
async def admin_client(url: str) -> AsyncIterator[AdminClient]:
    """Provide a client of the admin port at `url`, with the token from the environment.

    Callers must read the members of answers inside the block.  A missing member then raises CommandFailed: the server
    has another version, or is not a gateway.
    """
    from gateway.commands.exchange import open_session

    token = os.environ.get(ADMIN_TOKEN_VARIABLE)
    if token and not (token.isascii() and token.isprintable()):
        raise CommandFailed(f"{ADMIN_TOKEN_VARIABLE} is not a valid header value")
    async with open_session(url, {"Authorization": f"Bearer {token}"} if token else {}) as session:
        try:
            yield AdminClient(session, url, sends_token=bool(token))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            missing = f" (no {error.args[0]!r})" if isinstance(error, KeyError) else ""
            raise CommandFailed(f"{url} does not answer as the admin port of this version does{missing}") from None
