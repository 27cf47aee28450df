"""The server: client and admin addresses, shutdown, trusted proxies, name."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from gateway.config.addresses import DEFAULT_ADMIN, Address, parse_address
from gateway.config.listener import TrustedProxies
from gateway.config.model import MisfitError, Model
from gateway.config.values import ListenAddress, NodeName, Workers


class ServerConfig(Model):
    """Where the gateway listens, how it shuts down, and its name."""

    listen: ListenAddress = Field(
        default="127.0.0.1:4437",
        description="Address for clients, without TLS; port 0 picks a free port. If there are [[listener]] tables, "
        "this address is used only if it is set.",
    )
    admin: ListenAddress = Field(
        default=DEFAULT_ADMIN,
        description="Address of the admin API, the console and /metrics. An address outside loopback requires a token.",
    )
    admin_connections: int = Field(
        default=256,
        ge=4,
        le=10_000,
        description="Most connections to the admin port at once. A further connection replaces the connection that "
        "has been idle the longest.",
    )
    shutdown_timeout_s: float = Field(
        default=10,
        ge=0.1,
        le=600,
        description="Longest drain after SIGTERM or SIGINT; remaining connections are then dropped.",
    )
    workers: Workers = Field(
        default="auto",
        description="Number of processes that serve clients, each on one core; auto: one for each processor that the "
        "process may use, by its affinity and the quota of its container, but at most one for each 256 MiB of "
        "memory (limits.memory_max_bytes or the container's limit) and for each 32 MiB of limits.cache_bytes. 1: one "
        "process, without a supervisor. dev: always 1.",
    )
    fast_path: bool = Field(
        default=True, description="Look up repeated requests by their bytes; false is for comparison only."
    )
    trusted_proxies: TrustedProxies = Field(
        default=(),
        description="Networks of proxies that are trusted to state the client's address, such as "
        '"10.0.0.0/8", or "unix". Empty: no proxy is trusted.',
    )
    forwarded_by: Literal["x-forwarded-for", "forwarded"] = Field(
        default="x-forwarded-for",
        description="Headers that the trusted proxies set: X-Forwarded-For and X-Forwarded-Proto, or Forwarded (RFC "
        "7239). The headers of the other kind are ignored.",
    )
    console_writes: bool = Field(
        default=False, description="Show forms in the console that create, append to, close and delete streams."
    )
    node_name: NodeName = Field(
        default="durable-gateway",
        description="Name of this gateway in Via, Cache-Status and CDN-Loop. Gateways on one path need different "
        "names.",
    )

    @property
    def listen_address(self) -> Address:
        """`listen`, parsed."""
        return parse_address(self.listen)

    @property
    def admin_address(self) -> Address:
        """`admin`, parsed."""
        return parse_address(self.admin)

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.listen == self.admin and self.listen_address.port:
            raise MisfitError(f"is {self.admin}, the same as listen", "admin")
        return self
