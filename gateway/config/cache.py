"""Cache settings: where the cache plan is read from, and which parts of it are applied."""

from __future__ import annotations

from pydantic import Field

from gateway.config.model import Model
from gateway.config.sizes import GIB, MIB
from gateway.config.values import Bytes


class CachePlanConfig(Model):
    """The cache plan that the pipeline made from the traffic, and which parts of it are applied."""

    file: str = Field(
        default="",
        description="File of the cache plan to apply, in JSON. The file is read at start and at each "
        "reload. Empty: no plan.",
    )
    take_memory: bool = Field(
        default=True, description="Use the plan's memory budget, unless limits.cache_bytes is set."
    )
    take_short_memory: bool = Field(
        default=False,
        description="Use the memory budget even if the plan is marked as made from too little traffic.",
    )
    take_pins: bool = Field(default=True, description="Keep the plan's pinned streams when other streams are evicted.")
    pin_share: float = Field(
        default=0.5, ge=0, le=0.9, description="Largest share of the budget that pinned streams may hold."
    )
    take_warm: bool = Field(
        default=True, description="Fetch the streams that the plan warms as soon as it is applied, ahead of requests."
    )
    warm_bytes: Bytes = Field(
        default=128 * MIB,
        ge=0,
        le=1024 * GIB,
        description="Most bytes fetched to warm streams; never more than half of the budget.",
    )
    warm_s: float = Field(
        default=60,
        ge=0.1,
        le=3_600,
        description="Longest time that warming may take; the starts of its fetches are spread over a part of it.",
    )
    warm_fetches: int = Field(default=4, ge=1, le=256, description="Most warming fetches at once.")
    take_do_not_store: bool = Field(
        default=True, description="Drop the bytes of the plan's do_not_store streams once they are sent."
    )
    take_lifetimes: bool = Field(
        default=True,
        description="Drop tapes that have been idle for the plan's lifetime, before their memory is needed.",
    )


class CacheConfig(Model):
    """The contents of the cache, in addition to `limits.cache_bytes`."""

    plan: CachePlanConfig = CachePlanConfig()
