"""What an operator can say of origins: which there are, how they are checked and judged, what they are shown.

`[origins]` is for the whole process, because an origin may serve several routes and is judged once; the other tables
belong to a route.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from gateway.config.model import MisfitError, Model
from gateway.config.values import HeaderName, OriginUrl, RequestPath


class OriginConfig(Model):
    """One of a route's several origins."""

    url: OriginUrl = Field(description="http(s) URL of the server, as in `origin`.")
    weight: int = Field(default=1, ge=1, le=1_000, description="Share of the streams, beside the others' weights.")


def _with_weight(entry: Any) -> Any:
    """An entry that is a URL alone, as environment variables have it."""
    return {"url": entry} if isinstance(entry, str) else entry


OriginList = Annotated[
    tuple[Annotated[OriginConfig, BeforeValidator(_with_weight)], ...], Field(strict=False, max_length=64)
]
HostList = Annotated[tuple[OriginUrl, ...], Field(strict=False, max_length=64)]


class HealthCheckConfig(Model):
    """Active checks of a route's origins."""

    path: RequestPath = Field(
        default="/",
        description="Path and query that is asked for with GET; an answer below 500 is good, since few origins have a "
        "page for this.",
    )
    interval_s: float = Field(
        default=5, ge=0, le=3_600, description="Time between two checks of an origin, jittered; 0 is never."
    )
    timeout_s: float = Field(default=2, ge=0.01, le=60, description="Bound on the answer to a check.")
    eject_after: int = Field(
        default=3,
        ge=1,
        le=100,
        description="So many checks that fail in a row eject an origin: it is asked only where no other may be.",
    )
    return_after: int = Field(default=2, ge=1, le=100, description="So many good ones in a row take it back.")


class OriginCredentialsConfig(Model):
    """What the gateway shows a route's origins, in place of what clients send under that name."""

    header: HeaderName = Field(default="authorization", description="Header that carries them.")
    file: str = Field(
        default="", description="File that holds the header's value; read at start and at each reload. Empty: none."
    )
    environment: str = Field(
        default="", description="Environment variable that holds it, in place of a file. Empty: none."
    )

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if self.file and self.environment:
            raise MisfitError("is set beside file: name one place", "environment")
        return self


class OriginTlsConfig(Model):
    """How a route's https origins are known, and what they are shown."""

    ca_file: str = Field(
        default="",
        description="File of certificates (PEM) that origins' own are to be signed by; read again when it "
        "changes, like the next two. Empty: those that the system trusts.",
    )
    cert_file: str = Field(
        default="", description="File of the certificate (PEM) that origins are shown, with its chain. Empty: none."
    )
    key_file: str = Field(
        default="", description="File of its key (PEM), without a password. Empty: the key is in cert_file."
    )
    server_name: str = Field(
        default="",
        description="Name that origins' certificates are to be for, and that is asked for (SNI). Empty: the host of "
        "their URL.",
    )

    @model_validator(mode="after")
    def _key_of_a_certificate(self) -> Self:
        if self.key_file and not self.cert_file:
            raise MisfitError("is set without cert_file", "key_file")
        return self


class OriginsConfig(Model):
    """How origins are judged, for the whole process: the circuit breaker of each, and what may wait for it."""

    breaker_failures: int = Field(
        default=5,
        ge=0,
        le=1_000_000,
        description="So many requests that fail in a row open an origin's circuit breaker; 0 never opens it.",
    )
    breaker_ratio: float = Field(
        default=0.5, ge=0.01, le=1, description="So large a share of failures within the window opens it, too."
    )
    breaker_window_s: float = Field(default=10, ge=0.1, le=3_600, description="The window for that share.")
    breaker_requests: int = Field(
        default=20, ge=1, le=1_000_000, description="Least requests within the window for the share to count."
    )
    breaker_open_s: float = Field(
        default=1,
        ge=0.01,
        le=3_600,
        description="First pause before the origin is probed; each further one is twice as long, jittered.",
    )
    breaker_longest_open_s: float = Field(default=15, ge=0.01, le=3_600, description="Longest such pause.")
    breaker_probes: int = Field(
        default=1, ge=1, le=1_000, description="Requests that are let through at once to see whether it is back."
    )
    waiting_requests: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description="Most requests that wait for one origin's answer at once, live ones excepted; 503 beyond.",
    )

    @model_validator(mode="after")
    def _pauses_grow(self) -> Self:
        if self.breaker_longest_open_s < self.breaker_open_s:
            raise MisfitError(f"is shorter than breaker_open_s, {self.breaker_open_s:g}", "breaker_longest_open_s")
        return self
