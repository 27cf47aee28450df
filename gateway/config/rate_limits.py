"""Rate limits on requests, bytes and live reads."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from gateway.config.model import MisfitError, Model
from gateway.config.sizes import GIB
from gateway.config.values import Bytes, RouteName


class RateLimitConfig(Model):
    """One limit.  Requests beyond it are answered 429."""

    name: RouteName = Field(
        description="Unique; names the limit in metrics and to clients, in the RateLimit fields of answers."
    )
    per: Literal["client", "principal", "tenant", "route", "all"] = Field(
        default="client",
        description="The unit with an allowance of its own: each client network, each principal or tenant of "
        "[[route.auth]], or each route. all: all requests share one allowance.",
    )
    routes: tuple[RouteName, ...] = Field(
        default=(),
        strict=False,
        description="Names of the routes to which the limit applies; an empty list stands for all routes.",
    )
    requests_per_s: float | None = Field(default=None, ge=1e-6, le=1_000_000, description="Most requests a second.")
    burst: int | None = Field(
        default=None,
        ge=1,
        le=10_000_000,
        description="Most requests at once, after a pause; by default the requests of one second.",
    )
    bytes_per_s: Bytes | None = Field(
        default=None,
        ge=1,
        le=1024 * GIB,
        description="Most bytes a second of answers' bodies. An answer is sent completely, even if it exceeds the "
        "limit. Further requests are then refused until the average is below the limit.",
    )
    live_reads: int | None = Field(default=None, ge=1, le=10_000_000, description="Most live reads at once.")

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.requests_per_s is None and self.bytes_per_s is None and self.live_reads is None:
            raise MisfitError(
                "is needed, unless bytes_per_s or live_reads is set: the table limits nothing", "requests_per_s"
            )
        if self.burst is not None and self.requests_per_s is None:
            raise MisfitError("needs requests_per_s", "burst")
        return self
