"""Decides which changed values of a reloaded configuration take effect at once, and which need a restart.

`change` compares two configurations and has no side effects.  Changed values are named as in a file, for example
`limits.cache_bytes` or `route.chat.trust_s`.  An added or removed route is named as a whole, `route.chat`.  Some values
cannot change while the gateway runs, such as its addresses and the eviction policy.  They keep their old values until a
restart, and each reload reports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from gateway.config.gateway import GatewayConfig
from gateway.config.listener import ListenerConfig
from gateway.config.origins import OriginsConfig

RELOADABLE: Final = frozenset(
    {
        "server.console_writes",
        "server.shutdown_timeout_s",
        "cache.plan",
        "fleet.members",
        "limits.cache_bytes",
        "limits.client_bytes",
        "limits.memory_max_bytes",
        "limits.max_request_bytes",
        "limits.max_connections",
        "limits.client_connections",
        "limits.client_live_reads",
        "limits.client_followed_streams",
        "limits.client_new_streams_per_s",
        "limits.client_refusals_per_s",
        "limits.client_min_rate",
        "limits.client_body_timeout_s",
        "limits.client_header_timeout_s",
        "limits.client_idle_timeout_s",
        "limits.client_write_timeout_s",
        "limits.keepalive_timeout_s",
        "limits.send_buffer_bytes",
        *(f"origins.{name}" for name in OriginsConfig.model_fields),
    }
)
"""The values outside routes that take effect on reload.  All values of routes take effect on reload.

`fleet.members` needs a restart if this gateway's own part in the fleet changes too."""


@dataclass(frozen=True, slots=True)
class Change:
    """The configuration after a reload, the names of changed values, and the names of values that need a restart."""

    config: GatewayConfig
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def change(now: GatewayConfig, wanted: GatewayConfig) -> Change:
    """Compute the effect of reloading `wanted` in a gateway that runs with `now`."""
    changed: list[str] = []
    waiting: list[str] = []
    taken: dict[str, BaseModel] = {}
    for section in type(now).model_fields:
        old, new = getattr(now, section), getattr(wanted, section)
        if not isinstance(old, BaseModel) or not isinstance(new, BaseModel):
            continue
        updates: dict[str, Any] = {}
        for field in type(old).model_fields:
            if getattr(old, field) == getattr(new, field):
                continue
            name = f"{section}.{field}"
            value, other = getattr(old, field), getattr(new, field)
            is_table = isinstance(value, BaseModel)
            names = _differences(name, value.model_dump(), other.model_dump()) if is_table else (name,)
            if name in RELOADABLE and (section != "fleet" or now.fleet.may_take_members(wanted.fleet)):
                changed.extend(names)
                updates[field] = other
            else:
                waiting.extend(names)
        taken[section] = old.model_copy(update=updates)
    changed.extend(_rate_limit_changes(now, wanted))
    changed.extend(_route_changes(now, wanted))
    listeners = now.listeners
    if tuple(map(_without_tls, now.listeners)) == tuple(map(_without_tls, wanted.listeners)):
        # New certificates apply to new connections.  Other changes of listeners need a restart.
        pairs = zip(now.listeners, wanted.listeners, strict=True)
        changed.extend(f"listener[{index}].tls" for index, (old, new) in enumerate(pairs) if old != new)
        listeners = wanted.listeners
    else:
        waiting.append("listener")
    config = now.model_copy(
        update={**taken, "listeners": listeners, "rate_limits": wanted.rate_limits, "routes": wanted.routes}
    )
    return Change(config, tuple(changed), tuple(waiting))


def _without_tls(listener: ListenerConfig) -> tuple[ListenerConfig, bool]:
    """Return the listener without its TLS settings, and whether it has any."""
    return listener.model_copy(update={"tls": None}), listener.tls is not None


def _rate_limit_changes(now: GatewayConfig, wanted: GatewayConfig) -> Iterator[str]:
    old = {limit.name: limit for limit in now.rate_limits}
    new = {limit.name: limit for limit in wanted.rate_limits}
    yield from (f"rate_limit.{name}" for name in {**old, **new} if old.get(name) != new.get(name))


def _route_changes(now: GatewayConfig, wanted: GatewayConfig) -> Iterator[str]:
    old = {route.name: route for route in now.routes}
    new = {route.name: route for route in wanted.routes}
    for name in [*old, *(name for name in new if name not in old)]:
        if name not in old or name not in new:
            yield f"route.{name}"
        else:
            yield from _differences(f"route.{name}", old[name].model_dump(), new[name].model_dump())


def _differences(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for key, value in old.items():
        other = new[key]
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _differences(f"{name}.{key}", value, other)
        elif value != other:
            yield f"{name}.{key}"
