"""Origins: their addresses, health checks, circuit breakers, credentials and TLS.

`[origins]` applies to the whole process, because an origin may serve several routes but has one circuit breaker.  The
other tables belong to a route.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from gateway.config.model import MisfitError, Model
from gateway.config.values import HeaderName, OriginUrl, RequestPath


class OriginConfig(Model):
    """One of a route's several origins."""

    url: OriginUrl = Field(description="http(s) URL of the server, as in `origin`.")
    weight: int = Field(
        default=1, ge=1, le=1_000, description="Share of the streams, relative to the other origins' weights."
    )


def _with_weight(entry: Any) -> Any:
    """Convert a URL, which environment variables use, to a table."""
    return {"url": entry} if isinstance(entry, str) else entry


OriginList = Annotated[
    tuple[Annotated[OriginConfig, BeforeValidator(_with_weight)], ...], Field(strict=False, max_length=64)
]
HostList = Annotated[tuple[OriginUrl, ...], Field(strict=False, max_length=64)]


class HealthCheckConfig(Model):
    """Active health checks of a route's origins."""

    path: RequestPath = Field(
        default="/",
        description="Path and query of the GET request. A status below 500 passes, because few origins have a page "
        "for health checks.",
    )
    interval_s: float = Field(
        default=5, ge=0, le=3_600, description="Time between two checks of an origin, jittered; 0 turns checks off."
    )
    timeout_s: float = Field(default=2, ge=0.01, le=60, description="Longest wait for the answer to a check.")
    eject_after: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Consecutive failed checks that eject an origin. An ejected origin is used only if no other "
        "origin is available.",
    )
    return_after: int = Field(
        default=2, ge=1, le=100, description="Consecutive passed checks that bring an ejected origin back."
    )


class OriginCredentialsConfig(Model):
    """Credentials sent to a route's origins, in place of the header of that name in clients' requests."""

    header: HeaderName = Field(default="authorization", description="Header that carries the credentials.")
    file: str = Field(
        default="", description="File that holds the header's value; read at start and at each reload. Empty: none."
    )
    environment: str = Field(
        default="", description="Environment variable that holds the header's value, in place of a file. Empty: none."
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.file and self.environment:
            raise MisfitError("is set together with file: set only one", "environment")
        return self


class OriginTlsConfig(Model):
    """TLS to a route's https origins: authorities, client certificate, server name."""

    ca_file: str = Field(
        default="",
        description="PEM file of the authorities that must have signed the origins' certificates. This file, "
        "cert_file and key_file are read again when they change. Empty: the system's authorities.",
    )
    cert_file: str = Field(
        default="", description="PEM file of the client certificate that origins receive, with its chain. Empty: none."
    )
    key_file: str = Field(
        default="",
        description="PEM file of the client certificate's key, without a password. Empty: the key is in cert_file.",
    )
    server_name: str = Field(
        default="",
        description="Name that the origins' certificates must match, and the server name that is sent (SNI). Empty: "
        "the host of their URL.",
    )

    @model_validator(mode="after")
    def _key_of_a_certificate(self) -> Self:
        if self.key_file and not self.cert_file:
            raise MisfitError("is set without cert_file", "key_file")
        return self


class OriginsConfig(Model):
    """Circuit breakers, waiting requests and connections of all origins, for the whole process."""

    breaker_failures: int = Field(
        default=5,
        ge=0,
        le=1_000_000,
        description="Consecutive failed requests that open an origin's circuit breaker; a lost connection counts half. "
        "0 never opens it.",
    )
    breaker_ratio: float = Field(
        default=0.5,
        ge=0.01,
        le=1,
        description="Share of failed requests within the window that opens the circuit breaker, even if the failures "
        "are not consecutive.",
    )
    breaker_window_s: float = Field(
        default=10, ge=0.1, le=3_600, description="Window for breaker_ratio and breaker_requests."
    )
    breaker_requests: int = Field(
        default=20, ge=1, le=1_000_000, description="Fewest requests within the window for breaker_ratio to apply."
    )
    breaker_open_s: float = Field(
        default=1,
        ge=0.01,
        le=3_600,
        description="First pause of an open breaker, and the longest time between two of its probes; jittered down to "
        "half. A breaker that opens again at once pauses for twice as long.",
    )
    breaker_longest_open_s: float = Field(
        default=2, ge=0.01, le=3_600, description="Longest pause before an open breaker probes the origin."
    )
    breaker_probes: int = Field(
        default=1,
        ge=1,
        le=1_000,
        description="Clients' requests that a half-open breaker lets through at once as probes.",
    )
    waiting_requests: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description="Most requests that wait for the answer of one origin at once, without live reads; further "
        "requests are answered 503.",
    )
    connection_idle_s: float = Field(
        default=15,
        ge=0.1,
        le=3_600,
        description="How long an idle connection to an origin is kept. This time must be shorter than the origin's "
        "own timeout: if the origin closes the connection first, a write can fail. A Keep-Alive timeout "
        "stated by the origin shortens this time.",
    )
    connection_rest_s: float = Field(
        default=0.05,
        ge=0,
        le=10,
        description="How long an HTTP/1.1 connection to an origin rests between a reply and the next request, so that "
        "a second reply to one request is not read as the reply to the next request. Other connections "
        "are used meanwhile. If there are upstream_connections already, the connection that has rested "
        "the longest is used.",
    )
    connection_age_s: float = Field(
        default=300,
        ge=0,
        le=86_400,
        description="Age at which a connection to an origin takes no more requests, jittered down by a fifth, so that "
        "load spreads over servers that were added. 0 is no bound.",
    )

    @model_validator(mode="after")
    def _pauses_grow(self) -> Self:
        if self.breaker_longest_open_s < self.breaker_open_s:
            raise MisfitError(f"is shorter than breaker_open_s, {self.breaker_open_s:g}", "breaker_longest_open_s")
        return self
