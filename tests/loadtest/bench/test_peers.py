from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.file import load_config
from gateway.server.certificates import load_certificates
from loadtest.bench.certificates import Certificate, gateway_tls, make_certificate, nginx_tls
from loadtest.bench.fetch import header, status
from loadtest.bench.nginx import nchan_config, nginx_config
from loadtest.bench.peers import SIZES, closed_stream, gateway_config, varnish_config
from loadtest.bench.production import ALL, CLIENTS, SETTINGS, Setting
from tests.debian import program

CERTIFICATE = Certificate(Path("/c.pem"), Path("/k.pem"))
ORIGINS = {"1k": 1001, "64k": 1002, "1m": 1003, "pass": 1004}


def test_the_gateways_configuration_is_one(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(gateway_config(4437, 9437, ORIGINS, 1005, fast_path=None), encoding="utf-8")
    config = load_config(file, environ={}).config
    assert {route.prefix: route.origin for route in config.routes} == {
        **{f"/{name}": f"http://127.0.0.1:{port}" for name, port in ORIGINS.items()},
        "/live": "http://127.0.0.1:1005",
    }
    assert all("cookie" not in route.credential_headers for route in config.routes if route.prefix != "/live")


def test_the_gateways_s2_route_is_one(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(gateway_config(4437, 9437, {**ORIGINS, "s2": 1006}, 1005, fast_path=None), encoding="utf-8")
    [route] = [route for route in load_config(file, environ={}).config.routes if route.prefix == "/s2"]
    assert (route.origin, route.protocol, route.origin_http) == ("http://127.0.0.1:1006", "s2", "2")
    assert route.strip_prefix


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_gateways_configuration_with_a_setting_of_production_is_one(setting: Setting, tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(gateway_config(4437, 9437, ORIGINS, 1005, fast_path=None, more=setting.more), encoding="utf-8")
    config = load_config(file, environ={}).config
    assert bool(config.server.trusted_proxies) is setting.has_proxy
    has_credentials = setting.has_tokens or setting.has_links
    assert all((route.credentials == "shared") is has_credentials for route in config.routes)
    assert all((route.cors is not None) is setting.has_browsers for route in config.routes)


def test_clients_in_production_differ_in_their_header_sections() -> None:
    sections = [ALL.section(client, "*/*") for client in range(CLIENTS)]
    assert len(set(sections)) == CLIENTS
    assert max(map(len, sections)) < 1_536
    assert all(section.endswith("\r\n\r\n") and section.count("\r\n\r\n") == 1 for section in sections)


@pytest.mark.parametrize("text", [nginx_config(80, ORIGINS, Path("/f"), Path("/s")), varnish_config(ORIGINS)])
def test_what_is_relayed_is_cached_by_no_peer(text: str) -> None:
    for name in SIZES:
        assert f"/{name}/" in text
    assert "/pass" not in text or "location /pass/ { proxy_pass http://upass; }" in text


def test_braces_of_server_configurations_are_balanced() -> None:
    texts = (
        nginx_config(80, ORIGINS, Path("/f"), Path("/s")),
        nginx_config(80, ORIGINS, Path("/f"), Path("/s"), service=81),
        nchan_config(80, Path("/f"), Path("/m.so")),
        nchan_config(80, Path("/f"), Path("/m.so"), logs=True),
        nchan_config(80, Path("/f"), Path("/m.so"), nginx_tls(443, CERTIFICATE)),
        varnish_config(ORIGINS),
    )
    for text in texts:
        assert text.count("{") == text.count("}")
        assert "{{" not in text


@pytest.mark.parametrize("size", SIZES.values())
def test_a_closed_stream_says_so_and_is_as_long_as_it_says(size: int) -> None:
    answer = closed_stream(size)
    assert status(answer) == 200
    assert header(answer, "stream-closed") == "true"
    assert header(answer, "content-length") == str(size)
    assert header(answer, "stream-cursor") == ""
    assert len(answer.partition(b"\r\n\r\n")[2]) == size


def test_what_was_never_asked_for_is_kept_by_the_gateway_alone() -> None:
    text = nginx_config(80, ORIGINS, Path("/f"), Path("/s"))
    for name in SIZES:
        assert f"location /{name}/cold/ {{ proxy_pass http://u{name}; }}" in text


def test_the_gateway_takes_the_certificate(tmp_path: Path) -> None:
    certificate = make_certificate(program("openssl", "openssl"), tmp_path)
    file = tmp_path / "gateway.toml"
    text = gateway_config(4437, 9437, ORIGINS, 1005, fast_path=None, tls=gateway_tls(4438, certificate))
    file.write_text(text, encoding="utf-8")
    config = load_config(file, environ={}).config
    assert [one.address for one in config.every_listener] == ["127.0.0.1:4438", "127.0.0.1:4437"]
    assert load_certificates(config.every_listener, ["http/1.1"])


def test_nginx_and_nchan_take_both_protocols_with_the_certificate() -> None:
    lines = nginx_tls(443, CERTIFICATE)
    assert "listen 127.0.0.1:443 ssl http2" in lines
    for text in (
        nginx_config(80, ORIGINS, Path("/f"), Path("/s"), lines),
        nchan_config(80, Path("/f"), Path("/m.so"), lines),
    ):
        assert lines in text
