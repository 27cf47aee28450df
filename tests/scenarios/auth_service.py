"""Servers that a gateway asks about credentials: an issuer that publishes keys, and gates to hold its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import ClientSession
from joserfc.jwk import Key

from tests.scenarios.conftest import Edge, Hostile
from tests.scenarios.credentials import KEYS
from tests.scenarios.hostile import Asked, HostileOrigin, answer


def key_set(keys: Iterable[Key]) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


async def probe_and_metrics(edge: Edge, prefix: str) -> tuple[str, set[str]]:
    """The last line of the verbose probe, and the lines of metrics whose names begin with `prefix`."""
    async with ClientSession(edge.gateway.admin_url) as session:
        async with session.get("/readyz?verbose") as reply:
            probe = (await reply.text()).splitlines()
        async with session.get("/metrics") as reply:
            metrics = (await reply.text()).splitlines()
    return probe[-1], {line for line in metrics if line.startswith(prefix)}


class AuthService:
    """A server whose reply a test sets, and may hold back."""

    def __init__(self) -> None:
        self.status = "200 OK"
        self.headers: dict[str, str] = {}
        self.body = key_set(KEYS.values())
        self.decide: Callable[[Asked], tuple[str, dict[str, str]]] | None = None
        """Gives status and headers in place of `status` and `headers`."""
        self.closes = False
        """Whether it closes the connection after the reply."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.server: HostileOrigin

    @classmethod
    async def open(cls, hostile: Hostile, **more: Any) -> AuthService:
        service = cls()
        for name, value in more.items():
            setattr(service, name, value)
        service.server = await hostile(service.reply, takes_head=True)
        return service

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def asked(self) -> list[Asked]:
        return self.server.asked

    async def reply(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await self.gate.wait()
        status, headers = self.decide(asked) if self.decide is not None else (self.status, self.headers)
        writer.write(answer(status, headers, self.body))
        if self.closes:
            writer.close()

    async def count(self, number: int) -> None:
        """Wait until it has been asked this often."""
        await self.server.until(lambda: len(self.asked) >= number)
