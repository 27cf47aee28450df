"""The admin port's application: its endpoints, their OpenAPI document, the probes and the metrics, behind one guard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Final

from aiohttp import hdrs, web

from gateway.ops.admin.audit import Audit
from gateway.ops.admin.controls import controls_endpoints
from gateway.ops.admin.counts import counts_endpoints
from gateway.ops.admin.directory import Directory
from gateway.ops.admin.endpoint import AUDITED, MOST_BODY_BYTES, Endpoint, Refused, json_response, refusal_response
from gateway.ops.admin.guard import Guard
from gateway.ops.admin.history import history_endpoints
from gateway.ops.admin.openapi import openapi_document
from gateway.ops.admin.origins import auth_lines, origins_endpoints, readiness_lines
from gateway.ops.admin.overview import overview_endpoints
from gateway.ops.admin.plan import plan_endpoints
from gateway.ops.admin.purge import purge_endpoints
from gateway.ops.admin.revoke import revoke_endpoints
from gateway.ops.admin.streams import streams_endpoints
from gateway.ops.admin.subject import Subject
from gateway.ops.admin.tails import tails_endpoints
from gateway.ops.console.site import is_open
from gateway.ops.partition_ids import PartitionIds

MOST_LINE_BYTES: Final = 32_768
"""The longest request line.  A stream's id is its path and query in base64, which is a third longer than path and
query.
"""

_QUESTIONS: Final = frozenset({"/api/tails"})
"""Endpoints that take a body but change nothing."""

_VERBOSE: Final = "verbose"
"""`/readyz?verbose` also lists the origins, so it needs the token, unlike the plain probe."""

_log = logging.getLogger("gateway.admin")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def admin_application(subject: Subject, guard: Guard, partitions: PartitionIds) -> web.Application:
    """Make the application with `/healthz`, `/readyz`, `/metrics`, `/openapi.json` and everything below `/api/`."""
    directory = Directory(subject.engine, partitions)
    audit = Audit(subject.engine.clock)
    endpoints: list[Endpoint] = [
        *overview_endpoints(subject),
        *history_endpoints(subject),
        *origins_endpoints(subject),
        *streams_endpoints(subject, directory),
        *tails_endpoints(directory),
        *counts_endpoints(directory),
        *purge_endpoints(subject, directory),
        *revoke_endpoints(subject),
        *plan_endpoints(subject),
        *controls_endpoints(subject),
    ]
    # Built at the first request, in a thread, because it takes a third of a second.
    document = cache(partial(openapi_document, endpoints))

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        # The gateway is ready whatever the state of the origins.  If the origins are down, the gateway still answers
        # from memory, and other requests fail at once.
        status, text = (200, "ready\n") if subject.is_ready else (503, "not ready\n")
        if _VERBOSE in request.query:
            text += readiness_lines(subject.engine.origins.snapshot())
            text += auth_lines(subject.auth_services)
        return web.Response(status=status, text=text)

    async def exposition(request: web.Request) -> web.Response:
        body, content_type = await subject.metrics.scrape(", ".join(request.headers.getall(hdrs.ACCEPT, [])))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def openapi(_: web.Request) -> web.Response:
        return json_response(await asyncio.to_thread(document))

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused: Refused | None = None
        is_endpoint = request.match_info.http_exception is None
        try:
            guard.check(request, is_open=is_open(request.path), is_verbose=_VERBOSE in request.query)
            if is_endpoint:
                guard.check_change(request)
            response = await handler(request)
        except Refused as error:
            refused = error
        except web.HTTPException as error:
            if error.status < 400:
                raise
            allow = {"Allow": error.headers[hdrs.ALLOW]} if hdrs.ALLOW in error.headers else {}
            refused = Refused(error.status, error.reason.lower(), allow)
        except Exception:
            _log.exception("%s %s failed", request.method, request.rel_url.raw_path)
            refused = Refused(500, "internal error")
        path = request.rel_url.raw_path
        is_change = is_endpoint and request.method not in ("GET", "HEAD") and path not in _QUESTIONS
        if refused is not None:
            if is_change or refused.status in (401, 403):
                audit.refused(request.method, path, request.remote, refused)
            return refusal_response(refused)
        if is_change:
            audit.done(request.method, path, request.remote, response.status, request.get(AUDITED, ""))
        return response

    application = web.Application(middlewares=[guarded], client_max_size=MOST_BODY_BYTES)
    application.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", exposition),
            web.get("/openapi.json", openapi),
            *(endpoint.route() for endpoint in endpoints),
        ]
    )
    return application
