"""What becomes of a running gateway when its configuration is read again: which values it takes, which have to wait.

`change` compares and decides; it touches nothing.  Values are named as in a file, `limits.cache_bytes` or
`route.chat.trust_s`; a route that came or went is named as a whole, `route.chat`.  What cannot change while connections
are open (where it listens, how its memory is ordered) keeps its old value until a restart, and is named each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from gateway.config.gateway import GatewayConfig
from gateway.config.listener import ListenerConfig
from gateway.config.origins import OriginsConfig

TAKEN_LIVE: Final = frozenset(
    {
        "server.console_writes",
        "server.shutdown_timeout_s",
        "cache.plan",
        "limits.cache_bytes",
        "limits.max_request_bytes",
        "limits.max_connections",
        "limits.client_header_timeout_s",
        "limits.client_idle_timeout_s",
        "limits.client_write_timeout_s",
        "limits.keepalive_timeout_s",
        "limits.send_buffer_bytes",
        *(f"origins.{name}" for name in OriginsConfig.model_fields),
    }
)
"""Values outside routes that a running gateway takes; routes are taken whole."""


@dataclass(frozen=True, slots=True)
class Change:
    """The configuration in effect from here on, and the dotted names of what changed and of what has to wait."""

    config: GatewayConfig
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def change(now: GatewayConfig, wanted: GatewayConfig) -> Change:
    """What a gateway that runs with `now` makes of `wanted`."""
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
            if name in TAKEN_LIVE:
                changed.extend(names)
                updates[field] = other
            else:
                waiting.extend(names)
        taken[section] = old.model_copy(update=updates)
    changed.extend(_route_changes(now, wanted))
    listeners = now.listeners
    if tuple(map(_where, now.listeners)) == tuple(map(_where, wanted.listeners)):
        # What is shown to the next client; where it comes to waits.
        pairs = zip(now.listeners, wanted.listeners, strict=True)
        changed.extend(f"listener[{index}].tls" for index, (old, new) in enumerate(pairs) if old != new)
        listeners = wanted.listeners
    else:
        waiting.append("listener")
    config = now.model_copy(update={**taken, "listeners": listeners, "routes": wanted.routes})
    return Change(config, tuple(changed), tuple(waiting))


def _where(listener: ListenerConfig) -> tuple[ListenerConfig, bool]:
    """All of a listener but what it shows."""
    return listener.model_copy(update={"tls": None}), listener.tls is not None


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
