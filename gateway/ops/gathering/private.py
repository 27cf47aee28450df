"""The private admin application of one worker, which only the workers of the same gateway reach.

The application has the endpoints of the public admin port, and its answers concern this worker alone.  It needs no
authorisation, because its socket is in a folder that only the gateway's user may enter.  Further endpoints
(`_private_endpoints`) give more detail than the public endpoints.  Some merged answers can be made only from this
detail.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from pydantic import with_config

from gateway.auth.remembered_verdicts import Subject as Revocable
from gateway.ops.admin.app import admin_endpoints
from gateway.ops.admin.controls import Level, level_now
from gateway.ops.admin.directory import Directory
from gateway.ops.admin.endpoint import (
    API_TYPE,
    MOST_BODY_BYTES,
    ApiRequest,
    Endpoint,
    Nothing,
    Refused,
    refusal_response,
)
from gateway.ops.admin.overview import Overview
from gateway.ops.admin.purge import PurgeBody, Purger, name_hash
from gateway.ops.admin.subject import Subject
from gateway.ops.gathering.ended_counts import EndedCounts
from gateway.ops.gathering.sibling_orders import order_routes
from gateway.ops.history import Sample
from gateway.ops.partition_ids import PartitionIds
from gateway.upstream.health import OriginNews

SAMPLES: Final = "/worker/samples"
OVERVIEW: Final = "/worker/overview"
PURGE: Final = "/worker/purge"
SETTINGS: Final = "/worker/settings"
ORIGIN: Final = "/worker/origin"
FAMILIES: Final = "/worker/families"
READY: Final = "/readyz"

_log = logging.getLogger("gateway.admin")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class WorkerSamples:
    """The samples of one worker."""

    started_at: float
    """The time at which the worker was started, in monotonic seconds, which all workers of a machine share."""
    samples: list[Sample]
    now: Sample


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class WorkerOverview:
    """The overview of one worker, and the samples from which merged shares are computed."""

    overview: Overview
    samples: WorkerSamples


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class WorkerPurged:
    """The streams that one worker has purged, as hashes of their names.  The hashes show which workers had copies of
    the same stream, so that the stream is counted once."""

    names: list[int]


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class WorkerRevocation:
    """A revocation in effect."""

    subject: Revocable
    name: str
    issuer: str | None
    for_s: float
    """Seconds until the revocation ends."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The settings that operators have made at run time."""

    revocations: list[WorkerRevocation]
    is_draining: bool
    level: Level
    is_level_set: bool = False
    """Whether an operator has set the log level at this version of the gateway."""


def private_application(subject: Subject, partitions: PartitionIds, counts: EndedCounts) -> web.Application:
    """Make the private application of a worker."""
    directory, fleet = Directory(subject.engine, partitions), subject.engine.fleet

    async def families(_: web.Request) -> web.Response:
        return web.Response(body=await counts.collect(subject.metrics.registry.collect()))

    async def readyz(_: web.Request) -> web.Response:
        return web.Response(status=200 if subject.is_ready else 503)

    @web.middleware
    async def refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except Refused as refused:
            return refusal_response(refused)
        except web.HTTPException as error:
            return refusal_response(Refused(error.status, error.reason.lower()))
        except Exception:
            _log.exception("%s %s failed", request.method, request.rel_url.raw_path)
            return refusal_response(Refused(500, "internal error"))

    application = web.Application(middlewares=[refusing], client_max_size=MOST_BODY_BYTES)
    endpoints = [*admin_endpoints(subject, directory), *_private_endpoints(subject, directory)]
    application.add_routes(
        [
            web.get(READY, readyz),
            web.get(FAMILIES, families),
            *(endpoint.route() for endpoint in endpoints),
            *(() if fleet is None else order_routes(fleet.orders, subject.engine.clock.now)),
        ]
    )
    return application


def _private_endpoints(subject: Subject, directory: Directory) -> list[Endpoint]:
    purger = Purger(subject.engine, directory)
    look = next(one for one in admin_endpoints(subject, directory) if one.path == "/api/overview").handle

    async def samples(_: ApiRequest[Nothing, Nothing]) -> WorkerSamples:
        return WorkerSamples(subject.started_at, [sample for sample, _ in subject.history.samples()], subject.sample())

    async def overview(asked: ApiRequest[Nothing, Nothing]) -> WorkerOverview:
        seen = await look(asked)
        assert isinstance(seen, Overview)
        return WorkerOverview(seen, await samples(asked))

    async def purge(asked: ApiRequest[Nothing, PurgeBody]) -> WorkerPurged:
        return WorkerPurged([name_hash(name) for name in await purger.purge(asked.body)])

    async def settings(_: ApiRequest[Nothing, Nothing]) -> WorkerSettings:
        revocations = subject.routes.verdicts.revocations()
        return WorkerSettings(
            [WorkerRevocation(one.subject, one.name, one.issuer, for_s) for one, for_s in revocations],
            subject.engine.drain.is_set,
            level_now(),
            subject.level_changes > 0,
        )

    async def origin(asked: ApiRequest[Nothing, OriginNews]) -> Nothing:
        subject.engine.health.learn(asked.body)
        return Nothing()

    return [
        Endpoint("POST", ORIGIN, "What another worker knows of an origin", origin, Nothing, body=OriginNews),
        Endpoint("GET", SAMPLES, "The samples of this worker", samples, WorkerSamples),
        Endpoint("GET", OVERVIEW, "This worker at a glance", overview, WorkerOverview),
        Endpoint("POST", PURGE, "Purge at this worker", purge, WorkerPurged, body=PurgeBody),
        Endpoint("GET", SETTINGS, "What operators have set", settings, WorkerSettings),
    ]
