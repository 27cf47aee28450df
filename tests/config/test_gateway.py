"""The configuration: values, layers, sources, the line of every error, and samples that match the models."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.addresses import Address, parse_address
from gateway.config.cache import CacheConfig
from gateway.config.errors import ConfigError
from gateway.config.file import Flag, load_config
from gateway.config.fleet import FleetConfig
from gateway.config.gateway import GatewayConfig
from gateway.config.limits import LimitsConfig
from gateway.config.listener import ListenerConfig, ListenerTlsConfig
from gateway.config.origins import (
    HealthCheckConfig,
    OriginConfig,
    OriginCredentialsConfig,
    OriginsConfig,
    OriginTlsConfig,
)
from gateway.config.routes import BridgeConfig, CorsConfig, RouteConfig
from gateway.config.sections import every_field
from gateway.config.server import ServerConfig
from gateway.config.sizes import format_bytes, parse_bytes
from gateway.config.store import StoreConfig
from gateway.config.telemetry import LogConfig, TracingConfig
from gateway.config.toml_lines import key_lines

CONFIG = Path(__file__).parents[2] / "config"
ORIGIN = "http://127.0.0.1:4438"


def error_line(tmp_path: Path, text: str, **environ: str) -> str:
    """The error line for an invalid file, without its folder."""
    file = tmp_path / "gateway.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file, environ=environ)
    line = str(caught.value)
    assert "\n" not in line
    return line.replace(f"{tmp_path}/", "")


# -- values ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:4437", Address("127.0.0.1", 4437)),
        ("localhost:0", Address("localhost", 0)),
        ("Gateway.Example.org:80", Address("gateway.example.org", 80)),
        ("[::1]:80", Address("::1", 80)),
        ("[0:0::1]:80", Address("::1", 80)),
        (":4437", Address("", 4437)),
    ],
)
def test_an_address_is_parsed(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "4437", "localhost", "localhost:", "localhost:x", "localhost:65536", "::1:80", "[::1]", "[x]:1", "a b:1"],
)
def test_an_invalid_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected HOST:PORT|a port is|not an IPv6 address"):
        parse_address(text)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (17, 17),
        ("17", 17),
        ("17B", 17),
        ("64KiB", 65_536),
        ("256 MiB", 256 << 20),
        ("1GiB", 1 << 30),
        ("2TiB", 2 << 40),
    ],
)
def test_a_size_is_parsed(written: object, size: int) -> None:
    assert parse_bytes(written) == size


@pytest.mark.parametrize("written", ["", "MiB", "1MB", "1.5GiB", "-1", "1 mib", "1KiBs", "९"])
def test_an_invalid_size_is_rejected(written: str) -> None:
    with pytest.raises(ValueError, match="expected bytes"):
        parse_bytes(written)


@given(st.integers(0, 1 << 44))
def test_a_size_survives_formatting(size: int) -> None:
    assert parse_bytes(format_bytes(size)) == size


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("http://127.0.0.1:4438", "http://127.0.0.1:4438"),
        ("HTTP://Origin.Example:80/V1/stream/", "http://origin.example:80/V1/stream"),
        ("https://[::1]:4438/", "https://[::1]:4438"),
        ("http://origin/a%20b", "http://origin/a%20b"),
    ],
)
def test_an_origin_loses_its_trailing_slash(written: str, kept: str) -> None:
    assert GatewayConfig.for_origin(written).routes[0].origin == kept


@pytest.mark.parametrize(
    "written",
    [
        "",
        "origin:4438",
        "ftp://origin",
        "http://",
        "http://user:pw@origin",
        "http://origin:0",
        "http://origin:",
        "http://origin:70000",
        "http://origin/?a=b",
        "http://origin/#a",
        "http://origin/a b",
        "http://origin/a/../b",
        "http://origin//a",
        "http://[::1",
        "http://[::x]/",
        "http://-x-/",
        "http://origin/\x7f",
        "http://origin\\evil/",
        "http://örigin/",
    ],
)
def test_an_invalid_origin_is_rejected(written: str) -> None:
    with pytest.raises(ValueError, match="origin"):
        GatewayConfig.for_origin(written)


def test_names_and_paths_have_one_spelling() -> None:
    route = RouteConfig(
        origin=ORIGIN, host="*.Example.ORG", prefix="/v1/stream/", credential_headers=("X-Api-Key", "Cookie")
    )
    assert route.host == "*.example.org"
    assert route.prefix == "/v1/stream"
    assert route.credential_headers == ("x-api-key", "cookie")
    assert RouteConfig(origin=ORIGIN, host="[0:0::1]").host == "[::1]"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Upper"),
        ("name", "two__parts"),
        ("name", "x" * 65),
        ("host", "a:80"),
        ("host", "*.*"),
        ("host", ""),
        ("prefix", "v1"),
        ("prefix", "//"),
        ("prefix", "/a/../b"),
        ("prefix", "/a?b"),
        ("credentials", "none"),
        ("credential_headers", ["a b"]),
        ("credential_headers", []),
        ("cors", {"allow_origins": ["https://a.example/"]}),
        ("cors", {"allow_origins": []}),
        ("cors", {"allow_credentials": True}),
        ("long_poll_timeout_s", 0.01),
        ("long_poll_timeout_s", float("nan")),
        ("long_poll_timeout_s", True),
        ("long_poll_timeout_s", "25"),
        ("sse_lifetime_s", 0.5),
        ("retry_budget", 1.5),
        ("node_name", "two words"),
        ("max_connections", 0),
        ("cache", "yes"),
    ],
)
def test_a_value_out_of_bounds_is_rejected(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        GatewayConfig.for_origin(ORIGIN, **{field: value})


def test_for_origin_takes_any_field_by_its_name() -> None:
    config = GatewayConfig.for_origin(
        ORIGIN, listen="127.0.0.1:0", cache_bytes="64KiB", long_poll_timeout_s=0.5, cors={"max_age_s": 5}
    )
    assert config.server.listen_address == Address("127.0.0.1", 0)
    assert config.limits.cache_bytes == 65_536
    assert config.routes[0].long_poll_timeout_s == 0.5
    assert config.routes[0].cors == CorsConfig(max_age_s=5)
    with pytest.raises(TypeError, match="'nope' is no field"):
        GatewayConfig.for_origin(ORIGIN, nope=1)


def test_no_field_name_occurs_in_two_sections() -> None:
    """`for_origin` relies on this.  It takes a fleet and a store as tables."""
    tables = ("route.", "listener", "rate_limit", "fleet", "store")
    names = [field for section, field, _ in every_field() if not section.startswith(tables)]
    assert len(names) == len(set(names))


def test_every_field_is_documented_and_every_number_bounded() -> None:
    for section, name, model in every_field():
        field = model.model_fields[name]
        assert field.description, f"{section}.{name} has no description"
        assert field.description.endswith("."), f"{section}.{name}'s description is a sentence"
        if field.annotation in (int, float):
            bounds = {type(bound).__name__ for bound in field.metadata}
            assert {"Ge", "Le"} <= bounds, f"{section}.{name} has no bounds"


def test_a_configuration_cannot_be_changed() -> None:
    config = GatewayConfig.for_origin(ORIGIN)
    with pytest.raises(ValueError, match="frozen"):
        config.limits.cache_bytes = 1


# -- files and layers --------------------------------------------------------------------------------------------------


def test_every_value_has_a_source(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[server]\nlisten = ":4437"\n\n[[route]]\norigin = "http://a"\ncors = { max_age_s = 5 }\n\n'
        '[[route]]\nname = "b-side"\nprefix = "/b"\norigin = "http://b"\n[route.cors]\nallow_origins = [\n"https://x"]\n'
    )
    loaded = load_config(
        file,
        environ={
            "DURABLE_GATEWAY_ROUTE__B_SIDE__CORS__MAX_AGE_S": "9",
            "DURABLE_GATEWAY_ROUTE__DEFAULT__CREDENTIAL_HEADERS": "X-Key, Cookie",
            "DURABLE_GATEWAY_ROUTE__DEFAULT__CACHE": "off",
            "DURABLE_GATEWAY_LIMITS__CACHE_BYTES": "1MiB",
            "DURABLE_GATEWAY_CACHE__PLAN__FILE": "plan.json",
            "DURABLE_GATEWAY_CACHE__PLAN__TAKE_WARM": "off",
            "DURABLE_GATEWAY_SERVER__LISTEN": ":1",
            "DURABLE_GATEWAY_SERVICE_HOST": "10.0.0.1",
            "DURABLE_GATEWAY_PORT": "tcp://10.0.0.1:4437",
        },
        flags=[Flag("server.listen", ":2", "--listen"), Flag("route.*.sse_lifetime_s", 3.5, "--sse-lifetime")],
    )
    said = {f"{setting.key} = {setting.text}": setting.source for setting in loaded.settings()}
    assert {key: source for key, source in said.items() if source != "default"} == {
        'server.listen = ":2"': "--listen",
        'limits.cache_bytes = "1MiB"': "env DURABLE_GATEWAY_LIMITS__CACHE_BYTES",
        'cache.plan.file = "plan.json"': "env DURABLE_GATEWAY_CACHE__PLAN__FILE",
        "cache.plan.take_warm = false": "env DURABLE_GATEWAY_CACHE__PLAN__TAKE_WARM",
        'route.default.origin = "http://a"': f"{file}:5",
        "route.default.cache = false": "env DURABLE_GATEWAY_ROUTE__DEFAULT__CACHE",
        'route.default.credential_headers = ["x-key", "cookie"]': (
            "env DURABLE_GATEWAY_ROUTE__DEFAULT__CREDENTIAL_HEADERS"
        ),
        "route.default.cors.max_age_s = 5": f"{file}:6",
        "route.default.sse_lifetime_s = 3.5": "--sse-lifetime",
        'route.b-side.name = "b-side"': f"{file}:9",
        'route.b-side.prefix = "/b"': f"{file}:10",
        'route.b-side.origin = "http://b"': f"{file}:11",
        'route.b-side.cors.allow_origins = ["https://x"]': f"{file}:13",
        "route.b-side.cors.max_age_s = 9": "env DURABLE_GATEWAY_ROUTE__B_SIDE__CORS__MAX_AGE_S",
        "route.b-side.sse_lifetime_s = 3.5": "--sse-lifetime",
    }


def test_the_environment_alone_can_name_the_origin(tmp_path: Path) -> None:
    environ = {"DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGIN": ORIGIN}
    assert load_config(environ=environ).config.routes[0].origin == ORIGIN
    file = tmp_path / "gateway.toml"
    file.write_text("[server]\n")
    assert load_config(file, environ=environ).config.routes[0].origin == ORIGIN


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[server\n", "gateway.toml:1: is not TOML: Expected ']' at the end of a table declaration"),
        ('[server]\nlisten = ":1', "gateway.toml:2: is not TOML: Unterminated string"),
        (
            "[limits]\ncache_bytes = " + "9" * 5_000,
            (
                "gateway.toml: cannot be read: "
                "Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits"
            ),
        ),
        ("a = " + "[" * 5_000, "gateway.toml: is nested too deeply"),
        (".".join("a" * 5_000) + " = 1", "gateway.toml: is nested too deeply"),
        ("", "gateway.toml: route: at least one is needed, with an origin"),
        ('[server]\nlistn = ":1"\n', "gateway.toml:2: server.listn: unknown key (did you mean 'listen'?)"),
        ("[servr]\n[[route]]\n", "gateway.toml:1: servr: unknown key (did you mean 'server'?) (and 1 more)"),
        ('[route]\norigin = "http://a"', "gateway.toml:1: route: should be a list of tables: write [[route]]"),
        ('[[routes]]\norigin = "http://a"', "gateway.toml:1: routes: unknown key (did you mean [[route]]?)"),
        ("server = 3\n[[route]]\norigin = 'http://a'", "gateway.toml:1: server: should be a table"),
        (
            '\n[[route]]\nname = "a"',
            "gateway.toml:2: route.a.origin: is required and has no default (or a list, origins)",
        ),
        (
            '[[route]]\norigin = "http://a"\norigins = [{ url = "http://b" }]',
            "gateway.toml:3: route.default.origins: is set together with origin: set only one",
        ),
        (
            '[[route]]\norigins = [\n  { url = "http://a", wieght = 2 },\n]',
            "gateway.toml:2: route.default.origins[0].wieght: unknown key (did you mean 'weight'?)",
        ),
        (
            '[[route]]\norigins = ["http://a", "http://a:80"]',
            "gateway.toml:2: route.default.origins[1].url: http://a:80 is listed twice: give it a weight instead",
        ),
        (
            '[[route]]\norigins = [{ url = "http://a/v1" }, { url = "http://b" }]',
            (
                "gateway.toml:2: route.default.origins[1].url: http://b has another path than http://a/v1: "
                "a stream has the same path at all origins"
            ),
        ),
        (
            '[[route]]\norigin = "http://a"\nleaders = ["http://b/x"]',
            (
                "gateway.toml:3: route.default.leaders[0]: http://b/x has another path than http://a: "
                "a stream has the same path at all origins"
            ),
        ),
        (
            '[[route]]\norigin = "http://a"\n[route.origin_credentials]\nfile = "x"\nenvironment = "X"',
            "gateway.toml:5: route.default.origin_credentials.environment: is set together with file: set only one",
        ),
        (
            '[[route]]\norigin = "http://a"\n[route.health_check]\npath = "health"',
            ("gateway.toml:4: route.default.health_check.path: should be a path such as /healthz, got 'health'"),
        ),
        (
            '[origins]\nbreaker_open_s = 5\nbreaker_longest_open_s = 2\n[[route]]\norigin = "http://a"',
            "gateway.toml:3: origins.breaker_longest_open_s: is shorter than breaker_open_s, 5",
        ),
        (
            '[[route]]\norigin = "http://a"\n# a comment\nsse_lifetime_s = 0',
            "gateway.toml:4: route.default.sse_lifetime_s: should be greater than or equal to 1, got 0",
        ),
        (
            '[[route]]\norigin = "http://a"\n[route.cors]\nallow_origins = [\n  "https://a", # ]\n  3,\n]\nmax_age = 1',
            "gateway.toml:4: route.default.cors.allow_origins[1]: should be a valid string, got 3 (and 1 more)",
        ),
        (
            '[[route]]\norigin = "http://a"\ncredentials = "no"',
            "gateway.toml:3: route.default.credentials: should be 'partition', 'shared' or 'bypass', got 'no'",
        ),
        (
            '[[route]]\norigin = "http://a"\ncredential_headers = "cookie"',
            "gateway.toml:3: route.default.credential_headers: should be a list, got 'cookie'",
        ),
        (
            '[[route]]\norigin = "http://a"\n[route.cors]\nallow_credentials = true',
            (
                "gateway.toml:4: route.default.cors.allow_credentials: needs names in allow_origins: "
                'with "*", every site could read as the user'
            ),
        ),
        (
            '[[route]]\norigin = "http://a"\n\n[[route]]\norigin = "http://b"\nname = "default"',
            "gateway.toml:6: route.default.name: another route is named 'default' (- and _ count as the same)",
        ),
        (
            '[[route]]\norigin = "http://a"\n\n[[route]]\norigin = "http://b"\nname = "b"',
            "gateway.toml:4: route.b.prefix: route 'default' already takes host '*' with '/'",
        ),
        (
            (
                '[[route]]\norigin = "http://a:80/x"\norigin_http = "2"\n\n'
                '[[route]]\norigin = "http://b"\nleaders = ["http://a"]\nname = "b"\nprefix = "/b"\n'
                'origin_http = "1.1"'
            ),
            "gateway.toml:10: route.b.origin_http: differs from route 'default', which has the same origin, http://a",
        ),
        (
            '[[route]]\norigin = "http://a"\norigin_http = "h2"',
            "gateway.toml:3: route.default.origin_http: should be '1.1' or '2', got 'h2'",
        ),
        (
            '[server]\nlisten = ":1"\nadmin = ":1"\n[[route]]\norigin = "http://a"',
            "gateway.toml:3: server.admin: is :1, the same as listen",
        ),
    ],
)
def test_an_invalid_file_is_one_line_that_names_file_line_and_key(tmp_path: Path, text: str, line: str) -> None:
    assert error_line(tmp_path, text) == line


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("LIMITS__CASH_BYTES", "1", "unknown key 'cash_bytes' (did you mean 'cache_bytes'?)"),
        ("SERVER__", "1", "unknown key ''"),
        ("ROUTE__NOPE__ORIGIN", "http://a", "no route named 'nope' (there is default)"),
        ("ROUTE__DEFAULT__CORS", "x", "cors is a table: name a key in it, such as …__CORS__MAX_AGE_S"),
        ("CACHE__PLAN", "x", "plan is a table: name a key in it, such as …__PLAN__FILE"),
        ("CACHE__PLAN__FILES", "x", "unknown key 'files' (did you mean 'file'?)"),
        ("ROUTE__DEFAULT__CORS__AGE", "x", "unknown key 'age'"),
        ("LIMITS__MAX_CONNECTIONS", "many", "limits.max_connections: should be a valid integer, got 'many'"),
        ("ROUTE__DEFAULT__HEARTBEAT_S", "", "route.default.heartbeat_s: should be a valid number, got ''"),
        ("ROUTE__DEFAULT__CACHE", "maybe", "route.default.cache: should be a valid boolean, got 'maybe'"),
    ],
)
def test_an_invalid_variable_is_named(tmp_path: Path, variable: str, value: str, said: str) -> None:
    name = f"DURABLE_GATEWAY_{variable}"
    assert error_line(tmp_path, f'[[route]]\norigin = "{ORIGIN}"\n', **{name: value}) == f"env {name}: {said}"


def test_several_origins_come_from_a_file_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('[[route]]\norigins = [{ url = "http://a", weight = 2 }, { url = "http://b/" }]\n')
    loaded = load_config(file)
    a, b = OriginConfig(url="http://a", weight=2), OriginConfig(url="http://b")
    assert loaded.config.routes[0].origins == loaded.config.routes[0].members == (a, b)
    said = {setting.key: setting.text for setting in loaded.settings()}
    assert said["route.default.origins"] == '[{ url = "http://a", weight = 2 }, { url = "http://b" }]'
    assert said["route.default.origin"] == "none"
    file.write_text("[server]\n")
    environ = {
        "DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGINS": "http://a, http://b",
        "DURABLE_GATEWAY_ROUTE__DEFAULT__HEALTH_CHECK__INTERVAL_S": "0",
        "DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGIN_CREDENTIALS__ENVIRONMENT": "KEY",
        "DURABLE_GATEWAY_ORIGINS__BREAKER_FAILURES": "9",
    }
    config = load_config(file, environ=environ).config
    assert [one.url for one in config.routes[0].members] == ["http://a", "http://b"]
    assert config.routes[0].health_check == HealthCheckConfig(interval_s=0)
    assert config.routes[0].origin_credentials == OriginCredentialsConfig(environment="KEY")
    assert config.origins.breaker_failures == 9
    assert GatewayConfig.for_origin(["http://a", "http://b"], breaker_failures=9).origins == config.origins


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.toml: cannot be read: No such file or directory"):
        load_config(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'# caf\xe9\n[server]\nlisten = ":1"\n')
    with pytest.raises(ConfigError, match=r"is not UTF-8 text \(byte 5\)"):
        load_config(tmp_path / "latin.toml")


def test_the_line_of_every_key_is_found() -> None:
    text = (
        "a = 1\n"
        '"b c".d = """\n'
        "x = 1 # [[no]]\n"
        '"""\n'
        "e = [ # ] '\n"
        "  '''\n"
        "y = 1''', { z = 2 },\n"
        "]\n"
        "[ f . g ] # h\n"
        "i = '\\' # not an escape\r\n"
        "[[j]]\n"
        "k = 1\n"
        "[[j.l]]\n"
        "[[j.l]]\n"
        "m = 1\n"
        "[[j]]\n"
        "k = '='\n"
    )
    tomllib.loads(text)
    assert key_lines(text) == {
        ("a",): 1,
        ("b c",): 2,
        ("b c", "d"): 2,
        ("e",): 5,
        ("f", "g"): 9,
        ("f", "g", "i"): 10,
        ("j", 0): 11,
        ("j", 0, "k"): 12,
        ("j", 0, "l", 0): 13,
        ("j", 0, "l", 1): 14,
        ("j", 0, "l", 1, "m"): 15,
        ("j", 1): 16,
        ("j", 1, "k"): 17,
    }


_NAME = st.text("abc_", min_size=1, max_size=3)
_VALUE = st.sampled_from(["1", '"#"', "'[['", '"\\""', "[1,\n2]", '"""\nz = 1\n"""', "'''\n[x]\n'''", "{ q = 1 }"])


@given(st.dictionaries(_NAME, st.dictionaries(_NAME, _VALUE, max_size=4), max_size=4))
def test_the_line_found_is_the_line_of_the_key(tables: dict[str, dict[str, str]]) -> None:
    text = "".join(
        f"[{table}]\n" + "".join(f"{key} = {value}\n" for key, value in keys.items()) for table, keys in tables.items()
    )
    lines = text.split("\n")
    found = key_lines(text)
    for table, keys in tables.items():
        assert lines[found[table,] - 1] == f"[{table}]"
        for key in keys:
            assert lines[found[table, key] - 1].startswith(f"{key} =")


# -- samples -----------------------------------------------------------------------------------------------------------


def test_the_full_sample_loads_as_all_defaults_except_the_origin() -> None:
    assert load_config(CONFIG / "gateway.toml").config == GatewayConfig.for_origin(ORIGIN)


def test_the_full_sample_shows_every_key_with_its_default_and_its_description() -> None:
    text = (CONFIG / "gateway.toml").read_text(encoding="utf-8")
    uncommented = tomllib.loads(re.sub(r"^#(?=\[|[a-z0-9_]+ =)", "", text, flags=re.MULTILINE))
    lists = {name: uncommented[name][0] for name in ("route", "listener", "rate_limit")}
    route, listener, limit = lists.values()
    tables = {section: table for section, table in uncommented.items() if section not in lists}
    shown = dict(tables)
    for name, one in lists.items():
        shown[name] = {key: value for key, value in one.items() if not isinstance(value, dict)}
        shown |= {f"{name}.{key}": value for key, value in one.items() if isinstance(value, dict)}
    shown["cache.plan"] = shown.pop("cache")["plan"]
    fields: dict[str, set[str]] = {}
    for section, name, _ in every_field():
        fields.setdefault(section, set()).add(name)
    assert {section: set(keys) for section, keys in shown.items()} == fields

    config = GatewayConfig.model_validate(
        {**tables, "routes": [route], "listeners": [listener], "rate_limits": [limit]}
    )
    assert config.listeners[0].tls is not None
    assert config.listeners == (
        ListenerConfig(
            address=listener["address"], tls=ListenerTlsConfig(certificates=config.listeners[0].tls.certificates)
        ),
    )
    assert config.server == ServerConfig()
    assert config.limits == LimitsConfig()
    assert config.origins == OriginsConfig()
    assert config.cache == CacheConfig()
    assert config.store == StoreConfig()
    assert config.tracing == TracingConfig()
    assert config.log == LogConfig()
    assert config.fleet == FleetConfig()
    assert config.routes[0] == RouteConfig(
        origin=ORIGIN,
        cors=CorsConfig(),
        bridge=BridgeConfig(),
        health_check=HealthCheckConfig(),
        origin_credentials=OriginCredentialsConfig(),
        origin_tls=OriginTlsConfig(),
    )

    prose = " ".join(re.sub(r"^# ?", "", text, flags=re.MULTILINE).split())
    for section, name, model in every_field():
        assert str(model.model_fields[name].description) in prose, f"{section}.{name} is described otherwise"


def test_the_small_sample_loads() -> None:
    config = load_config(CONFIG / "dev.toml").config
    assert config.routes[0].name == "dev"
    assert config.routes[0].cors == CorsConfig()
    assert config.limits.cache_bytes == 64 << 20


# -- rate limits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("requests_per_s = 1", "rate_limit[0].name: is required and has no default"),
        (
            'name = "a"',
            (
                "rate_limit[0].requests_per_s: is needed, unless bytes_per_s or live_reads is set: "
                "the table limits nothing"
            ),
        ),
        ('name = "a"\nlive_reads = 1\nburst = 2', "rate_limit[0].burst: needs requests_per_s"),
        # Its windows would be longer than the fields of answers can say.
        ('name = "a"\nrequests_per_s = 1e-320', "rate_limit[0].requests_per_s: "),
        ('name = "a"\nlive_reads = 1\nroutes = ["none"]', "rate_limit[0].routes: there is no route 'none'"),
        (
            'name = "a"\nlive_reads = 1\nper = "ip"',
            "rate_limit[0].per: should be 'client', 'principal', 'tenant', 'route' or 'all', got 'ip'",
        ),
        ('name = "a"\nrequest_per_s = 1', "unknown key (did you mean 'requests_per_s'?)"),
        (
            'name = "a"\nlive_reads = 1\n[[rate_limit]]\nname = "a"\nlive_reads = 2',
            "rate_limit[1].name: another limit is named 'a'",
        ),
    ],
)
def test_a_mistake_in_a_rate_limit_is_one_clear_line(tmp_path: Path, table: str, said: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(f'[[route]]\norigin = "{ORIGIN}"\n[[rate_limit]]\n{table}\n')
    with pytest.raises(ConfigError) as failed:
        load_config(file)
    assert said in str(failed.value)


def test_a_rate_limit_is_read_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        f'[[route]]\norigin = "{ORIGIN}"\n[[rate_limit]]\nname = "a"\nbytes_per_s = "1MiB"\nroutes = ["default"]\n'
    )
    loaded = load_config(file)
    assert loaded.config.rate_limits[0].bytes_per_s == 1 << 20
    said = {f"{setting.key} = {setting.text}": setting.source for setting in loaded.settings()}
    assert said['rate_limit.a.bytes_per_s = "1MiB"'] == f"{file}:5"
    assert said["rate_limit.a.burst = none"] == "default"


def test_a_consistency_is_of_s2_only(tmp_path: Path) -> None:
    text = f'[[route]]\norigin = "{ORIGIN}"\nconsistency = "bounded-staleness"\n'
    assert error_line(tmp_path, text) == (
        'gateway.toml:3: route.default.consistency: can be set only with protocol = "s2"'
    )
    (tmp_path / "s2.toml").write_text(text + 'protocol = "s2"\n', encoding="utf-8")
    (route,) = load_config(tmp_path / "s2.toml", environ={}).config.routes
    assert route.consistency == "bounded-staleness"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (['present = "durable-streams"'], '3: route.default.present: can be set only with protocol = "s2"'),
        (
            ['protocol = "s2"', "[route.bridge]", 'basin = "first-basin"'],
            '4: route.default.bridge: can be set only with present = "durable-streams"',
        ),
        (
            ['protocol = "s2"', 'present = "durable-streams"', 'consistency = "bounded-staleness"'],
            '5: route.default.consistency: can be set only for S2 clients; with present = "durable-streams", set tail',
        ),
        (
            ['protocol = "s2"', 'present = "durable-streams"', "[route.bridge]", 'content_type = "text/plain"'],
            (
                '6: route.default.bridge.content_type: can be set only with records = "bytes": '
                "otherwise it is application/json"
            ),
        ),
        (
            ['protocol = "s2"', 'present = "durable-streams"', "[route.bridge]", 'basin = "Short"'],
            (
                "6: route.default.bridge.basin: a basin's name has 8 to 48 lower-case letters, digits and inner "
                "hyphens, got 'Short'"
            ),
        ),
        (
            ['protocol = "s2"', 'present = "durable-streams"', "[route.bridge]", 'records = "lines"'],
            "6: route.default.bridge.records: ",
        ),
        (
            ['protocol = "s2"', 'present = "durable-streams"', "[route.bridge]", 'content_type = "application/json"'],
            (
                '6: route.default.bridge.content_type: is application/json: set records = "json", because '
                "concatenated bytes are not JSON"
            ),
        ),
        (
            ['protocol = "s2"', 'present = "durable-streams"', "[route.bridge]", 'content_type = "text"'],
            "6: route.default.bridge.content_type: should be a content type such as text/plain, got 'text'",
        ),
    ],
)
def test_a_bridge_is_of_s2_only_and_has_one_type(tmp_path: Path, keys: list[str], said: str) -> None:
    text = "\n".join(["[[route]]", f'origin = "{ORIGIN}"', *keys]) + "\n"
    assert error_line(tmp_path, text).startswith(f"gateway.toml:{said}")


def test_a_bridge_is_configured(tmp_path: Path) -> None:
    text = f"""\
[[route]]
origin = "{ORIGIN}"
protocol = "s2"
present = "durable-streams"
[route.bridge]
basin = "first-basin"
records = "bytes"
content_type = "text/plain; charset=utf-8"
"""
    (tmp_path / "gateway.toml").write_text(text, encoding="utf-8")
    (route,) = load_config(tmp_path / "gateway.toml", environ={}).config.routes
    assert route.is_bridged
    assert route.bridging.basin == "first-basin"
    environ = {"DURABLE_GATEWAY_ROUTE__DEFAULT__BRIDGE__BASIN": "other-basin"}
    (route,) = load_config(tmp_path / "gateway.toml", environ=environ).config.routes
    assert route.bridging.basin == "other-basin"
