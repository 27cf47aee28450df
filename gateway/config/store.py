"""Settings of the store on disk, which keeps the bytes of streams over restarts and evictions."""

from __future__ import annotations

from typing import Final, Self

from pydantic import Field, model_validator

from gateway.config.model import MisfitError, Model
from gateway.config.sizes import GIB, MIB
from gateway.config.values import Bytes

LEAST_STORE_BYTES: Final = 2 * MIB
"""The least bytes on disk of one process: two segments."""


class StoreConfig(Model):
    """The store on disk."""

    path: str = Field(
        default="",
        description="Folder in which the bytes of streams are kept on disk, for one gateway alone. Empty: no store.",
    )
    max_bytes: Bytes = Field(
        default=16 * GIB,
        ge=LEAST_STORE_BYTES,
        le=16_384 * GIB,
        description="Most bytes of streams on disk, divided among the workers; the oldest segment is deleted when they "
        "are reached.",
    )
    segment_bytes: Bytes = Field(
        default=256 * MIB,
        ge=MIB,
        le=4 * GIB,
        description="Size of one file of the store, at most half of max_bytes, and of a worker's part of it.",
    )

    with_credentials: bool = Field(
        default=False,
        description="Write the bytes of routes whose readers with credentials share them, too: routes with "
        'credentials = "shared" or with [[route.auth]]. The files are not encrypted.',
    )

    @model_validator(mode="after")
    def _has_two_segments(self) -> Self:
        if 2 * self.segment_bytes > self.max_bytes:
            raise MisfitError("is more than half of max_bytes", "segment_bytes")
        return self
