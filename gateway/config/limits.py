"""Limits of the process: memory, connections, deadlines for clients."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from gateway.config.model import Model
from gateway.config.sizes import GIB, KIB, MIB
from gateway.config.values import Bytes

_LEAST_CLIENT_BYTES: Final = 64 * MIB


class LimitsConfig(Model):
    """Bounds on memory and connections, and deadlines for clients, for the whole process."""

    cache_bytes: Bytes = Field(
        default=256 * MIB,
        ge=0,
        le=1024 * GIB,
        description="Most bytes of the cache: tapes (cached streams), and the data derived from tapes.",
    )
    client_bytes: Bytes = Field(
        default=0,
        ge=0,
        le=1024 * GIB,
        description="Most bytes held for all clients together: unread answers that the cache does not hold, "
        "unfinished heads, bodies. If clients hold more, the connections that hold the most are dropped. "
        "0: a quarter of cache_bytes, at least 64 MiB.",
    )
    memory_max_bytes: Bytes = Field(
        default=0,
        ge=0,
        le=1024 * GIB,
        description="Memory that the process should not exceed. Close to this limit, the cache shrinks first, then "
        "clients are dropped, then new connections are refused. 0: 90 % of the container's limit, or no "
        "limit if the container has none.",
    )
    eviction: Literal["s3-fifo", "sieve", "lru"] = Field(
        default="s3-fifo",
        description="Eviction policy once cache_bytes is reached. With the default, a scan of many "
        "streams does not evict popular streams.",
    )
    compress_min_bytes: Bytes = Field(
        default=KIB,
        ge=1,
        le=GIB,
        description="Smallest body that is compressed; compressing a smaller body saves little.",
    )
    compress_cache_bytes: Bytes = Field(
        default=32 * MIB,
        ge=0,
        le=64 * GIB,
        description="Most bytes of cached compressed bodies. They count towards cache_bytes, and take at most a "
        "quarter of cache_bytes.",
    )
    max_reply_bytes: Bytes = Field(
        default=4 * MIB,
        ge=KIB,
        le=GIB,
        description="Largest reply from cached bytes; a longer range takes several replies.",
    )
    max_flight_bytes: Bytes = Field(
        default=64 * MIB,
        ge=KIB,
        le=64 * GIB,
        description="Most bytes that one shared fetch may hold for the requests that share it.",
    )
    max_request_bytes: Bytes = Field(
        default=64 * MIB,
        ge=KIB,
        le=64 * GIB,
        description="Largest request body that is relayed; a request with a larger body is answered 413.",
    )
    max_connections: int = Field(
        default=20_000,
        ge=1,
        le=10_000_000,
        description="Most client connections at once; further connections are refused.",
    )
    client_connections: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="Most connections of one client network; 0 is half of max_connections. Trusted proxies and Unix "
        "sockets are not bounded.",
    )
    client_live_reads: int = Field(
        default=0,
        ge=0,
        le=10_000_000,
        description="Most live reads of one client network; further live reads are answered 429. 0 is half of "
        "max_connections.",
    )
    client_new_streams_per_s: float = Field(
        default=1_000,
        ge=0,
        le=1_000_000,
        description="Most reads a second of streams that are not in memory, for each client network; further such "
        "reads are answered 429. The reads of two seconds may come at once. 0 is no limit.",
    )
    client_refusals_per_s: float = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Most refused requests a second of one client network (statuses 400, 408, 414, 429, 431); the "
        "refusals of ten seconds may come at once. A network with more refusals is banned for 10 s: its "
        "connections are closed. If a ban follows another ban soon, it is twice as long, up to 320 s. "
        "Trusted proxies are never banned. 0 is no limit.",
    )
    client_v4_bits: int = Field(
        default=32,
        ge=8,
        le=32,
        description="Prefix length of the IPv4 networks that limits per client count as one client.",
    )
    client_v6_bits: int = Field(
        default=64,
        ge=16,
        le=128,
        description="Prefix length of the IPv6 networks that limits per client count as one client.",
    )
    upstream_connections: int = Field(
        default=512,
        ge=1,
        le=65_535,
        description="Most connections to all origins at once; over HTTP/2, most requests. Reads get at most three "
        "quarters of this number. The same holds for writes, for each of several origins, and for each of "
        "several routes. Live requests are not counted.",
    )
    client_upstream_requests: int = Field(
        default=128,
        ge=1,
        le=65_535,
        description="Most concurrent requests of one client network to one origin, without live reads. To all origins "
        "together, one network has at most half of upstream_connections. Its further requests wait, and "
        "the requests of other clients overtake them.",
    )
    auth_requests: int = Field(
        default=64,
        ge=1,
        le=4_096,
        description="Most concurrent requests to the services of [[route.auth]]; one client network has at most half "
        "of them. Further requests wait.",
    )
    upstream_queue: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description="Most requests that wait for a connection to an origin; one client network has at most a quarter "
        "of them. Further requests are answered 503.",
    )
    upstream_wait_s: float = Field(
        default=5,
        ge=0.01,
        le=600,
        description="Longest wait for a connection to an origin; a request that waits longer is answered 503.",
    )
    followed_streams: int = Field(
        default=10_000,
        ge=1,
        le=1_000_000,
        description="Most streams followed live at once, including relayed live reads; live readers of further "
        "streams are answered 503.",
    )
    client_followed_streams: int = Field(
        default=0,
        ge=0,
        le=1_000_000,
        description="Most streams that are followed because of one client network, including its relayed live reads. "
        "Further live reads are answered 429. 0 is half of followed_streams.",
    )
    client_header_timeout_s: float = Field(
        default=10, ge=0.05, le=600, description="Longest time a client may take to send a request's head."
    )
    tls_handshake_timeout_s: float = Field(
        default=10, ge=0.05, le=600, description="Longest time a TLS handshake may take."
    )
    client_idle_timeout_s: float = Field(
        default=30, ge=0.05, le=3_600, description="Longest pause in the middle of a request's body."
    )
    client_body_timeout_s: float = Field(
        default=900, ge=0.05, le=86_400, description="Longest time a client may take to send one request's body."
    )
    client_min_rate: int = Field(
        default=240,
        ge=0,
        le=GIB,
        description="Lowest rate, in bytes a second, at which a client may send a body (after the first 5 s) and read "
        "an answer (in each client_write_timeout_s). A slower upload is answered 408, and a slower reader is dropped. "
        "0 is no limit.",
    )
    client_write_timeout_s: float = Field(
        default=30,
        ge=0.05,
        le=3_600,
        description="How long a client may read more slowly than client_min_rate before it is dropped.",
    )
    keepalive_timeout_s: float = Field(
        default=75, ge=0, le=3_600, description="How long an idle client connection is kept for its next request."
    )
    http2_streams: int = Field(
        default=128, ge=1, le=65_535, description="Most concurrent requests on one HTTP/2 client connection."
    )
    send_buffer_bytes: Bytes = Field(
        default=256 * KIB, ge=4 * KIB, le=GIB, description="Unsent bytes held for one client before it counts as slow."
    )

    @property
    def is_budget_set(self) -> bool:
        """Whether the operator has set `cache_bytes`, even to its default."""
        return "cache_bytes" in self.model_fields_set

    @property
    def most_client_bytes(self) -> int:
        """`client_bytes`, with the value for 0 computed."""
        return self.client_bytes or max(_LEAST_CLIENT_BYTES, self.cache_bytes // 4)

    @property
    def most_client_connections(self) -> int:
        """The most connections of one client network."""
        return self.client_connections or max(1, self.max_connections // 2)

    @property
    def most_client_live_reads(self) -> int:
        """The most live reads of one client network."""
        return self.client_live_reads or max(1, self.max_connections // 2)

    @property
    def most_client_followed_streams(self) -> int:
        """The most live requests at origins for one client network."""
        return self.client_followed_streams or max(1, self.followed_streams // 2)
