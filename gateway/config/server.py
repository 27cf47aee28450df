"""Where the gateway serves clients and operators, and how it sends clients off."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from gateway.config.listener import TrustedProxies
from gateway.config.model import MisfitError, Model
from gateway.config.values import (
    Address,
    ListenAddress,
    NodeName,
    parse_address,
)


class ServerConfig(Model):
    """Where the gateway listens, how it leaves, and what it calls itself."""

    listen: ListenAddress = Field(
        default="127.0.0.1:4437",
        description="Address for clients, plain; port 0 picks a free one. With [[listener]] it is one more where it is "
        "set, and none where it is not.",
    )
    admin: ListenAddress = Field(
        default="127.0.0.1:9437",
        description="Address of the admin API, the console and /metrics; beyond loopback it asks for a token.",
    )
    shutdown_timeout_s: float = Field(
        default=10, ge=0.1, le=600, description="Bound on the drain after SIGTERM or SIGINT; what is left is dropped."
    )
    fast_path: bool = Field(
        default=True, description="Look repeated requests up by their bytes; false is for comparison."
    )
    trusted_proxies: TrustedProxies = Field(
        default=(),
        description='Networks of proxies in front, such as "10.0.0.0/8", and "unix", that are believed about who their '
        "client is. Empty: nobody is.",
    )
    forwarded_by: Literal["x-forwarded-for", "forwarded"] = Field(
        default="x-forwarded-for",
        description="What those proxies write: X-Forwarded-For and X-Forwarded-Proto, or Forwarded (RFC 7239); the "
        "other is not looked at.",
    )
    console_writes: bool = Field(
        default=False, description="Forms in the console that create, append to, close and delete streams."
    )
    node_name: NodeName = Field(
        default="durable-gateway",
        description="Name in Via, Cache-Status and CDN-Loop; differs from the next gateway's.",
    )

    @property
    def listen_address(self) -> Address:
        """`listen`, taken apart."""
        return parse_address(self.listen)

    @property
    def admin_address(self) -> Address:
        """`admin`, taken apart."""
        return parse_address(self.admin)

    @model_validator(mode="after")
    def _ports_differ(self) -> Self:
        if self.listen == self.admin and self.listen_address.port:
            raise MisfitError(f"is {self.admin}, as listen is", "admin")
        return self
