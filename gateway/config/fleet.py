"""The fleet: several gateways before the same origins, of which one owns each stream."""

from __future__ import annotations

import re
from contextlib import suppress
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from gateway.config.addresses import EVERY, Address, parse_address
from gateway.config.listener import ListenerConfig
from gateway.config.model import MisfitError, Model
from gateway.config.redis_place import RedisPlace, parse_redis_url
from gateway.config.values import OriginUrl, origin_url

_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
LEAST_SECRET_CHARS: Final = 32
MOST_MEMBERS: Final = 64
_OWN_PART: Final = ("name", "listen", "url", "secret", "members_dns", "members_redis")


def _member_name(text: str) -> str:
    if not text or _NAME.fullmatch(text):
        return text
    if (place := _ip_place(text)) is not None:
        return str(place)
    raise ValueError(
        f"a member's name is letters, digits and . _ - inside, 63 at most, or an IP address with its port, got {text!r}"
    )


def _ip_place(text: str) -> Address | None:
    """Return the IP address and port that are written here; None if it is something else."""
    with suppress(ValueError):
        place = parse_address(text)
        ip_address(place.host)
        return place if place.port else None
    return None


def _own_name(text: str) -> str:
    with suppress(ValueError):
        return str(ip_address(text))
    return _member_name(text)


def _usable_place(text: str, port: int) -> Address | None:
    """Return the address of a member from IP or IP:PORT; None if no other member could connect to it at this port."""
    with suppress(ValueError):
        # The brackets are those of an address with a port.
        text = str(Address(str(ip_address(text)), port))
    place = _ip_place(text)
    if place is None or place.port != port:
        return None
    address = ip_address(place.host)
    is_scoped = isinstance(address, IPv6Address) and address.scope_id is not None
    return None if address.is_unspecified or address.is_multicast or is_scoped else place


def _dns_place(text: str) -> str:
    if text:
        expected = f"expected NAME:PORT such as gateway-headless:4439, got {text!r}"
        host, _, port = text.rpartition(":")
        try:
            place = parse_address(f"{host.removesuffix('.')}:{port}")
        except ValueError:
            raise ValueError(expected) from None
        if not place.host or not place.port or _ip_place(str(place)) is not None:
            raise ValueError(expected)
    return text


def _redis_url(url: str) -> str:
    if url:
        parse_redis_url(url)
    return url


def _fleet_secret(secret: SecretStr) -> SecretStr:
    if 0 < len(secret.get_secret_value()) < LEAST_SECRET_CHARS:
        raise ValueError(f"is too short: a secret of fewer than {LEAST_SECRET_CHARS} characters can be guessed")
    return secret


def _plain_url(url: str) -> str:
    if not url.startswith("http://") or "/" in url.removeprefix("http://"):
        raise ValueError(f"expected http://HOST:PORT, got {url!r}")
    return url if ":" in url.removeprefix("http://").rpartition("]")[2] else f"{url}:80"


def _own_url(text: str) -> str:
    return _plain_url(origin_url(text)) if text else text


def _fleet_address(text: str) -> str:
    return str(parse_address(text)) if text else text


def _named(entry: Any) -> Any:
    """Convert NAME=URL, which environment variables use, to a table."""
    if not isinstance(entry, str):
        return entry
    name, equals, url = entry.partition("=")
    if not equals:
        raise ValueError(f"expected a table with name and url, or NAME=URL, got {entry!r}")
    return {"name": name, "url": url}


class MemberConfig(Model):
    """One gateway of the fleet."""

    name: Annotated[str, AfterValidator(_member_name)] = Field(
        min_length=1, description="Name of the member, the same in the configuration of every member."
    )
    url: Annotated[OriginUrl, AfterValidator(_plain_url)] = Field(
        description="http URL of the member's fleet.listen, as the other members reach it."
    )


class FleetListenerConfig(ListenerConfig):
    """The listener for the other members."""


class FleetConfig(Model):
    """The members of the fleet, and this gateway's part in it.  Without members there is no fleet."""

    name: Annotated[str, AfterValidator(_own_name)] = Field(
        default="",
        description="Name of this gateway among fleet.members. Empty: no fleet, unless fleet.members_dns or "
        "fleet.members_redis is set. With fleet.members_dns: this gateway's IP address, with or without the port; by "
        "default that of fleet.listen. With fleet.members_redis: a name that no other member has; by default the IP "
        "address and the port of fleet.url.",
    )
    listen: Annotated[str, AfterValidator(_fleet_address)] = Field(
        default="", description="HOST:PORT at which only the other members are answered. Clients need no access to it."
    )
    members: Annotated[
        tuple[Annotated[MemberConfig, BeforeValidator(_named)], ...], Field(strict=False, max_length=MOST_MEMBERS)
    ] = Field(
        default=(),
        description="All members, this one included: a list of { name = NAME, url = URL }, the same at every member. "
        "In a variable: NAME=URL, separated by commas.",
    )
    members_dns: Annotated[str, AfterValidator(_dns_place)] = Field(
        default="",
        description="NAME:PORT, in place of fleet.members: all members are at the addresses of this name, such as that "
        "of a headless service, and are asked at this port. Looked up again when its records expire, after 1 to 60 s.",
    )
    members_redis: bool = Field(
        default=False,
        description="In place of fleet.members: each member announces itself in fleet.redis, and finds the others "
        "there. The announcement of a member that has died expires after 10 s.",
    )
    url: Annotated[str, AfterValidator(_own_url)] = Field(
        default="",
        description="With fleet.members_redis: http URL of this gateway's fleet.listen, as the other members reach it. "
        "Empty: the IP address and the port of fleet.listen, or this machine's IP address if fleet.listen has no host.",
    )
    secret: Annotated[SecretStr, AfterValidator(_fleet_secret)] = Field(
        default=SecretStr(""),
        description="Secret that all members share, of at least 32 characters. Members prove to each other that they "
        "know it, and never send it.",
    )

    redis: Annotated[str, AfterValidator(_redis_url)] = Field(
        default="",
        description="redis://[USER@]HOST[:PORT][/DATABASE] of a Redis or Valkey server, or rediss:// for TLS, the same "
        "at every member: purges and revocations go there too, and outlast the fleet. No bytes of streams do. Needs "
        "the extra `redis`.",
    )
    redis_password: SecretStr = Field(
        default=SecretStr(""), description="Password for fleet.redis. Empty: none is sent."
    )
    redis_ca_file: str = Field(
        default="",
        description="PEM file with the authorities of the certificate of fleet.redis. Empty: those of the system.",
    )

    @property
    def is_on(self) -> bool:
        """Whether this gateway is a member of a fleet."""
        return bool(self.name or self.members_dns or self.members_redis)

    @property
    def url_place(self) -> Address | None:
        """The IP address and the port of `url`; None if it has a host name, or is empty."""
        return _ip_place(self.url.removeprefix("http://")) if self.url else None

    @property
    def dns_name(self) -> Address:
        """The name and the port of `members_dns`."""
        host, _, port = self.members_dns.rpartition(":")
        return Address(host, int(port))

    @property
    def own_place(self) -> Address | None:
        """The address in `name`, with the port of `members_dns`; None without a name."""
        return _usable_place(self.name, self.dns_name.port)

    @property
    def redis_place(self) -> RedisPlace:
        """The database of `redis`, which is set."""
        place = parse_redis_url(self.redis)
        return place._replace(password=self.redis_password.get_secret_value(), ca_file=self.redis_ca_file)

    @property
    def key(self) -> bytes:
        """The 32 bytes from which all keys of the fleet are made."""
        return sha256(self.secret.get_secret_value().encode()).digest()

    @property
    def listener(self) -> FleetListenerConfig | None:
        """The listener for the other members; None without a fleet."""
        return FleetListenerConfig(address=self.listen) if self.is_on else None

    def may_take_members(self, wanted: Self) -> bool:
        """Return whether a running gateway can use the members of `wanted`: its own part in the fleet is the same."""
        return self.is_on and all(getattr(self, name) == getattr(wanted, name) for name in _OWN_PART)

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        self._goes_with_redis()
        if self.url and not self.members_redis:
            raise MisfitError("needs fleet.members_redis", "url")
        if self.members_redis:
            self._goes_with_members_in_redis()
            return self
        if self.members_dns:
            self._goes_with_dns()
            return self
        if not self.name:
            for field in ("members", "listen"):
                if getattr(self, field):
                    raise MisfitError("needs fleet.name, the name of this gateway among the members", field)
            return self
        seen: dict[str, str] = {}
        for index, member in enumerate(self.members):
            if member.name in seen:
                raise MisfitError(f"another member is named {member.name!r}", "members", index, "name")
            if member.url in seen.values():
                raise MisfitError(f"another member is at {member.url}", "members", index, "url")
            seen[member.name] = member.url
        if self.name not in seen:
            known = ", ".join(seen) or "none"
            raise MisfitError(f"no member is named {self.name!r} (members: {known})", "name")
        self._has_listener_and_secret()
        return self

    def _has_listener_and_secret(self) -> None:
        if not self.listen:
            raise MisfitError("is needed: the address at which the other members reach this one", "listen")
        if not self.secret.get_secret_value():
            raise MisfitError("is needed: a secret that all members share", "secret")

    def _goes_with_redis(self) -> None:
        if self.redis and not self.is_on:
            raise MisfitError(
                "needs a fleet: fleet.name and fleet.members, fleet.members_dns, or fleet.members_redis", "redis"
            )
        for field in ("redis_password", "redis_ca_file"):
            if getattr(self, field) and not self.redis:
                raise MisfitError("needs fleet.redis", field)
        if self.redis_ca_file and not self.redis_place.is_tls:
            raise MisfitError("needs fleet.redis with rediss://", "redis_ca_file")

    def _goes_with_dns(self) -> None:
        if self.members:
            raise MisfitError("cannot be set together with fleet.members", "members_dns")
        self._has_listener_and_secret()
        host, port = parse_address(self.listen).host, self.dns_name.port
        if self.name:
            if self.own_place is None:
                raise MisfitError(
                    "with fleet.members_dns, it is this gateway's IP address, as other members reach it, alone or with "
                    f"the port {port}, got {self.name!r}",
                    "name",
                )
        elif host not in ("", *EVERY[""]) and _usable_place(host, port) is None:
            raise MisfitError(
                "is needed, because fleet.listen is at no IP address that other members reach: this gateway's IP "
                "address",
                "name",
            )

    def _goes_with_members_in_redis(self) -> None:
        for field in ("members", "members_dns"):
            if getattr(self, field):
                raise MisfitError(f"cannot be set together with fleet.{field}", "members_redis")
        if not self.redis:
            raise MisfitError("needs fleet.redis", "members_redis")
        self._has_listener_and_secret()
        if self.name:
            try:
                _member_name(self.name)
            except ValueError as error:
                raise MisfitError(str(error), "name") from None
        place, listen = self.url_place, parse_address(self.listen)
        if place is not None and _usable_place(place.host, place.port) is None:
            raise MisfitError(f"no other member can connect to {place}", "url")
        if self.url and place is None and not self.name:
            raise MisfitError("is needed, because fleet.url has no IP address", "name")
        is_at_every = listen.host in ("", *EVERY[""])
        if not self.url and not (listen.port if is_at_every else _usable_place(listen.host, listen.port)):
            raise MisfitError(
                "is needed, because fleet.listen is at no IP address and port that other members reach: "
                "http://HOST:PORT, as they reach this gateway",
                "url",
            )
