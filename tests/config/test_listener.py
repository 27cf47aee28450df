"""Listeners in the configuration: addresses, contradictions, the line of each error, and reload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config.addresses import Address
from gateway.config.change import change
from gateway.config.errors import ConfigError
from gateway.config.file import load_config
from gateway.config.gateway import GatewayConfig
from gateway.config.listener import BindAddress, SystemdSockets, UnixAddress, parse_bind_address
from gateway.server.sockets import choose_fds, passed_sockets

ORIGIN = "http://127.0.0.1:4438"
PAIR = {"certificate": "/a.pem"}


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80)),
        (":443", Address("", 443)),
        ("[::]:443", Address("::", 443)),
        ("unix:/run/a.sock", UnixAddress("/run/a.sock")),
        ("systemd", SystemdSockets()),
        ("systemd:https", SystemdSockets("https")),
        ("systemd:80", SystemdSockets("80")),
    ],
)
def test_a_bind_address_is_parsed(text: str, address: BindAddress) -> None:
    assert parse_bind_address(text) == address
    assert parse_bind_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["unix:", "unix:relative", f"unix:/{'x' * 107}", "unix:/a\0b", "systemd:", "systemd:a:b", "systemd:a b", "80", ""],
)
def test_an_invalid_bind_address_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|bytes at most"):
        parse_bind_address(text)


def error_line(tmp_path: Path, text: str) -> str:
    file = tmp_path / "gateway.toml"
    file.write_text(f'[[route]]\norigin = "{ORIGIN}"\n{text}', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    return str(caught.value).replace(f"{tmp_path}/", "")


PLAIN = '[[listener]]\naddress = ":1"\n'
UNIX = '[[listener]]\naddress = "unix:/a"\n'
TLS = f"{PLAIN}[listener.tls]\n"
SHOWN = f'{TLS}certificates = [{{ certificate = "/a" }}]\n'
SERVER = "[server]\ntrusted_proxies = "


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[listener]", 3, "listener: should be a list of tables: write [[listener]]"),
        ("[[listeners]]", 3, "listeners: unknown key (did you mean [[listener]]?)"),
        ("[[listener]]", 3, "listener[0].address: is required and has no default"),
        ('[[listener]]\naddress = "nope"', 4, "listener[0].address: expected HOST:PORT"),
        (f"{PLAIN}adress = 1", 5, "listener[0].adress: unknown key (did you mean 'address'?)"),
        (f"{PLAIN}{PLAIN}", 6, "listener[1].address: another listener is at :1"),
        (f'{PLAIN}mode = "600"', 5, "listener[0].mode: can be set only with unix:/path"),
        (f'{UNIX}mode = "9"', 5, "listener[0].mode: expected a mode"),
        (f"{UNIX}reuse_port = true", 5, "listener[0].reuse_port: can be set only with HOST:PORT"),
        (f"{PLAIN}backlog = 0", 5, "listener[0].backlog: "),
        (f'{PLAIN}redirect_to_https = "yes"', 5, "listener[0].redirect_to_https"),
        (TLS, 5, "listener[0].tls.certificates: is required"),
        (f"{TLS}certificates = []", 6, "listener[0].tls.certificates: "),
        (f"{TLS}certificates = [{{ key = 1 }}]", 6, "listener[0].tls.certificates[0].certificate: is required"),
        (f'{SHOWN}client_ca = "/b"', 7, "listener[0].tls.client_ca: needs client_certificates"),
        (f'{SHOWN}client_certificates = "required"', 7, "listener[0].tls.client_certificates: needs client_ca"),
        (f'{SHOWN}minimum_version = "1.1"', 7, "listener[0].tls.minimum_version: "),
        (SHOWN.replace("[listener.tls]", "redirect_to_https = true\n[listener.tls]"), 5,
         "listener[0].redirect_to_https: is for a plain listener"),
        (f'{SERVER}["10.0.0.1/8"]', 4, "server.trusted_proxies[0]: expected a network"),
        (f'{SERVER}["proxy.test"]', 4, "server.trusted_proxies[0]: expected a network"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    assert error_line(tmp_path, text).startswith(f"gateway.toml:{line}: {said}")


@pytest.mark.parametrize(
    ("overrides", "addresses"),
    [
        ({}, ["127.0.0.1:4437"]),
        ({"listen": ":1"}, [":1"]),
        ({"listeners": [{"address": ":2"}]}, [":2"]),
        ({"listen": ":1", "listeners": [{"address": ":2"}]}, [":2", ":1"]),
    ],
)
def test_listeners_replace_the_default_listener(overrides: dict[str, Any], addresses: list[str]) -> None:
    config = GatewayConfig.for_origin(ORIGIN, **overrides)
    assert [one.address for one in config.every_listener] == addresses


def configured(*listeners: dict[str, Any]) -> GatewayConfig:
    return GatewayConfig.for_origin(ORIGIN, listeners=list(listeners))


def test_a_reload_applies_certificates_and_leaves_addresses() -> None:
    now = configured({"address": ":1"}, {"address": ":2", "tls": {"certificates": [PAIR]}})
    other = configured(
        {"address": ":1"}, {"address": ":2", "tls": {"certificates": [PAIR, PAIR], "minimum_version": "1.3"}}
    )
    result = change(now, other)
    assert (result.changed, result.needs_restart) == (("listener[1].tls",), ())
    assert result.config.listeners == other.listeners
    for elsewhere in (
        configured({"address": ":1"}),
        configured({"address": ":1"}, {"address": ":2"}),
        configured({"address": ":1"}, {"address": ":2", "backlog": 5, "tls": {"certificates": [PAIR]}}),
    ):
        result = change(now, elsewhere)
        assert (result.changed, result.needs_restart) == ((), ("listener",))
        assert result.config.listeners == now.listeners


FDS = [("plain", 3), ("secure", 4), ("plain", 5)]


def test_systemd_sockets_are_found_by_name() -> None:
    environ = {"LISTEN_PID": "7", "LISTEN_FDS": "3", "LISTEN_FDNAMES": "plain:secure:plain"}
    assert passed_sockets(environ, 7) == FDS
    assert passed_sockets(environ, 8) == passed_sockets({}, 7) == []
    assert passed_sockets({"LISTEN_PID": "7", "LISTEN_FDS": "1"}, 7) == [("unknown", 3)]
    assert choose_fds(FDS, "plain", ["plain"]) == [3, 5]
    assert choose_fds(FDS, "", ["secure"]) == [3, 5]
    assert choose_fds(FDS, "", []) == [3, 4, 5]
    for wrong in ({"LISTEN_FDS": "-1"}, {"LISTEN_FDS": "5000"}, {"LISTEN_FDNAMES": "a"}):
        with pytest.raises(ValueError, match="LISTEN_FD"):
            passed_sockets({**environ, **wrong}, 7)
