"""A configuration as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from gateway.config.gateway import GatewayConfig

_NAMES: Final = {"routes": "route", "listeners": "listener", "rate_limits": "rate_limit"}


def as_toml(config: GatewayConfig) -> str:
    """Every value of the configuration that is set."""
    tree = config.model_dump(mode="json", exclude_unset=True)
    if config.fleet.is_on:
        tree["fleet"]["secret"] = config.fleet.secret.get_secret_value()
    return "".join(f"{_NAMES.get(name, name)} = {_value(value)}\n" for name, value in tree.items() if value)


def _value(value: Any) -> str:
    match value:
        case Mapping():
            return "{" + ", ".join(f"{name} = {_value(one)}" for name, one in value.items() if one is not None) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_value, value)) + "]"
        case _:
            # A number, a truth value or a text is spelt alike in JSON and TOML.
            return json.dumps(value)
