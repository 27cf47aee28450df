"""Lists the values of the effective configuration, with their keys and sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, SecretStr

from gateway.config.gateway import GatewayConfig
from gateway.config.sections import SECTIONS, KeyPath
from gateway.config.sizes import format_bytes


@dataclass(frozen=True, slots=True)
class Setting:
    """A value of the effective configuration.  `source` is `file:line`, `env NAME`, a flag, or `default`."""

    key: str
    value: object
    source: str
    is_default: bool
    """Whether the value equals the default.  It may have been set nevertheless."""

    @property
    def text(self) -> str:
        """The value in TOML syntax; `none` for a value that is not set.  Tables in lists are without their defaults."""
        return _formatted(self.key, self.value)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration, and the source of each value that was set."""

    config: GatewayConfig
    sources: Mapping[KeyPath, str]

    def settings(self) -> Iterator[Setting]:
        """Return all values in the order of the models, with keys such as `limits.cache_bytes`."""
        for name in SECTIONS:
            yield from self._section((name,), name, getattr(self.config, name))
        for index, listener in enumerate(self.config.listeners):
            yield from self._section(("listeners", index), f"listener[{index}]", listener)
        for index, limit in enumerate(self.config.rate_limits):
            yield from self._section(("rate_limits", index), f"rate_limit.{limit.name}", limit)
        for index, route in enumerate(self.config.routes):
            yield from self._section(("routes", index), f"route.{route.name}", route)

    def _section(self, path: KeyPath, key: str, model: BaseModel) -> Iterator[Setting]:
        for field, info in type(model).model_fields.items():
            value = getattr(model, field)
            if isinstance(value, BaseModel):
                yield from self._section((*path, field), f"{key}.{field}", value)
            else:
                source = source_of(self.sources, (*path, field)) or "default"
                is_default = value == info.get_default(call_default_factory=True)
                yield Setting(f"{key}.{field}", value, source, is_default)


def source_of(sources: Mapping[KeyPath, str], path: KeyPath) -> str | None:
    """Return the source of the value at `path`, or of a list around it that was set as a whole; None for a default."""
    for depth in range(len(path), 0, -1):
        if (found := sources.get(path[:depth])) is not None:
            return found
    return None


def _formatted(key: str, value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() if key.endswith(("_bytes", ".bytes_per_s")):
            size = format_bytes(value)
            return size if size == str(value) else f'"{size}"'
        case float():
            return f"{value:g}"
        case tuple():
            return "[" + ", ".join(_formatted(key, item) for item in value) + "]"
        case SecretStr():
            return f'"{value}"'
        case BaseModel():
            # A rule of `[[route.auth]]` has thirty fields, most of them for another kind of rule.
            names = (name for name in type(value).model_fields if name in value.model_fields_set)
            # In JSON mode, URLs of services are without their queries, which may hold secrets.
            shown = value.model_dump(mode="json", exclude_unset=True)
            parts = (
                f"{name} = {_formatted(name, shown[name] if isinstance(one, str) else one)}"
                for name in names
                for one in (getattr(value, name),)
            )
            return "{ " + ", ".join(parts) + " }"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
