"""Listeners: their addresses, the PROXY protocol, and TLS.

A listener is a `[[listener]]` table.  Without such a table, `server.listen` is the only listener, without TLS.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gateway.config.addresses import Address, overlap, parse_address
from gateway.config.model import MisfitError, Model

_UNIX: Final = "unix:"
_SYSTEMD: Final = "systemd"
_LONGEST_UNIX_PATH: Final = 107
"""The size of `sun_path` in bytes, without the terminating NUL (unix(7))."""
_SOCKET_NAME: Final = re.compile(r"[!-9;-~]{1,255}")
_MODE: Final = re.compile(r"0?[0-7]{3}")


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket, by its path in the file system."""

    path: str

    def __str__(self) -> str:
        return f"{_UNIX}{self.path}"


@dataclass(frozen=True, slots=True)
class SystemdSockets:
    """The sockets passed by systemd (sd_listen_fds(3)) under `name`.

    An empty `name` stands for all sockets that other listeners do not name.
    """

    name: str = ""

    def __str__(self) -> str:
        return f"{_SYSTEMD}:{self.name}" if self.name else _SYSTEMD


BindAddress = Address | UnixAddress | SystemdSockets


def parse_bind_address(text: str) -> BindAddress:
    """Parse `HOST:PORT`, `unix:/path`, `systemd` or `systemd:NAME`.  Raises ValueError for anything else."""
    if text == _SYSTEMD:
        return SystemdSockets()
    kind, colon, rest = text.partition(":")
    if colon and kind == _SYSTEMD:
        if not _SOCKET_NAME.fullmatch(rest):
            raise ValueError(f"expected systemd:NAME, with NAME as in FileDescriptorName=, got {text!r}")
        return SystemdSockets(rest)
    if colon and kind == "unix":
        if not rest.startswith("/") or "\0" in rest:
            raise ValueError(f"expected an absolute path such as unix:/run/durable-gateway.sock, got {text!r}")
        if len(rest.encode("utf-8", "surrogateescape")) > _LONGEST_UNIX_PATH:
            raise ValueError(f"a socket's path has {_LONGEST_UNIX_PATH} bytes at most")
        # Remove empty and `.` parts, so that equal paths compare equal.
        return UnixAddress(str(PurePosixPath("/", rest.lstrip("/"))))
    return parse_address(text)


def _bind_address(text: str) -> str:
    return str(parse_bind_address(text))


def _mode(text: str) -> str:
    if not _MODE.fullmatch(text):
        raise ValueError(f'expected a mode in octal digits such as "660", got {text!r}')
    return text


def _network(text: str) -> str:
    if text == "unix":
        return text
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError(
            f'expected a network such as 10.0.0.0/8 without host bits, an address, or "unix", got {text!r}'
        ) from None


TrustedProxies = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], Field(strict=False, max_length=1_024)]


class CertificateConfig(Model):
    """One certificate of a listener."""

    certificate: str = Field(
        min_length=1, description="PEM file of the certificate, followed by the intermediate certificates in order."
    )
    key: str = Field(
        default="",
        description="PEM file of the certificate's key, without a password. Empty: the key is in the same file.",
    )


class ListenerTlsConfig(Model):
    """TLS settings of a listener."""

    certificates: Annotated[tuple[CertificateConfig, ...], Field(strict=False, min_length=1, max_length=1_024)] = Field(
        description="A list of { certificate = FILE, key = FILE }, chosen by the server name (SNI); the first entry "
        "is the default. The files are read again at a reload and when they change."
    )
    minimum_version: Literal["1.2", "1.3"] = Field(default="1.2", description="Oldest TLS version that is accepted.")
    client_ca: str = Field(
        default="", description="PEM file of the authorities that must have signed clients' certificates."
    )
    client_certificates: Literal["off", "optional", "required"] = Field(
        default="off",
        description="Whether clients are asked for a certificate, and whether the certificate is required.",
    )

    @model_validator(mode="after")
    def _authorities_and_their_use(self) -> Self:
        if self.client_ca and self.client_certificates == "off":
            raise MisfitError("needs client_certificates = optional or required", "client_ca")
        if not self.client_ca and self.client_certificates != "off":
            raise MisfitError("needs client_ca to verify certificates", "client_certificates")
        return self


class ListenerConfig(Model):
    """One address at which the gateway accepts clients."""

    address: Annotated[str, AfterValidator(_bind_address)] = Field(
        description='"HOST:PORT" (port 0 picks a free port), "unix:/path", or "systemd" and "systemd:NAME" '
        "for sockets that systemd passes to the process."
    )
    mode: Annotated[str, AfterValidator(_mode)] = Field(
        default="660", description="Permissions of a Unix socket, in octal digits."
    )
    reuse_port: bool = Field(
        default=False, description="Let other processes accept on the same port: the kernel spreads connections."
    )
    backlog: int = Field(
        default=4_096,
        ge=1,
        le=65_535,
        description="Most connections that wait to be accepted; the kernel's own bound applies too.",
    )
    proxy_protocol: Literal["off", "on"] = Field(
        default="off",
        description="Require a PROXY header, version 1 or 2, at the start of every connection. The header names the "
        "client. A connection without the header is dropped. If server.trusted_proxies is set, a "
        "connection from any other address is dropped too.",
    )
    redirect_to_https: bool | Annotated[int, Field(ge=1, le=65_535)] = Field(
        default=False,
        description="Answer every request with 308 to the same URL on https, at port 443 or at the given port.",
    )
    tls: ListenerTlsConfig | None = Field(default=None, description="TLS at this listener; absent: plain HTTP.")

    @property
    def bind_address(self) -> BindAddress:
        """`address`, parsed."""
        return parse_bind_address(self.address)

    @property
    def https_port(self) -> int | None:
        """The https port of redirects; None without redirects."""
        if self.redirect_to_https is False:
            return None
        return 443 if self.redirect_to_https is True else self.redirect_to_https

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.tls is not None and self.https_port is not None:
            raise MisfitError("is for a plain listener: this one speaks TLS", "redirect_to_https")
        if self.reuse_port and not isinstance(self.bind_address, Address):
            raise MisfitError("can be set only with HOST:PORT", "reuse_port")
        if self.mode != type(self).model_fields["mode"].default and not isinstance(self.bind_address, UnixAddress):
            raise MisfitError("can be set only with unix:/path", "mode")
        return self


def check_addresses(listeners: Sequence[ListenerConfig], listen: str | None, admin: str, members: str = "") -> None:
    """Raise MisfitError if two of the addresses cannot be used at the same time.

    `listen` is server.listen, or None if it is not used.  `admin` is the address of the admin port.  `members` is
    fleet.listen; empty without a fleet.  Port 0 may occur several times.
    """
    seen: list[ListenerConfig] = []
    for index, one in enumerate(listeners):
        if (other := _taken(one, seen)) is not None:
            raise MisfitError(f"another listener is at {other}", "listeners", index, "address")
        seen.append(one)
    if listen is not None:
        if (other := _taken(ListenerConfig(address=listen), seen)) is not None:
            raise MisfitError(f"another listener is at {other}", "server", "listen")
        seen.append(ListenerConfig(address=listen))
    if members:
        if (other := _taken(ListenerConfig(address=members), seen)) is not None:
            raise MisfitError(f"another listener is at {other}", "fleet", "listen")
        seen.append(ListenerConfig(address=members))
    if (other := _taken(ListenerConfig(address=admin), seen)) is not None:
        raise MisfitError(f"a listener is at {other}", "server", "admin")


def _taken(wanted: ListenerConfig, seen: Iterable[ListenerConfig]) -> str | None:
    """Return the address of a listener in `seen` that conflicts with `wanted`; None if there is none."""
    for one in seen:
        first, second = one.bind_address, wanted.bind_address
        if isinstance(first, Address) and isinstance(second, Address):
            is_shared = one.reuse_port and wanted.reuse_port and one.address != wanted.address
            if overlap(first, second) and not is_shared:
                return one.address
        elif first == second:
            return one.address
    return None
