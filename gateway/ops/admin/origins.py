"""The state of the origins as JSON, and the lines of the verbose readiness probe about origins and authorisation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic import with_config

from gateway.auth.key_sets import KeySet
from gateway.engine.fleet import Fleet
from gateway.engine.process_store import ProcessStore
from gateway.engine.worker_store import WorkerStore
from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, Nothing
from gateway.ops.admin.subject import Subject
from gateway.upstream.auth_services import AuthServices, Service
from gateway.upstream.origin_pool import OriginState


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class ShownOrigin:
    """One origin."""

    origin: str
    """Scheme, host and port."""
    routes: list[str]
    """The routes that lead to the origin."""
    weight: int
    """The origin's share of a route's streams, relative to the other weights.  0 if only redirects lead to it."""
    state: Literal["closed", "open", "half_open"]
    """The state of the origin's circuit breaker.  A closed breaker passes all requests, an open breaker passes none,
    and a half-open breaker passes only probes.
    """
    is_ejected: bool
    """Whether health checks have ejected the origin."""
    reason: str | None
    """The reason why the origin is not healthy; null while it is healthy."""
    since_s: float
    """Seconds in this state."""
    retry_in_s: float | None
    """Seconds until the next probe; null while the breaker is closed."""
    requests: int
    """Requests sent to the origin since the start."""
    failures: int
    """Requests that have failed."""
    refused: int
    """Requests that were not sent because the origin's breaker was open."""
    in_flight: int
    """Unfinished requests, including live requests."""
    last_heard_s: float | None
    """Seconds since bytes last arrived from the origin; null before the first bytes."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class ShownOrigins:
    """All origins of routes."""

    origins: list[ShownOrigin]


def origins_endpoints(subject: Subject) -> list[Endpoint]:
    """Make the endpoint `GET /api/origins`."""

    async def origins(_: ApiRequest[Nothing, Nothing]) -> ShownOrigins:
        return ShownOrigins([_shown(origin) for origin in subject.engine.origins.snapshot()])

    return [Endpoint("GET", "/api/origins", "The origins, and whether they answer", origins, ShownOrigins)]


def _shown(origin: OriginState) -> ShownOrigin:
    return ShownOrigin(
        origin=origin.origin,
        routes=list(origin.routes),
        weight=origin.weight,
        state=origin.state.value,
        is_ejected=origin.is_ejected,
        reason=origin.reason,
        since_s=round(origin.since_s, 3),
        retry_in_s=None if origin.retry_in_s is None else round(origin.retry_in_s, 3),
        requests=origin.requests,
        failures=origin.failures,
        refused=origin.refused,
        in_flight=origin.in_flight,
        last_heard_s=None if origin.last_heard_s is None else round(origin.last_heard_s, 3),
    )


def readiness_lines(origins: Iterable[OriginState]) -> str:
    """Return a line for each origin, for `/readyz?verbose`.  `[+]` means that the origin is up."""
    return "".join(f"{_line(origin)}\n" for origin in origins)


def auth_lines(services: AuthServices) -> str:
    """Return a line for each key set with a URL and each authorisation service.  `[+]` means that the key set or the
    service can be used.
    """
    lines = [_key_line(one) for one in services.key_sets.look()]
    lines += [_service_line(one, services.clock.now()) for one in services.look()]
    return "".join(f"{line}\n" for line in lines)


def member_lines(fleet: Fleet | None) -> str:
    """Return a line for each other member of the fleet.  `[+]` means that the member is asked for streams.

    If the members come from DNS or Redis, the first line has the result of the latest look-up of the members.  With
    Redis, the next line has the result of the latest look-up of orders in Redis.
    """
    lines = []
    if fleet is not None and (found := fleet.found) is not None:
        mark, outcome = ("-", found.problem) if found.problem else ("+", found.shown_found)
        lines.append(f"[{mark}] members {found.source.where}: {outcome}\n")
    if fleet is not None and (by_redis := fleet.by_redis) is not None:
        mark, why = ("-", f": {by_redis.problem}") if by_redis.problem else ("+", "")
        lines.append(f"[{mark}] purges and revocations in Redis at {by_redis.shown}{why}\n")
    for one in () if fleet is None else fleet.members.values():
        where = f"member {one.name} at {one.url}"
        if one.why_not:
            lines.append(f"[-] {where}: {one.why_not}\n")
        else:
            part = "" if one.weight == 1 else f": asked for {one.weight:.0%} of its streams"
            lines.append(f"[+] {where}{part}\n")
    return "".join(lines)


def store_lines(store: WorkerStore | ProcessStore | None) -> str:
    """Return a line for each worker that serves without its store on disk, or one line for a gateway of one
    process."""
    if isinstance(store, ProcessStore):
        return "" if store.is_open else "[-] serves without its store on disk\n"
    slots = () if store is None else store.without()
    return "".join(f"[-] worker {slot}: serves without its store on disk\n" for slot in slots)


def _service_line(one: Service, now: float) -> str:
    where = f"service {one.rule.shown_url} of route {one.rule.route}"
    if one.problem:
        return f"[-] {where}: {one.problem}"
    if math.isinf(one.answered_at):
        return f"[+] {where} has not been asked yet"
    return f"[+] {where} decided {now - one.answered_at:.0f} s ago"


def _key_line(one: KeySet) -> str:
    where, why = f"keys of {one.source.issuer}", f": {one.problem}" if one.problem else ""
    if one.ring is None:
        return f"[-] {where} never fetched{why}"
    latest = f", last fetch failed{why}" if why else ""
    return f"[+] {where} fetched {one.age_s:.0f} s ago{latest}"


def _line(origin: OriginState) -> str:
    if origin.is_up:
        # The breaker opens only after several failures, so a closed breaker proves little about an origin with few
        # requests.
        if origin.last_heard_s is not None:
            return f"[+] origin {origin.origin} answered {origin.last_heard_s:.0f} s ago"
        if origin.failures or origin.checks.get(False):
            return f"[-] origin {origin.origin} has not answered yet"
        return f"[+] origin {origin.origin} has not been asked yet"
    words = [origin.state.value] + ["ejected"] * origin.is_ejected
    why = f": {origin.reason}" if origin.reason else ""
    retry = f", next probe in {origin.retry_in_s:.1f} s" if origin.retry_in_s is not None else ""
    return f"[-] origin {origin.origin} {' and '.join(words)} for {origin.since_s:.0f} s{why}{retry}"
