"""Builds a `GatewayConfig` from a TOML file, environment variables and flags, and records the source of each value.

Environment variables override the file, and flags override both.  Each layer puts plain values into one tree and
records their sources.  The models validate the tree once, at the end, so values from all sources are checked in the
same way.  An error names the source of the invalid value: file and line, variable, or flag.  All mistakes in a
configuration are raised as one `ConfigError`, with a line for each.

Environment variables have names such as `DURABLE_GATEWAY_SERVER__LISTEN`, `DURABLE_GATEWAY_ROUTE__<NAME>__ORIGIN` (`_`
for `-` in a route's name) and `DURABLE_GATEWAY_ROUTE__<NAME>__CORS__MAX_AGE_S`.  Commas separate the items of a list.
Variables of other sections are ignored: Kubernetes sets `DURABLE_GATEWAY_SERVICE_HOST` for a service that is named
`durable-gateway`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.config import toml_lines
from gateway.config.cache import CachePlanConfig
from gateway.config.cache_plan import CachePlan, parse_plan
from gateway.config.errors import ConfigError, Mistakes, PlanError
from gateway.config.gateway import GatewayConfig
from gateway.config.origins import HealthCheckConfig, OriginCredentialsConfig, OriginTlsConfig
from gateway.config.problems import problem, suggestion, value_path
from gateway.config.routes import BridgeConfig, CorsConfig, RouteConfig
from gateway.config.sections import LISTS, SECTIONS, TABLES, KeyPath, path_in_file
from gateway.config.settings import LoadedConfig, source_of
from gateway.config.variables import ENV_PREFIX

_EXAMPLE_KEY: Final[Mapping[type[BaseModel], str]] = {
    CorsConfig: "MAX_AGE_S",
    BridgeConfig: "BASIN",
    HealthCheckConfig: "INTERVAL_S",
    OriginCredentialsConfig: "FILE",
    OriginTlsConfig: "CA_FILE",
    CachePlanConfig: "FILE",
}
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_AT_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_EVERY_ROUTE: Final = "*"


@dataclass(frozen=True, slots=True)
class Flag:
    """A value from a command-line flag.  `key` is dotted.  A key `route.*.…` sets the value for all routes."""

    key: str
    value: object
    source: str


def load_config(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, flags: Sequence[Flag] = ()
) -> LoadedConfig:
    """Read the file, and apply the environment and the flags.  Without a file there is one route, named `default`.

    Raises ConfigError for an unreadable file, invalid TOML, unknown keys, or invalid values.
    """
    try:
        draft = _Draft() if path is None else _Draft.from_file(path)
        mistakes = Mistakes()
        with mistakes.collected():
            draft.apply_environment(environ or {})
        for flag in flags:
            draft.apply_flag(flag)
        with mistakes.collected():
            loaded = draft.validated()
        mistakes.raise_any()
        return loaded
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None


def load_plan(config: GatewayConfig) -> CachePlan | None:
    """Read the cache plan that the configuration names; return None if there is none.  Raises ConfigError."""
    file = config.cache.plan.file
    if not file:
        return None
    try:
        return parse_plan(Path(file))
    except PlanError as error:
        raise ConfigError(f"cache.plan.file: {error}") from None


class _Draft:
    """The tree of values under construction, and their sources.  In the tree, `[[route]]` of a file is `routes`."""

    def __init__(self) -> None:
        self.tree: dict[str, Any] = {"routes": [{}]}
        self.sources: dict[KeyPath, str] = {}
        self.file: str | None = None
        self.lines: dict[toml_lines.Path, int] = {}

    @classmethod
    def from_file(cls, path: Path) -> _Draft:
        draft = cls()
        draft.file = str(path)
        try:
            text = path.read_bytes().decode()
            tree = tomllib.loads(text)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
        except tomllib.TOMLDecodeError as error:
            match = _AT_LINE.search(str(error))
            line = (match and match[1]) or str(text.count("\n") + 1)
            raise ConfigError(f"{path}:{line}: is not TOML: {_AT_LINE.sub('', str(error))}") from None
        except ValueError as error:
            # A number with too many digits for Python, or a path with a NUL byte.
            raise ConfigError(f"{path}: cannot be read: {str(error).partition(';')[0]}") from None
        draft.lines = toml_lines.key_lines(text)
        for field, (name, _) in LISTS.items():
            if field in tree:
                line = toml_lines.line_of(draft.lines, (field, 0))
                raise ConfigError(f"{path}:{line}: {field}: unknown key (did you mean [[{name}]]?)")
            tables = tree.pop(name, [])
            if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
                raise ConfigError(f"{draft.location((field,))}: {name}: should be a list of tables: write [[{name}]]")
            tree[field] = tables
        draft.tree = tree
        for key in _leaves(draft.tree):
            draft.sources[key] = draft.location(key)
        return draft

    def location(self, path: KeyPath) -> str:
        """Return `file:line` of the key, or of the nearest table around it; `file` if no line is known."""
        line = toml_lines.line_of(self.lines, path_in_file(path))
        return f"{self.file}:{line}" if line else f"{self.file}"

    def apply_environment(self, environ: Mapping[str, str]) -> None:
        prefixes = tuple(f"{ENV_PREFIX}{section}__" for section in (*map(str.upper, SECTIONS), "ROUTE"))
        mistakes = Mistakes()
        for variable in sorted(name for name in environ if name.startswith(prefixes)):
            with mistakes.collected():
                self._apply_variable(variable, environ[variable])
        mistakes.raise_any()

    def _apply_variable(self, variable: str, text: str) -> None:
        section, *keys = variable.removeprefix(ENV_PREFIX).split("__")
        if section == "ROUTE":
            index = self._route_index(keys.pop(0), variable)
            path: KeyPath = ("routes", index)
            model: type[BaseModel] = RouteConfig
        else:
            path = (section.lower(),)
            model = SECTIONS[section.lower()]
        table = keys[0].lower() if keys else ""
        inside = TABLES.get((model, table))
        if inside is not None and len(keys) > 1:
            path, model, keys, inside = (*path, table), inside, keys[1:], None
        if inside is not None:
            example = f"…__{keys[0]}__{_EXAMPLE_KEY[inside]}"
            raise ConfigError(f"env {variable}: {table} is a table: name a key in it, such as {example}")
        name = "__".join(keys).lower()
        if name not in model.model_fields:
            raise ConfigError(f"env {variable}: unknown key {name!r}{suggestion(name, model)}")
        value = _from_text(text, model.model_fields[name].annotation)
        self._put((*path, name), value, f"env {variable}")

    def apply_flag(self, flag: Flag) -> None:
        section, *keys = flag.key.split(".")
        if section != "route":
            self._put((section, *keys), flag.value, flag.source)
            return
        name, *rest = keys
        for index, route in enumerate(self.tree["routes"]):
            if name in (_EVERY_ROUTE, _name_of(route)):
                self._put(("routes", index, *rest), flag.value, flag.source)

    def _route_index(self, key: str, variable: str) -> int:
        routes: list[dict[str, Any]] = self.tree["routes"]
        if not routes and key == "DEFAULT":
            routes.append({})
        known = [str(_name_of(route)).upper().replace("-", "_") for route in routes]
        if key not in known:
            raise ConfigError(
                f"env {variable}: no route named {key.lower()!r} (there is {', '.join(known).lower() or 'none'})"
            )
        return known.index(key)

    def _put(self, path: KeyPath, value: object, source: str) -> None:
        table: Any = self.tree
        for part in path[:-1]:
            if isinstance(table, dict) and not isinstance(table.get(part), (dict, list)):
                table[part] = {}
            table = table[part]
        table[path[-1]] = value
        self.sources = {key: old for key, old in self.sources.items() if key[: len(path)] != path}
        self.sources[path] = source

    def validated(self) -> LoadedConfig:
        try:
            config = GatewayConfig.model_validate(self.tree)
        except ValidationError as error:
            details = sorted(error.errors(), key=lambda one: self._order(value_path(one)))
            raise ConfigError(*map(self._explained, details)) from None
        return LoadedConfig(config, self.sources)

    def _order(self, path: KeyPath) -> int:
        return toml_lines.line_of(self.lines, path_in_file(path)) or 0

    def _explained(self, detail: ErrorDetails) -> str:
        path = value_path(detail)
        source = source_of(self.sources, path) or (self.location(path) if self.file else "")
        key = self._key_text(path)
        return ": ".join(part for part in (source, key, problem(detail, path)) if part)

    def _key_text(self, path: KeyPath) -> str:
        if len(path) == 1 and path[0] in LISTS:
            return LISTS[str(path[0])][0]
        if path[:1] in (("listeners",), ("rate_limits",)):
            path = path_in_file(path)
        if path[:1] == ("routes",) and len(path) > 1 and isinstance(path[1], int):
            name = _name_of(self.tree["routes"][path[1]])
            path = ("route", name if isinstance(name, str) and name else path[1] + 1, *path[2:])
        text = ""
        for part in path:
            text += f"[{part}]" if isinstance(part, int) and text else f".{part}" if text else str(part)
        return text


def _leaves(tree: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(tree, list) and len(path) == 1 and path[0] in LISTS:
        for index, value in enumerate(tree):
            yield from _leaves(value, (*path, index))
    else:
        yield path


def _name_of(route: Mapping[str, Any]) -> object:
    return route.get("name", RouteConfig.model_fields["name"].default)


def _from_text(text: str, annotation: Any) -> object:
    """Convert a variable's text to the field's type.  Return invalid text unchanged, for the model to reject."""
    if get_origin(annotation) is tuple:
        return [part for part in (part.strip() for part in text.split(",")) if part]
    if annotation is bool and text.strip().lower() in _TRUE | _FALSE:
        return text.strip().lower() in _TRUE
    if annotation in (int, float):
        try:
            return annotation(text)
        except ValueError:
            return text
    return text
