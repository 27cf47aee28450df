"""Heads of all sizes that one process takes also pass between workers, also while the origin is away."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, cast

from aiohttp import web
from multidict import CIMultiDict

from gateway.config.gateway import GatewayConfig
from gateway.http.request_parser import LONGEST_LINE
from gateway.protocol.names import MAX_OFFSET_CHARS
from tests.offload.crowd import Client
from tests.workers.process import GatewayProcess
from tests.workers.site import WORKERS, Site

ADDED: Final = {
    "keys": {"Surrogate-Key": " ".join(f"key{number:04}" for number in range(1_800))},
    "policy": {"Content-Security-Policy": "img-src https://a.example; " * 500},
    "lines": {f"X-{number}": '"\\ %-' * 120 for number in range(100)},
    "bytes": {f"X-{number}": "ü" * 300 for number in range(100)},
    "type": {"Content-Type": "text/plain; x=" + "y" * 15_000},
    "offset": {"Stream-Next-Offset": "5" * MAX_OFFSET_CHARS},
}
"""What the origin adds to its replies, by the first segment of the path."""
TARGETS: Final = (
    *(f"/{kind}?a=b" for kind in ADDED),
    f"/{'p' * (LONGEST_LINE - 20)}?a=b",
    f"/query?a={'-' * (LONGEST_LINE - 40)}",
)
ANSWERED: Final = ("content-type", "content-security-policy", "stream-next-offset", "x-0", "x-99")
Given = tuple[int, bytes, dict[str, str]]


class _Origin:
    url: str

    def __init__(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, max_line_size=1 << 17, shutdown_timeout=0)

    async def _answer(self, request: web.Request) -> web.Response:
        fields = {"Content-Type": "text/plain", "Stream-Next-Offset": "5", "Stream-Up-To-Date": "true"}
        added = ADDED.get(request.path.split("/")[1], {})
        return web.Response(headers=CIMultiDict({**fields, **added}), body=b"hello")

    async def start(self) -> None:
        await self._runner.setup()
        listener = web.TCPSite(self._runner, "127.0.0.1", 0)
        await listener.start()
        self.url = listener.name

    async def stop(self, grace_s: float = 0.0) -> None:
        await self._runner.cleanup()


@asynccontextmanager
async def _site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        origin = _Origin()
        await origin.start()
        stack.push_async_callback(origin.stop)
        config = GatewayConfig.for_origin(
            origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", client_new_streams_per_s=0, shutdown_timeout_s=0.5
        )
        site = Site(cast(Any, origin), await GatewayProcess.start(config, WORKERS))
        stack.push_async_callback(site.close)
        yield site


async def _answer(client: Client, target: str) -> Given:
    body = bytearray()
    reply = await client.send("GET", f"{target}&offset=-1", take=body.extend)
    return reply.status, bytes(body), {name: value for name, value in reply.headers.items() if name in ANSWERED}


async def test_every_worker_answers_with_heads_of_all_sizes_while_the_origin_is_up_and_away() -> None:
    async with _site() as site:
        clients = await site.client_of_each()
        # One process gives these answers to the later reads, too.
        first = {target: await _answer(clients[0], target) for target in TARGETS}
        assert {(status, body) for status, body, _ in first.values()} == {(200, b"hello")}
        for state in ("up", "away"):
            wrong = [
                (state, target[:20], given[:2])
                for target in TARGETS
                for client in clients
                if (given := await _answer(client, target)) != first[target]
            ]
            assert not wrong
            await site.origin.stop(grace_s=0)
