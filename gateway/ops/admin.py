"""The admin port: is it alive, does it take requests, what has it counted.  Not for the public."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from gateway.ops.metrics import Metrics


def admin_application(metrics: Metrics, is_ready: Callable[[], bool]) -> web.Application:
    """`/healthz` (the process runs), `/readyz` (it accepts and is not draining), `/metrics` (Prometheus text)."""

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(text="ready\n") if is_ready() else web.Response(status=503, text="not ready\n")

    async def exposition(_: web.Request) -> web.Response:
        body, content_type = metrics.exposition()
        return web.Response(body=body, headers={"Content-Type": content_type})

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    return application
