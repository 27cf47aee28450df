"""Authorisation on the admin port: tokens, and browsers that run foreign pages."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from gateway.config.errors import ConfigError
from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.ops.admin.guard import is_loopback
from gateway.origin.app import RunningOrigin
from tests.ops.admin.conftest import Bench, Start
from tests.served import durable_gateway

TOKEN = "a-token-that-nobody-guesses"


async def guarded(start: Start, origin: RunningOrigin, **more: Any) -> Bench:
    return await start(origin.url, environ={ADMIN_TOKEN_VARIABLE: TOKEN}, **more)


@pytest.mark.parametrize("admin", ["0.0.0.0:0", "127.0.0.1:0"])
async def test_a_configured_token_guards_everything_but_probes_and_the_pages_files(
    start: Start, origin: RunningOrigin, admin: str
) -> None:
    bench = await guarded(start, origin, admin=admin)
    asked = ["/api/overview", "/api/streams", "/api/config", "/metrics", "/openapi.json", "/api/console", "/nothing"]
    for path in asked:
        told = await bench.ask("GET", path)
        assert told.status == 401, path
        assert told.headers["WWW-Authenticate"] == "Bearer"
        assert told.body == {"error": "a token is needed: Authorization: Bearer <token>"}
    assert (await bench.ask("POST", "/api/drain", {})).status == 401
    assert not bench.gateway.engine.drain.is_set
    for path in ("/healthz", "/readyz"):
        assert (await bench.ask("GET", path)).status == 200
    for shown in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ", "Bearer é", TOKEN, f"Basic {TOKEN}"):
        assert (await bench.ask("GET", "/api/overview", Authorization=shown)).status == 401
    for shown in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
        assert (await bench.ask("GET", "/api/overview", Authorization=shown)).status == 200
    assert (await bench.ask("POST", "/api/purge", {"key": "k"}, Authorization=f"Bearer {TOKEN}")).status == 200


async def test_a_public_address_without_a_token_refuses_to_start(start: Start, origin: RunningOrigin) -> None:
    for environ in ({}, {ADMIN_TOKEN_VARIABLE: ""}):
        with pytest.raises(ConfigError, match=rf"server\.admin: 0\.0\.0\.0:0 .* set {ADMIN_TOKEN_VARIABLE}") as refused:
            await start(origin.url, admin="0.0.0.0:0", environ=environ)
        assert "\n" not in str(refused.value)


def test_the_command_line_reports_it_in_one_line() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DURABLE_GATEWAY_")}
    command = durable_gateway("serve", "--origin", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", ":0")
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("durable-gateway: server.admin: :0 can be reached from outside: set ")
    assert run.stderr.count("\n") == 1


@pytest.mark.parametrize("token", ["two words", "tab\t", "café"])
async def test_a_token_that_does_not_fit_into_a_header_refuses_to_start(
    start: Start, origin: RunningOrigin, token: str
) -> None:
    with pytest.raises(ConfigError, match=ADMIN_TOKEN_VARIABLE) as refused:
        await start(origin.url, environ={ADMIN_TOKEN_VARIABLE: token})
    assert token not in str(refused.value)


async def test_a_foreign_host_name_that_resolves_here_is_refused(bench: Bench) -> None:
    for host in ("evil.example", "evil.example:9437", "127.0.0.1.evil.example", "127.0.0.1@evil.example", "[", ""):
        told = await bench.ask("GET", "/api/overview", Host=host)
        assert told.status == 403, host
    port = bench.gateway.admin_url.rpartition(":")[2]
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", f"[::1]:{port}", "127.0.0.1"):
        assert (await bench.ask("GET", "/api/overview", Host=host)).status == 200, host
    # A probe may use any name for this machine.
    assert (await bench.ask("GET", "/healthz", Host="evil.example")).status == 200


async def test_a_page_of_another_origin_changes_nothing(bench: Bench) -> None:
    own = bench.gateway.admin_url
    for origin in ("http://evil.example", "null", own.replace("127.0.0.1", "localhost"), own + "0", "file://"):
        told = await bench.ask("POST", "/api/drain", {}, Origin=origin)
        assert told.status == 403, origin
    assert not bench.gateway.engine.drain.is_set
    assert (await bench.ask("POST", "/api/purge", {"key": "k"}, Origin=own)).status == 200


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
async def test_a_content_type_that_a_form_can_send_is_refused(bench: Bench, content_type: str | None) -> None:
    headers = {"Content-Type": content_type} if content_type is not None else {}
    async with bench.session.post(
        bench.gateway.admin_url + "/api/drain",
        data=b"{}",
        headers=headers,
        skip_auto_headers=["Content-Type"],
    ) as answer:
        assert answer.status == 415
        assert list(await answer.json()) == ["error"]
    assert not bench.gateway.engine.drain.is_set


async def test_answers_forbid_caching_and_framing(bench: Bench) -> None:
    told = await bench.ask("GET", "/api/overview")
    assert told.headers["Cache-Control"] == "no-store"
    assert told.headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in told.headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in told.headers


async def test_errors_are_one_line_of_json(bench: Bench) -> None:
    for method, path, body, status in (
        ("GET", "/api/none", None, 404),
        ("DELETE", "/api/overview", {}, 405),
        ("GET", "/api/purge", None, 405),
    ):
        told = await bench.ask(method, path, body)
        assert told.status == status
        assert list(told.body) == ["error"]
    async with bench.session.post(
        bench.gateway.admin_url + "/api/purge", data=b"{", headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.status == 400
        assert await answer.json() == {"error": "the body is not JSON"}


@pytest.mark.parametrize(
    ("host", "wanted"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_loopback_is_this_machine_alone(host: str, wanted: bool) -> None:
    assert is_loopback(host) is wanted
