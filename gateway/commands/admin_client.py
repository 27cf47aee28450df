"""The admin port's API as the commands use it: JSON there and back, and one line for every refusal.

The token comes from the environment, never from a flag: flags are seen by everyone who lists the processes.
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
from gateway.config.server import ServerConfig
from gateway.config.values import ADMIN_TOKEN_VARIABLE

if TYPE_CHECKING:
    import aiohttp

DEFAULT_URL: Final = f"http://{ServerConfig.model_fields['admin'].default}"

_ANSWER_S: Final = 15.0
"""Bound on one request: a purge or a page may walk through every stream."""

AdminUrl = Annotated[
    str, typer.Option("--admin", metavar="URL", help=f"The gateway's admin port.  Its token: ${ADMIN_TOKEN_VARIABLE}.")
]


class AdminClient:
    """One gateway's admin port."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, shows_token: bool) -> None:
        self.url = url
        self._session = session
        self._shows_token = shows_token

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """The answer's JSON object.  Raises CommandFailed."""
        return await self._ask("GET", path + (f"?{urlencode(query)}" if query else ""), None)

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer's JSON object.  Raises CommandFailed."""
        import orjson

        return await self._ask("POST", path, orjson.dumps(body))

    async def _ask(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        import asyncio

        from gateway.commands.exchange import Transient, asking

        headers = {"Content-Type": "application/json"} if body is not None else None
        try:
            async with (
                asyncio.timeout(_ANSWER_S),
                asking(self._session, method, f"{self.url}{path}", headers, body) as response,
            ):
                return self._answer(response.status, await response.read())
        except Transient as error:
            raise CommandFailed(f"admin port: {error}") from None
        except TimeoutError:
            raise CommandFailed(f"admin port: {self.url} did not answer within {_ANSWER_S:g} s") from None

    def _answer(self, status: int, body: bytes) -> dict[str, Any]:
        import orjson

        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if 200 <= status < 300 and isinstance(answer, dict):
            return answer
        if status == 401 and self._shows_token:
            raise CommandFailed(f"the admin port does not accept the token in {ADMIN_TOKEN_VARIABLE}")
        if status == 401:
            raise CommandFailed(f"the admin port wants its token: set {ADMIN_TOKEN_VARIABLE}")
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            raise CommandFailed(answer["error"])
        raise CommandFailed(f"{self.url} is not a gateway's admin port: it answered {status} and no JSON of one")


def admin_url(text: str) -> str:
    """The admin port's URL, with or without `http://` and a slash at the end; a usage error where it is none."""
    return http_url(text if "://" in text else f"http://{text}", "--admin").rstrip("/")


@asynccontextmanager
async def admin_client(url: str) -> AsyncIterator[AdminClient]:
    """A client of the admin port at `url`, with the environment's token where there is one.

    Whoever uses it takes the answers apart within: one without what should be in it is another server's, or another
    version's, and CommandFailed.
    """
    from gateway.commands.exchange import open_session

    token = os.environ.get(ADMIN_TOKEN_VARIABLE)
    if token and not (token.isascii() and token.isprintable()):
        raise CommandFailed(f"{ADMIN_TOKEN_VARIABLE} holds what cannot be sent in a header")
    async with open_session(url, {"Authorization": f"Bearer {token}"} if token else {}) as session:
        try:
            yield AdminClient(session, url, shows_token=bool(token))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            missing = f" (no {error.args[0]!r})" if isinstance(error, KeyError) else ""
            raise CommandFailed(f"{url} does not answer as the admin port of this version does{missing}") from None
