"""A gateway keeps the access log that its configuration asks for, and writes all of it before it stops."""

from __future__ import annotations

import asyncio
import os
import subprocess
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.app import start_gateway
from gateway.config.errors import ConfigError
from gateway.config.file import load_config
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin, start_origin
from gateway.protocol.cache_status import Outcome
from gateway.telemetry.access_record import AccessLog, CloseReason, NoAccessLog, Record, Repeated
from tests.ops.log_reading import BOUND_S, lines_of, messages
from tests.served import dev_gateway, durable_gateway

KEY = "a secret of some letters"


@pytest.fixture
async def origin() -> AsyncIterator[RunningOrigin]:
    running = await start_origin()
    yield running
    running.origin.faults.clear()
    await running.stop(grace_s=0)


def numbered(number: int) -> Record:
    return Record(method="GET", stream=f"/{number}")


def noted(folder: Path) -> list[dict[str, Any]]:
    return lines_of(folder / "access.log")


def streams(found: list[dict[str, Any]]) -> list[int]:
    return [int(line["stream"][1:]) for line in found]


def test_an_access_log_that_is_off_accepts_everything_and_keeps_nothing() -> None:
    access_log: AccessLog = NoAccessLog()
    assert not access_log.is_kept
    access_log.record(Record())
    access_log.repeat(Repeated(Record()), 1.0, 1.0, None, b"")
    access_log.live(Record(), 1.0, lambda into: pytest.fail("the record is read")).record_end(
        Outcome.HIT, CloseReason.LEFT
    )


@pytest.mark.parametrize("sink", ["file", "stream"])
async def test_a_gateway_writes_queued_records_before_it_stops(
    sink: str, tmp_path: Path, origin: RunningOrigin
) -> None:
    where = {"path": str(tmp_path / "access.log")} if sink == "file" else {"stream_url": f"{origin.url}/log"}
    config = GatewayConfig.for_origin(
        origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", node_name="west", sink=sink, batch_s=60, **where
    )
    gateway = await start_gateway(config)
    assert gateway.access_log.is_kept
    for number in range(100):
        gateway.access_log.record(numbered(number))
    await gateway.stop()
    found = noted(tmp_path) if sink == "file" else await messages(f"{origin.url}/log")
    assert streams(found) == list(range(100))
    assert {line["node"] for line in found} == {"west"}
    assert "durable_gateway_log_drops_total 0.0" in gateway.metrics.exposition()[0].decode()


async def test_a_gateway_stops_in_time_and_counts_unwritten_records(origin: RunningOrigin) -> None:
    config = GatewayConfig.for_origin(
        origin.url,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        sink="stream",
        stream_url=f"{origin.url}/log",
        shutdown_timeout_s=0.3,
    )
    gateway = await start_gateway(config)
    origin.origin.faults.hold(kind="append")
    for number in range(100):
        gateway.access_log.record(numbered(number))
    async with asyncio.timeout(BOUND_S):
        await gateway.stop()
    assert "durable_gateway_log_drops_total 100.0" in gateway.metrics.exposition()[0].decode()


async def test_a_gateway_keeps_no_log_unless_it_is_asked_to(origin: RunningOrigin) -> None:
    gateway = await start_gateway(GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0"))
    assert not gateway.access_log.is_kept
    await gateway.stop()


async def test_a_gateway_that_cannot_write_its_log_does_not_start(origin: RunningOrigin, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"log\.path: .* cannot be written: Is a directory"):
        await start_gateway(GatewayConfig.for_origin(origin.url, sink="file", path=str(tmp_path)))


def test_a_program_logs_to_stdout_before_it_stops() -> None:
    environ = {**os.environ, "DURABLE_GATEWAY_LOG__SINK": "stdout", "DURABLE_GATEWAY_LOG__BATCH_S": "60"}
    program = subprocess.Popen(dev_gateway(), stdout=subprocess.PIPE, env=environ, text=True)
    try:
        assert program.stdout is not None
        urls: dict[str, str] = {}
        while len(urls) < 3:
            line = program.stdout.readline()
            assert line, "it ended before it was ready"
            match line.split():
                case ["READY", name, url]:
                    urls[name] = url
        asked = urllib.request.Request(f"{urls['gateway']}/s", method="PUT", headers={"User-Agent": "asker"})
        with urllib.request.urlopen(asked, timeout=BOUND_S) as reply:
            assert reply.status == 201
    finally:
        program.terminate()
        rest, _ = program.communicate(timeout=30)
    assert program.returncode == 0
    lines = [orjson.loads(line) for line in rest.splitlines() if line.startswith("{")]
    assert [(line["method"], line["stream"], line["status"], line["user_agent"]) for line in lines] == [
        ("PUT", "/s", 201, "asker")
    ]


def test_a_program_that_cannot_write_its_log_says_so_in_one_line(tmp_path: Path) -> None:
    where = tmp_path / "nowhere" / "access.log"
    environ = {**os.environ, "DURABLE_GATEWAY_LOG__SINK": "file", "DURABLE_GATEWAY_LOG__PATH": str(where)}
    command = durable_gateway("serve", "--origin", "http://127.0.0.1:1", "--listen", ":0", "--admin", "127.0.0.1:0")
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    assert ended.stderr == f"durable-gateway: log.path: {where} cannot be written: No such file or directory\n"


# -- its configuration -------------------------------------------------------------------------------------------------


def refusal(tmp_path: Path, text: str) -> str:
    file = tmp_path / "gateway.toml"
    file.write_text(f'[[route]]\norigin = "http://a"\n[log]\n{text}\n', encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_sink_without_its_path_or_url_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, 'sink = "file"') == 'gateway.toml:3: log.path: is needed with sink = "file"'
    assert refusal(tmp_path, 'sink = "stream"') == 'gateway.toml:3: log.stream_url: is needed with sink = "stream"'
    assert refusal(tmp_path, 'stream_url = "http://a/"') == (
        "gateway.toml:4: log.stream_url: expected the URL of a stream such as http://127.0.0.1:4438/logs/edge, "
        "got 'http://a/'"
    )


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    short = refusal(tmp_path, 'partition_key = "s3cret"')
    assert short == "gateway.toml:4: log.partition_key: a key of fewer than 16 characters can be guessed"
    environ = {
        "DURABLE_GATEWAY_ROUTE__DEFAULT__ORIGIN": "http://a",
        "DURABLE_GATEWAY_LOG__PARTITION_KEY": KEY,
        "DURABLE_GATEWAY_LOG__STREAM_AUTHORIZATION": f"Bearer {KEY}",
    }
    loaded = load_config(environ=environ)
    assert loaded.config.log.partition_key.get_secret_value() == KEY
    shown = {setting.key: setting.text for setting in loaded.settings()}
    assert shown["log.partition_key"] == shown["log.stream_authorization"] == '"**********"'
    assert KEY not in f"{shown} {loaded.config!r} {loaded.config.model_dump(mode='json')}"
