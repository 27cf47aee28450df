"""The C clients against a real gateway: they find their readers served, and say so in the words that are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from loadtest.bench import live_client, tools
from loadtest.bench.children import free_ports
from tests.debian import program

PATIENCE_S = 60.0
SHORT = ("--seconds", "0.2", "--warmup", "0.1")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    program("cc", "build-essential")
    return tools.live_clients(tmp_path_factory.mktemp("clients"))


@pytest.fixture
async def reading() -> AsyncIterator[list[str]]:
    """Where to read, and where to be the origin of what is read."""
    [origin] = free_ports(1)
    gateway = await start_gateway(
        GatewayConfig.for_origin(
            f"http://127.0.0.1:{origin}", listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1
        )
    )
    port = gateway.gateway_url.rpartition(":")[2]
    yield ["--port", port, "--path", "/s", "--origin", str(origin)]
    await gateway.stop()


async def said(*command: str | Path) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    output, errors = await asyncio.wait_for(process.communicate(b""), PATIENCE_S)
    assert process.returncode == 0, errors.decode()
    report: dict[str, float] = orjson.loads(output)
    return report


async def test_long_polls_read_on(clients: dict[str, Path], reading: list[str]) -> None:
    report = await said(clients["poll"], *reading, "--subscribers", "20", "--gap-us", "5000", *SHORT)
    assert report["messages"] >= report["answers"] > 20
    assert report["upstream_live"] == 1
    assert live_client.rate(report, int(report["answers"])).value > 0


async def test_readers_join_and_leave(clients: dict[str, Path], reading: list[str]) -> None:
    report = await said(clients["join"], *reading, "--concurrency", "3", *SHORT)
    assert report["joins"] > 0
    assert report["upstream_live"] == 1


async def test_events_are_counted_where_they_arrive(clients: dict[str, Path], reading: list[str]) -> None:
    report = await said(clients["live"], "fanout", *reading, "--subscribers", "10", "--window", "4", *SHORT)
    assert report["deliveries"] > 0
    assert report["p99_ms"] >= report["p50_ms"] > 0


async def test_idle_readers_are_counted_and_let_go(clients: dict[str, Path], reading: list[str]) -> None:
    report = await said(clients["live"], "idle", *reading, "--mode", "longpoll", "--subscribers", "10")
    assert report["open"] == 10


async def test_a_client_says_why_it_failed(clients: dict[str, Path]) -> None:
    [nobody] = free_ports(1)
    with pytest.raises(AssertionError, match=f"cannot connect to port {nobody}"):
        await said(clients["poll"], "--port", str(nobody), "--post", str(nobody), "--subscribers", "1")
