"""`POST /api/revoke`: refuse a principal, a token or a signing key, and end its live reads
(`gateway.auth.remembered_verdicts`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, with_config

from gateway.auth.remembered_verdicts import Revocation, RevocationsFull, Subject
from gateway.ops.admin.endpoint import API_TYPE, ApiRequest, Endpoint, MemberOutcome, Nothing, Refused
from gateway.ops.admin.subject import Subject as Gateway
from gateway.telemetry.audit import shortened

_DAY_S = 86_400.0


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class RevokeBody:
    """A principal, a token or a key that is refused from now on."""

    subject: Subject
    """principal: the `sub` of tokens. token: one token by its `jti`. key: the `kid` of tokens, or the id of a key that
    signs URLs."""
    name: Annotated[str, Field(min_length=1, max_length=256)]
    issuer: Annotated[str, Field(max_length=1_024)] | None = None
    """The `iss` that belongs to the name; empty for keys that sign URLs.  Null means every issuer."""
    for_s: Annotated[float, Field(ge=1, le=31_536_000)] = _DAY_S
    """Seconds for which the principal, token or key is refused.  Use the lifetime of the longest-lived credential to be
    safe.
    """


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class Revoked:
    """The number of ended live reads."""

    live_reads: int


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class RevokedOverFleet:
    """The answer of a member of a fleet."""

    live_reads: int
    """The number of live reads that have ended at this member."""
    members: list[MemberOutcome]
    """The other members of the fleet, and this one if another worker of it has not confirmed, or if
    it has not found the others yet."""


@with_config(API_TYPE)
@dataclass(frozen=True, slots=True)
class RevokedOverRedis:
    """The answer of a member of a fleet with Redis."""

    live_reads: int
    """The number of live reads that have ended at this member."""
    members: list[MemberOutcome]
    """The other members of the fleet, and this one if another worker of it has not confirmed, or if
    it has not found the others yet."""
    in_redis: bool
    """Whether Redis has the revocation. If not, this member adds it once Redis can be used again."""


def revoke_endpoints(gateway: Gateway) -> list[Endpoint]:
    """Make the endpoint `POST /api/revoke`."""

    async def revoke(request: ApiRequest[Nothing, RevokeBody]) -> Revoked:
        body = request.body
        try:
            return Revoked(gateway.routes.verdicts.revoke(Revocation(body.subject, body.name, body.issuer), body.for_s))
        except RevocationsFull as error:
            raise Refused(503, str(error)) from None

    return [
        Endpoint(
            "POST",
            "/api/revoke",
            "Refuse a principal, a token or a signing key, and end its live reads",
            revoke,
            Revoked | RevokedOverFleet | RevokedOverRedis,
            body=RevokeBody,
            audited=_audited,
            expects="subject and name, with or without issuer and for_s",
            refusals={503: "Too many revocations are in effect. Send it again when one of them has ended."},
        )
    ]


def _audited(body: RevokeBody, done: Revoked | RevokedOverFleet | RevokedOverRedis) -> str:
    return f"revoked {body.subject} {shortened(body.name)} for {body.for_s:.0f} s: {done.live_reads} live reads ended"
