"""The common steps at the start of the command line's servers: binding their addresses, and the limit of open files."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Awaitable
from typing import Final, TypeVar

from gateway.cli.errors import FailedToRunError
from gateway.cli.messages import print_message
from gateway.config.addresses import Address
from gateway.config.gateway import GatewayConfig
from gateway.config.listener import BindAddress
from gateway.limits.memory import Descriptors, fit

_MUCH_LOWER: Final = 4
"""A message is printed if the limit of open files reduces a default bound to less than the default divided by this
number."""

T = TypeVar("T")


def fit_open_files(config: GatewayConfig) -> GatewayConfig:
    """Reduce the bounds on connections to the process's limit of open files.  Prints a message if configured bounds are
    reduced."""
    limits = config.limits
    wanted = Descriptors(
        limits.max_connections,
        limits.upstream_connections,
        limits.followed_streams,
        config.server.admin_connections,
    )
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files == resource.RLIM_INFINITY:
        return config
    found = fit(wanted, open_files)
    if found == wanted:
        return config
    lowered = [one for one in zip(Descriptors._fields, found, wanted, strict=True) if one[1] != one[2]]
    # The defaults are high, so a small reduction of them needs no message.
    chosen = limits.model_fields_set | config.server.model_fields_set
    if any(name in chosen or new < old // _MUCH_LOWER for name, new, old in lowered):
        names = ", ".join(f"{name} {new} instead of {old}" for name, new, old in lowered)
        print_message(f"only {open_files} open files are allowed (ulimit -n), so limits are lower: {names}")
    bounds = found._asdict()
    server = config.server.model_copy(update={"admin_connections": bounds.pop("admin_connections")})
    return config.model_copy(update={"limits": limits.model_copy(update=bounds), "server": server})


def bind_addresses(config: GatewayConfig) -> list[BindAddress]:
    """All addresses at which a gateway listens."""
    return [*(one.bind_address for one in config.every_listener), config.server.admin_address]


async def started(start: Awaitable[T], *addresses: BindAddress) -> T:
    """Wait for `start` and return its result.  If a port cannot be bound, raises FailedToRunError with the address."""
    try:
        return await start
    except OSError as error:
        raise cannot_listen(error, *addresses) from None


def cannot_listen(error: OSError, *addresses: BindAddress) -> FailedToRunError:
    """Describe the failure to bind one of the addresses."""
    # The loop's message usually contains the address as ('host', port).  Otherwise, report every candidate.
    text = str(error)
    blamed = [address for address in addresses if _is_in(address, text)] or addresses
    if error.errno is None or isinstance(error, socket.gaierror):
        reason = error.strerror or text
    else:
        reason = os.strerror(error.errno)
    where = " or ".join(str(address) for address in blamed)
    return FailedToRunError(f"cannot listen on {where}: {reason}")


def _is_in(address: BindAddress, text: str) -> bool:
    if isinstance(address, Address):
        return any(f"'{host}', {address.port}" in text for host in address.hosts)
    return str(address) in text
