"""The cache plan: where it is read from and which of its entries are applied."""

from __future__ import annotations

from pydantic import Field

from gateway.config.model import Model
from gateway.config.values import (
    GIB,
    MIB,
    Bytes,
)


class CachePlanConfig(Model):
    """The plan that the pipeline made of the traffic, and which of its wishes are granted."""

    file: str = Field(
        default="", description="Plan to take, a JSON document; read at start and at each reload. Empty: none."
    )
    take_memory: bool = Field(
        default=True, description="Keep to the plan's budget, unless limits.cache_bytes is set: then that is kept to."
    )
    take_pins: bool = Field(default=True, description="Keep the streams that it pins when others are given up.")
    pin_share: float = Field(
        default=0.5, ge=0, le=0.9, description="Most of the budget that pinned streams may take as such."
    )
    take_warm: bool = Field(
        default=True, description="Fetch the streams that it names before anybody asks, once the plan is taken."
    )
    warm_bytes: Bytes = Field(
        default=128 * MIB, ge=0, le=1024 * GIB, description="Most bytes fetched for that; half of the budget at most."
    )
    warm_s: float = Field(
        default=60,
        ge=0.1,
        le=3_600,
        description="How long that may go on; its beginnings are spread over a part of it.",
    )
    warm_fetches: int = Field(default=4, ge=1, le=256, description="Most such fetches at once.")
    take_do_not_store: bool = Field(
        default=True, description="Keep no bytes of the streams that it holds to be not worth it, once they are sent."
    )
    take_lifetimes: bool = Field(
        default=True, description="Give up tapes that nobody has asked for as long as it says, before room is needed."
    )


class CacheConfig(Model):
    """What is kept, beyond `limits.cache_bytes`."""

    plan: CachePlanConfig = CachePlanConfig()
