"""A real origin and a real gateway in the test's process; the commands run in processes of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.app import RunningGateway
from gateway.origin.app import RunningOrigin

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}


class Client:
    """A writer and a judge: what streams hold, asked of the origin itself."""

    def __init__(self, http: httpx.AsyncClient, origin: RunningOrigin) -> None:
        self._http = http
        self._origin = origin

    async def put(self, path: str, body: bytes = b"", content_type: str = "application/json", **headers: str) -> str:
        """Create a stream; its tail."""
        return await self._send("PUT", path, body, content_type, headers)

    async def post(self, path: str, body: bytes, content_type: str = "application/json", **headers: str) -> str:
        """Append; the new tail."""
        return await self._send("POST", path, body, content_type, headers)

    async def delete(self, path: str) -> None:
        assert (await self._http.delete(self._origin.url + path)).status_code == 204

    async def close(self, path: str) -> None:
        assert (await self._http.post(self._origin.url + path, headers={"Stream-Closed": "true"})).status_code == 204

    async def read(self, url: str) -> httpx.Response:
        return await self._http.get(url)

    async def content(self, path: str) -> bytes:
        got = await self._http.get(self._origin.url + path)
        assert got.status_code == 200
        return got.content

    async def is_closed(self, path: str) -> bool:
        return "Stream-Closed" in (await self._http.head(self._origin.url + path)).headers

    async def _send(self, method: str, path: str, body: bytes, content_type: str, more: dict[str, str]) -> str:
        headers = {"Content-Type": content_type, **{name.replace("_", "-"): value for name, value in more.items()}}
        got = await self._http.request(method, self._origin.url + path, content=body, headers=headers)
        assert got.status_code in (200, 201, 204), got.text
        return str(got.headers["Stream-Next-Offset"])


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    # Nothing here is over TLS: to load the authorities for each test would take longer than most tests.
    async with httpx.AsyncClient(timeout=30, verify=False) as client:
        yield client


@pytest.fixture
def client(http: httpx.AsyncClient, durable_origin: RunningOrigin) -> Client:
    """A client that writes to the origin directly, not through the gateway."""
    return Client(http, durable_origin)


@pytest.fixture
def durable_gateway_settings() -> dict[str, Any]:
    return {"shutdown_timeout_s": 0.3, "live_linger_s": 0}


@pytest.fixture
def url(durable_gateway: RunningGateway) -> str:
    """The gateway's."""
    return durable_gateway.gateway_url


@pytest.fixture
def admin(durable_gateway: RunningGateway) -> str:
    """The gateway's admin port."""
    return durable_gateway.admin_url
