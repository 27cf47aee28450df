"""What the gateway may hold and how long it waits: memory, connections, deadlines."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.config.model import Model
from gateway.config.values import (
    GIB,
    KIB,
    MIB,
    Bytes,
)


class LimitsConfig(Model):
    """Bounds on memory, connections and patience with clients, for the whole process."""

    cache_bytes: Bytes = Field(default=256 * MIB, ge=0, le=1024 * GIB, description="Most stream bytes kept in tapes.")
    eviction: Literal["s3-fifo", "sieve", "lru"] = Field(
        default="s3-fifo", description="Which stream goes when that is spent; the default withstands scans."
    )
    compress_min_bytes: Bytes = Field(
        default=KIB,
        ge=1,
        le=GIB,
        description="Smallest body that is compressed; below it there is little to save.",
    )
    compress_cache_bytes: Bytes = Field(
        default=32 * MIB,
        ge=0,
        le=64 * GIB,
        description="Most compressed bytes kept; they count within cache_bytes, of which they take a quarter at most.",
    )
    max_reply_bytes: Bytes = Field(
        default=4 * MIB,
        ge=KIB,
        le=GIB,
        description="Largest reply made from a tape; a longer range is answered in parts.",
    )
    max_flight_bytes: Bytes = Field(
        default=64 * MIB,
        ge=KIB,
        le=64 * GIB,
        description="Most bytes that one shared fetch may hold for its followers.",
    )
    max_request_bytes: Bytes = Field(
        default=64 * MIB, ge=KIB, le=64 * GIB, description="Largest request body that is relayed; 413 above."
    )
    max_connections: int = Field(
        default=20_000, ge=1, le=10_000_000, description="Most client connections at once; further ones are refused."
    )
    upstream_connections: int = Field(
        default=512,
        ge=1,
        le=65_535,
        description="Most connections to all origins at once, three quarters to one of several; each stream followed "
        "live has its own.",
    )
    followed_streams: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most streams followed live at once; live readers of further ones are answered 503.",
    )
    client_header_timeout_s: float = Field(
        default=10, ge=0.05, le=600, description="A client must have sent a request's head within this."
    )
    tls_handshake_timeout_s: float = Field(
        default=10, ge=0.05, le=600, description="A TLS handshake must be over within this."
    )
    client_idle_timeout_s: float = Field(
        default=30, ge=0.05, le=3_600, description="Bound on silence in the middle of a request's body."
    )
    client_write_timeout_s: float = Field(
        default=30, ge=0.05, le=3_600, description="Bound on a client that takes no bytes; its connection is dropped."
    )
    keepalive_timeout_s: float = Field(
        default=75, ge=0, le=3_600, description="How long an idle client connection is kept for its next request."
    )
    http2_streams: int = Field(
        default=128, ge=1, le=65_535, description="Most requests open at once on one HTTP/2 connection of a client."
    )
    send_buffer_bytes: Bytes = Field(
        default=256 * KIB, ge=4 * KIB, le=GIB, description="Unsent bytes held for one client before it counts as slow."
    )
