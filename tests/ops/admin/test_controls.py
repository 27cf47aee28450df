"""Controlling a gateway: drain, log level, and the configuration that it shows."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientConnectorError
from pydantic import SecretStr

from gateway.config.gateway import GatewayConfig
from gateway.config.sections import every_field
from gateway.ops.admin.controls import LOGGER
from gateway.ops.gathering.worker_admin import WorkerAdmin
from gateway.origin.app import RunningOrigin
from tests.ops.admin.conftest import Bench, Start
from tests.waiting import eventually, pass_turns


@pytest.fixture
def level() -> Iterator[None]:
    """Restore the log level of the process after the test."""
    logger = logging.getLogger(LOGGER)
    before = logger.level
    yield
    logger.setLevel(before)


async def test_a_drain_ends_readiness_and_ends_live_reads_in_order(bench: Bench) -> None:
    await bench.put("/live")
    reader = await bench.follow("/live")
    assert (await bench.ask("GET", "/readyz")).status == 200
    assert await bench.post("/api/drain", {"within_s": 2}) == {"is_draining": True}
    assert (await bench.ask("GET", "/readyz")).status == 503
    assert (await bench.ask("GET", "/healthz")).status == 200
    overview = await bench.get("/api/overview")
    assert overview["is_draining"]
    assert not overview["is_ready"]
    bench.clock.advance(2.1)
    seen = await reader.content.read()
    assert b"data:hello" in seen
    assert seen.endswith(b"\n\n")
    # A client that has not noticed the drain is still answered.
    assert (await bench.read("/live?offset=-1"))[1] == b"hello"


async def test_a_gateway_that_another_version_replaces_refuses_changes_and_answers_reads(bench: Bench) -> None:
    await bench.put("/live")
    reader = await bench.follow("/live")
    purge = ("POST", "/api/purge", {"all": True})
    assert (await bench.ask(*purge)).status == 200, "the session keeps its connection"
    stopping = asyncio.create_task(bench.gateway.stop(is_replaced=True))
    await eventually(lambda: bench.gateway.clients.is_draining)
    refused = await bench.ask(*purge)
    assert (refused.status, refused.headers["Retry-After"], refused.headers["Connection"]) == (503, "1", "close")
    assert refused.body["error"].startswith("another version of the gateway replaces this one")
    with pytest.raises(ClientConnectorError):
        await bench.get("/api/log-level")
    bench.clock.advance(bench.gateway.config.server.shutdown_timeout_s)
    await reader.content.read()
    await stopping


async def test_a_replaced_worker_answers_the_next_version_before_it_stops(bench: Bench) -> None:
    """The next version has still to ask for the revocations that this version has confirmed."""
    steps, has_answered = list[str](), asyncio.Event()

    async def finish_answers() -> None:
        steps.append("waits")
        await has_answered.wait()

    async def close() -> None:
        steps.append("closed")

    answers = SimpleNamespace(
        begin_last_answers=lambda: steps.append("begins"), finish_answers=finish_answers, close=close
    )
    bench.gateway.worker_admin = cast(WorkerAdmin, answers)
    stopping = asyncio.create_task(bench.gateway.stop(is_replaced=True))
    await eventually(lambda: "waits" in steps)
    await pass_turns()
    assert steps == ["begins", "waits"]
    has_answered.set()
    await stopping
    assert steps[-1] == "closed"


async def test_a_replaced_gateway_answers_a_kept_connections_reads_and_then_ends_it(bench: Bench) -> None:
    await bench.get("/api/log-level")
    bench.gateway.is_replaced = True
    answer = await bench.ask("GET", "/api/log-level")
    assert (answer.status, answer.headers["Connection"]) == (200, "close")
    for method, path, body in [
        ("POST", "/api/purge", {"all": True}),
        ("POST", "/api/revoke", {"subject": "principal", "name": "eve"}),
        ("POST", "/api/reload", {}),
        ("POST", "/api/upgrade", {}),
        ("POST", "/api/drain", {}),
        ("PUT", "/api/log-level", {"level": "debug"}),
    ]:
        assert (await bench.ask(method, path, body)).status == 503, path
    assert (await bench.ask("POST", "/api/tails", {"paths": []})).status != 503, "a question"


async def test_a_drain_is_undone_until_the_gateway_stops(bench: Bench) -> None:
    await bench.post("/api/drain", {"within_s": 2})
    assert (await bench.ask("GET", "/readyz")).status == 503
    assert await bench.post("/api/drain", {"undo": True}) == {"is_draining": False}
    assert await bench.post("/api/drain", {"undo": True}) == {"is_draining": False}
    assert (await bench.ask("GET", "/readyz")).status == 200
    # An open connection keeps the gateway for a moment.
    await bench.put("/s")
    stopping = asyncio.create_task(bench.gateway.stop())
    await eventually(lambda: bench.gateway.clients.is_draining)
    assert not bench.gateway.undo_drain()
    await stopping


@pytest.mark.parametrize(
    "body",
    [{"undo": True, "within_s": 1}, {"within_s": -1}, {"within_s": "5"}, {"within_s": 1e9}, {"within": 5}, None, 5],
)
async def test_a_drain_with_an_invalid_time_is_refused(bench: Bench, body: Any) -> None:
    told = await bench.ask("POST", "/api/drain", body)
    assert told.status in (415, 422)
    assert not bench.gateway.engine.drain.is_set


@pytest.mark.usefixtures("level")
async def test_the_log_level_is_set_for_the_gateways_own_loggers(bench: Bench) -> None:
    root = logging.getLogger().level
    for name in ("debug", "error", "info", "warning"):
        told = await bench.ask("PUT", "/api/log-level", {"level": name})
        assert (told.status, told.body) == (200, {"level": name})
        assert await bench.get("/api/log-level") == {"level": name}
        assert logging.getLogger("gateway.front").isEnabledFor(getattr(logging, name.upper()))
    assert not logging.getLogger("gateway.front").isEnabledFor(logging.INFO)
    assert logging.getLogger().level == root
    assert (await bench.ask("PUT", "/api/log-level", {"level": "loud"})).status == 422


async def test_the_configuration_in_effect_is_shown_whole(start: Start, origin: RunningOrigin) -> None:
    bench = await start(origin.url, cache_bytes="3MiB", trust_s=7)
    shown = await bench.get("/api/config")
    assert shown["limits"]["cache_bytes"] == 3 << 20
    (route,) = shown["routes"]
    assert route["origin"] == origin.url
    assert route["trust_s"] == 7
    assert shown.keys() == GatewayConfig.model_fields.keys()
    assert shown["server"].keys() == type(bench.gateway.config.server).model_fields.keys()


async def test_secrets_of_the_configuration_are_hidden(start: Start, origin: RunningOrigin) -> None:
    config = GatewayConfig.model_validate(
        {
            "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 0.5},
            "log": {"partition_key": "the-log's-own-key", "stream_authorization": "Bearer the-log's-own"},
            "routes": [{"origin": origin.url}],
        }
    )
    bench = await start(config=config)
    shown = await bench.get("/api/config")
    assert "own" not in str(shown["log"])
    assert shown["log"]["partition_key"] == "**********"


def test_every_setting_named_like_a_secret_has_a_secret_type() -> None:
    sounds = re.compile(r"password|secret|token|authorization|(?<!credential_)key$")
    fields = {name: model.model_fields[name].annotation for _, name, model in every_field()}
    for name, annotation in fields.items():
        if sounds.search(name):
            assert annotation is SecretStr, name
    assert fields["partition_key"] is SecretStr


@pytest.mark.usefixtures("level")
async def test_changes_are_logged_with_the_client(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gateway.admin"):
        await bench.post("/api/purge", {"key": "k"})
        await bench.ask("PUT", "/api/log-level", {"level": "info"})
        await bench.post("/api/drain", {"within_s": 7})
        await bench.get("/api/overview")
    assert [record.getMessage() for record in caplog.records if record.name == "gateway.admin.audit"] == [
        "POST /api/purge by 127.0.0.1: 200: purged key k: 0",
        "PUT /api/log-level by 127.0.0.1: 200: info",
        "POST /api/drain by 127.0.0.1: 202: within 7 s",
    ]
