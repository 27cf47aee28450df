"""From TOML file, environment and flags to one `GatewayConfig`, with the source of every value.

Three layers over the defaults, later ones win: the file, then environment variables, then command-line flags.  Each
layer puts plain values into one tree and notes where they came from; the models judge the tree once, at the end.  So a
bad value fails the same way wherever it stands, and the error names the place that has to be edited: file and line,
variable, or flag.  Everything that is wrong with a configuration is a `ConfigError`, with a line for each mistake.

Environment variables are `DURABLE_GATEWAY_SERVER__LISTEN`, `DURABLE_GATEWAY_LIMITS__CACHE_BYTES`,
`DURABLE_GATEWAY_ROUTE__<NAME>__ORIGIN` (`-` in a name is `_`), `…__CORS__MAX_AGE_S`; lists are separated by commas.
Other names with that beginning are left alone: Kubernetes sets `DURABLE_GATEWAY_SERVICE_HOST` for a service so named.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails

from gateway.config import toml_lines
from gateway.config.cache import CacheConfig, CachePlanConfig
from gateway.config.cache_plan import CachePlan, PlanError, parse_plan
from gateway.config.gateway import GatewayConfig
from gateway.config.limits import LimitsConfig
from gateway.config.listener import CertificateConfig, ListenerConfig, ListenerTlsConfig
from gateway.config.model import MisfitError
from gateway.config.origins import (
    HealthCheckConfig,
    OriginConfig,
    OriginCredentialsConfig,
    OriginsConfig,
    OriginTlsConfig,
)
from gateway.config.routes import CorsConfig, RouteConfig
from gateway.config.server import ServerConfig
from gateway.config.telemetry import LogConfig, TracingConfig
from gateway.config.values import format_bytes

ENV_PREFIX: Final = "DURABLE_GATEWAY_"
_SECTIONS: Final[Mapping[str, type[BaseModel]]] = {
    "server": ServerConfig,
    "limits": LimitsConfig,
    "origins": OriginsConfig,
    "cache": CacheConfig,
    "tracing": TracingConfig,
    "log": LogConfig,
}
_TABLES: Final[Mapping[tuple[type[BaseModel], str], type[BaseModel]]] = {
    (RouteConfig, "cors"): CorsConfig,
    (RouteConfig, "health_check"): HealthCheckConfig,
    (RouteConfig, "origin_credentials"): OriginCredentialsConfig,
    (RouteConfig, "origin_tls"): OriginTlsConfig,
    (CacheConfig, "plan"): CachePlanConfig,
    (ListenerConfig, "tls"): ListenerTlsConfig,
}
"""Tables inside of a section."""
_LISTS: Final[Mapping[str, tuple[str, type[BaseModel]]]] = {
    "routes": ("route", RouteConfig),
    "listeners": ("listener", ListenerConfig),
}
"""Tables of which there are several: the field of the model, and the name in a file."""
_FOR_EXAMPLE: Final[Mapping[type[BaseModel], str]] = {
    CorsConfig: "MAX_AGE_S",
    HealthCheckConfig: "INTERVAL_S",
    OriginCredentialsConfig: "FILE",
    OriginTlsConfig: "CA_FILE",
    CachePlanConfig: "FILE",
}
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_AT_LINE: Final = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")
_SHOWN_CHARS: Final = 60
_EVERY_ROUTE: Final = "*"

KeyPath = tuple[str | int, ...]


class ConfigError(ValueError):
    """A configuration that cannot be used.

    `mistakes` has a line for each mistake, with place, key and what is wrong.  The text is the first of them, and how
    many more there are.
    """

    def __init__(self, first: str, *others: str) -> None:
        self.mistakes = tuple(" ".join(text.split()) for text in (first, *others))
        super().__init__(self.mistakes[0] + (f" (and {len(others)} more)" if others else ""))


class Mistakes:
    """Collects the mistakes of steps that do not depend on each other, so that one error can name them all."""

    def __init__(self) -> None:
        self._found: list[str] = []

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Run one step; a ConfigError ends it, and is kept."""
        try:
            yield
        except ConfigError as error:
            self._found += error.mistakes

    def raise_any(self) -> None:
        """Raise a ConfigError with all mistakes, where there are any."""
        if self._found:
            raise ConfigError(*self._found)


@dataclass(frozen=True, slots=True)
class Flag:
    """One command-line flag that sets a value: `key` is dotted, `route.*.…` sets it for every route."""

    key: str
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of the effective configuration and where it came from."""

    key: str
    value: object
    source: str
    is_default: bool
    """Whether it is what it would be if it were not set."""

    @property
    def text(self) -> str:
        """The value as it could be written in a TOML file; `none` where nothing is set."""
        return _written(self.key, self.value)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration and, for each value that is not a default, its source."""

    config: GatewayConfig
    sources: Mapping[KeyPath, str]

    def settings(self) -> Iterator[Setting]:
        """Every value in the order of the models, e.g. `limits.cache_bytes`, `route.default.origin`."""
        for name in _SECTIONS:
            yield from self._section((name,), name, getattr(self.config, name))
        for index, listener in enumerate(self.config.listeners):
            yield from self._section(("listeners", index), f"listener[{index}]", listener)
        for index, route in enumerate(self.config.routes):
            yield from self._section(("routes", index), f"route.{route.name}", route)

    def _section(self, path: KeyPath, key: str, model: BaseModel) -> Iterator[Setting]:
        for field, info in type(model).model_fields.items():
            value = getattr(model, field)
            if isinstance(value, BaseModel):
                yield from self._section((*path, field), f"{key}.{field}", value)
            else:
                source = _source(self.sources, (*path, field)) or "default"
                is_default = value == info.get_default(call_default_factory=True)
                yield Setting(f"{key}.{field}", value, source, is_default)


def load_config(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, flags: Sequence[Flag] = ()
) -> LoadedConfig:
    """Read the file (without one: a single route named `default`), then lay environment and flags over it.

    ConfigError for a file that cannot be read, bad TOML, an unknown key, or a bad value.
    """
    try:
        draft = _Draft() if path is None else _Draft.from_file(path)
        mistakes = Mistakes()
        with mistakes.collected():
            draft.lay_environment(environ or {})
        for flag in flags:
            draft.lay_flag(flag)
        with mistakes.collected():
            loaded = draft.judged()
        mistakes.raise_any()
        return loaded
    except RecursionError:
        raise ConfigError(f"{path}: is nested too deeply") from None


def load_plan(config: GatewayConfig) -> CachePlan | None:
    """The cache plan that the configuration names, None where it names none; ConfigError where it cannot be used."""
    file = config.cache.plan.file
    if not file:
        return None
    try:
        return parse_plan(Path(file))
    except PlanError as error:
        raise ConfigError(f"cache.plan.file: {error}") from None


class _Draft:
    """The tree of values under construction.  Owns it and the sources; `routes` stands for the file's `[[route]]`."""

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
            # A number of more digits than Python reads, or a path that is none.
            raise ConfigError(f"{path}: cannot be read: {str(error).partition(';')[0]}") from None
        draft.lines = toml_lines.key_lines(text)
        for field, (name, _) in _LISTS.items():
            if field in tree:
                line = toml_lines.line_of(draft.lines, (field, 0))
                raise ConfigError(f"{path}:{line}: {field}: unknown key (did you mean [[{name}]]?)")
            tables = tree.pop(name, [])
            if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
                raise ConfigError(f"{draft.place((field,))}: {name}: should be a list of tables: write [[{name}]]")
            tree[field] = tables
        draft.tree = tree
        for key in _leaves(draft.tree):
            draft.sources[key] = draft.place(key)
        return draft

    def place(self, path: KeyPath) -> str:
        """`file:line` of the key, or of the nearest table around it."""
        line = toml_lines.line_of(self.lines, _in_file(path))
        return f"{self.file}:{line}" if line else f"{self.file}"

    def lay_environment(self, environ: Mapping[str, str]) -> None:
        prefixes = tuple(f"{ENV_PREFIX}{section}__" for section in (*map(str.upper, _SECTIONS), "ROUTE"))
        mistakes = Mistakes()
        for variable in sorted(name for name in environ if name.startswith(prefixes)):
            with mistakes.collected():
                self._lay_variable(variable, environ[variable])
        mistakes.raise_any()

    def _lay_variable(self, variable: str, text: str) -> None:
        section, *keys = variable.removeprefix(ENV_PREFIX).split("__")
        if section == "ROUTE":
            index = self._route_index(keys.pop(0), variable)
            path: KeyPath = ("routes", index)
            model: type[BaseModel] = RouteConfig
        else:
            path = (section.lower(),)
            model = _SECTIONS[section.lower()]
        table = keys[0].lower() if keys else ""
        inside = _TABLES.get((model, table))
        if inside is not None and len(keys) > 1:
            path, model, keys, inside = (*path, table), inside, keys[1:], None
        if inside is not None:
            example = f"…__{keys[0]}__{_FOR_EXAMPLE[inside]}"
            raise ConfigError(f"env {variable}: {table} is a table: name a key in it, such as {example}")
        name = "__".join(keys).lower()
        if name not in model.model_fields:
            raise ConfigError(f"env {variable}: unknown key {name!r}{_suggestion(name, model)}")
        value = _from_text(text, model.model_fields[name].annotation)
        self._put((*path, name), value, f"env {variable}")

    def lay_flag(self, flag: Flag) -> None:
        section, *keys = flag.key.split(".")
        if section != "route":
            self._put((section, *keys), flag.value, flag.source)
            return
        wanted, *rest = keys
        for index, route in enumerate(self.tree["routes"]):
            if wanted in (_EVERY_ROUTE, _name_of(route)):
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

    def judged(self) -> LoadedConfig:
        try:
            config = GatewayConfig.model_validate(self.tree)
        except ValidationError as error:
            details = sorted(error.errors(), key=lambda one: self._order(_blamed(one)))
            raise ConfigError(*map(self._told, details)) from None
        return LoadedConfig(config, self.sources)

    def _order(self, path: KeyPath) -> int:
        return toml_lines.line_of(self.lines, _in_file(path)) or 0

    def _told(self, detail: ErrorDetails) -> str:
        path = _blamed(detail)
        place = _source(self.sources, path) or (self.place(path) if self.file else "")
        key = self._spelled(path)
        return ": ".join(part for part in (place, key, _problem(detail, path)) if part)

    def _spelled(self, path: KeyPath) -> str:
        if len(path) == 1 and path[0] in _LISTS:
            return _LISTS[str(path[0])][0]
        if path[:1] == ("listeners",):
            path = _in_file(path)
        if path[:1] == ("routes",) and len(path) > 1 and isinstance(path[1], int):
            name = _name_of(self.tree["routes"][path[1]])
            path = ("route", name if isinstance(name, str) and name else path[1] + 1, *path[2:])
        text = ""
        for part in path:
            text += f"[{part}]" if isinstance(part, int) and text else f".{part}" if text else str(part)
        return text


def _in_file(path: KeyPath) -> KeyPath:
    """The path as a file has it."""
    return (_LISTS[str(path[0])][0], *path[1:]) if path and path[0] in _LISTS else path


def _blamed(detail: ErrorDetails) -> KeyPath:
    """The path of the value to look at: the model's own, or the field that a check across fields points to."""
    reason = detail.get("ctx", {}).get("error")
    return (*detail["loc"], *reason.path) if isinstance(reason, MisfitError) else detail["loc"]


def _name_of(route: Mapping[str, Any]) -> object:
    return route.get("name", RouteConfig.model_fields["name"].default)


def _leaves(tree: object, path: KeyPath = ()) -> Iterator[KeyPath]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _leaves(value, (*path, key))
    elif isinstance(tree, list) and len(path) == 1 and path[0] in _LISTS:
        for index, value in enumerate(tree):
            yield from _leaves(value, (*path, index))
    else:
        yield path


def _source(sources: Mapping[KeyPath, str], path: KeyPath) -> str | None:
    """The source of the value at `path`, which may lie inside a list that was set as a whole."""
    for depth in range(len(path), 0, -1):
        if (found := sources.get(path[:depth])) is not None:
            return found
    return None


def _from_text(text: str, annotation: Any) -> object:
    """A variable's text as the field's type; what does not convert is left for the model to refuse."""
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


def _suggestion(name: str, model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(name, model.model_fields, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _model_at(path: KeyPath) -> type[BaseModel] | None:
    """The model whose field the last part of `path` names."""
    match path:
        case (_,):
            return GatewayConfig
        case (str() as section, _) if section in _SECTIONS:
            return _SECTIONS[section]
        case (str() as field, int(), _) if field in _LISTS:
            return _LISTS[field][1]
        case (str() as field, int(), str() as table, _) if field in _LISTS:
            return _TABLES.get((_LISTS[field][1], table))
        case ("listeners", int(), "tls", "certificates", int(), _):
            return CertificateConfig
        case ("routes", int(), "origins", int(), _):
            return OriginConfig
        case ("cache", "plan", _):
            return CachePlanConfig
    return None


def _problem(detail: ErrorDetails, path: KeyPath) -> str:
    value = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            model = _model_at(path)
            return "unknown key" + (_suggestion(str(path[-1]), model) if model else "")
        case "missing":
            return "is required and has no default"
        case "value_error":
            return str(detail["ctx"]["error"])
        case "model_type" | "dict_type" | "model_attributes_type":
            return "should be a table"
        case "tuple_type" | "list_type":
            wanted = "should be a list"
        case _:
            wanted = detail["msg"].replace("Input should", "should", 1)
    shown = repr(value)
    return f"{wanted}, got {shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + '…'}"


def _written(key: str, value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() if key.endswith("_bytes"):
            size = format_bytes(value)
            return size if size == str(value) else f'"{size}"'
        case float():
            return f"{value:g}"
        case tuple():
            return "[" + ", ".join(_written(key, item) for item in value) + "]"
        case SecretStr():
            return f'"{value}"'
        case BaseModel():
            parts = (f"{name} = {_written(name, getattr(value, name))}" for name in type(value).model_fields)
            return "{ " + ", ".join(parts) + " }"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def every_field() -> Iterator[tuple[str, str, type[BaseModel]]]:
    """Section (`server`, `limits`, `route`, `route.cors`), field name and model of all there is to set."""
    listed = {model: name for name, model in _LISTS.values()}
    own_tables = {f"{listed[model]}.{name}": table for (model, name), table in _TABLES.items() if model in listed}
    sections: dict[str, type[BaseModel]] = {**_SECTIONS, **dict(_LISTS.values()), **own_tables}
    for section, model in sections.items():
        for field in model.model_fields:
            table = _TABLES.get((model, field))
            if table is None:
                yield section, field, model
            elif model not in listed:
                yield from ((f"{section}.{field}", name, table) for name in table.model_fields)
