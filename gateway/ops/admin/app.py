"""The admin port's application: its endpoints, their OpenAPI document, the probes and the metrics, behind one guard."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Final, Protocol

from aiohttp import hdrs, web

from gateway.ops.admin.audit import Audit
from gateway.ops.admin.controls import controls_endpoints
from gateway.ops.admin.counts import counts_endpoints
from gateway.ops.admin.directory import Directory
from gateway.ops.admin.endpoint import AUDITED, MOST_BODY_BYTES, Endpoint, Refused, json_response, refusal_response
from gateway.ops.admin.guard import Guard
from gateway.ops.admin.history import history_endpoints
from gateway.ops.admin.openapi import openapi_document
from gateway.ops.admin.origins import auth_lines, member_lines, origins_endpoints, readiness_lines, store_lines
from gateway.ops.admin.over_fleet import OverFleet
from gateway.ops.admin.overview import overview_endpoints
from gateway.ops.admin.plan import plan_endpoints
from gateway.ops.admin.purge import Purger, purge_endpoints
from gateway.ops.admin.readiness import readiness, unready_process
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

QUESTIONS: Final = frozenset({"/api/tails"})
"""Endpoints that take a body but do not change anything."""

_VERBOSE: Final = "verbose"
"""The query parameter of the verbose probe.  `/readyz?verbose` also lists origins and members of the fleet, so it needs
the token, unlike the plain probe."""

_log = logging.getLogger("gateway.admin")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def replaced() -> Refused:
    """Return the refusal of a change at this version of the gateway, which another version replaces.  The other version
    passes changes on to this version, but this version passes no changes on."""
    text = "another version of the gateway replaces this one: send the request again, on a new connection"
    return Refused(503, text, {"Retry-After": "1"})


class Answering(Protocol):
    """Answers for the subject of the admin port: this process, or a gateway with several workers."""

    def route(self, endpoint: Endpoint) -> web.RouteDef:
        """Return the endpoint as an aiohttp route."""

    async def unready(self) -> list[str]:
        """Return a line for each part that is not ready; no lines if the gateway is ready."""

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format that the Accept header prefers, and the content type."""


class Alone:
    """Answers for a gateway of one process."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def __repr__(self) -> str:
        return "<Alone>"

    def route(self, endpoint: Endpoint) -> web.RouteDef:
        return endpoint.route()

    async def unready(self) -> list[str]:
        return unready_process(is_ready=self._subject.is_ready)

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        return await self._subject.metrics.scrape(accept)


def admin_endpoints(subject: Subject, directory: Directory) -> list[Endpoint]:
    """Make all endpoints below `/api/`."""
    return [
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


def admin_application(
    subject: Subject, guard: Guard, partitions: PartitionIds, answering: Answering | None = None
) -> web.Application:
    """Make the application with `/healthz`, `/readyz`, `/metrics`, `/openapi.json` and everything below `/api/`.

    Without `answering`, the application answers for this process alone."""
    answering = answering or Alone(subject)
    audit = Audit(subject.engine.clock)
    directory = Directory(subject.engine, partitions)
    endpoints = admin_endpoints(subject, directory)
    fleet, purger = subject.engine.fleet, Purger(subject.engine, directory)
    over_fleet = OverFleet(subject, fleet, endpoints, purger, audit) if fleet is not None else None
    # Built at the first request, in a thread, because it takes a third of a second.
    document = cache(partial(openapi_document, endpoints))

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        is_verbose = _VERBOSE in request.query
        status, text = readiness(await answering.unready(), is_verbose=is_verbose)
        if is_verbose:
            text += readiness_lines(subject.engine.origins.snapshot())
            text += auth_lines(subject.auth_services)
            text += member_lines(subject.engine.fleet)
            text += store_lines(subject.engine.process_store or subject.engine.worker_store)
        return web.Response(status=status, text=text)

    async def exposition(request: web.Request) -> web.Response:
        body, content_type = await answering.exposition(", ".join(request.headers.getall(hdrs.ACCEPT, [])))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def openapi(_: web.Request) -> web.Response:
        return json_response(await asyncio.to_thread(document))

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused: Refused | None = None
        is_endpoint = request.match_info.http_exception is None
        path = request.rel_url.raw_path
        is_change = is_endpoint and request.method not in ("GET", "HEAD") and path not in QUESTIONS
        try:
            guard.check(request, is_open=is_open(request.path), is_verbose=_VERBOSE in request.query)
            if is_endpoint:
                guard.check_change(request)
            if is_change and subject.is_replaced:
                raise replaced()
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
        if refused is not None:
            if is_change or refused.status in (401, 403):
                audit.refused(request.method, path, request.remote, refused)
            response = refusal_response(refused)
        elif is_change:
            audit.done(request.method, path, request.remote, response.status, request.get(AUDITED, ""))
        if subject.is_replaced:
            # Close the connection, because the client's next connection reaches the other version.
            response.force_close()
        return response

    application = web.Application(middlewares=[guarded], client_max_size=MOST_BODY_BYTES)
    application.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", exposition),
            web.get("/openapi.json", openapi),
            *(
                over_fleet.route(endpoint)
                if over_fleet is not None and over_fleet.concerns(endpoint)
                else answering.route(endpoint)
                for endpoint in endpoints
            ),
        ]
    )
    return application
