"""The C clients against a real gateway: they find their readers served, and say so in the words that are read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import start_origin
from gateway.origin.s2.app import start_s2_origin
from loadtest.bench import live_client, tools
from loadtest.bench.children import free_ports
from tests.debian import program
from tests.ports import kept_port

PATIENCE_S = 60.0
SHORT = ("--seconds", "0.6", "--warmup", "0.1")


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    program("cc", "build-essential")
    return tools.live_clients(tmp_path_factory.mktemp("clients"))


@pytest.fixture
async def reading() -> AsyncIterator[list[str]]:
    """Where to read, and where to be the origin of what is read."""
    with kept_port() as origin:
        gateway = await start_gateway(
            GatewayConfig.for_origin(
                f"http://127.0.0.1:{origin}", listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1
            )
        )
        port = gateway.gateway_url.rpartition(":")[2]
        yield ["--port", port, "--path", "/s", "--origin", str(origin)]
        await gateway.stop()


@pytest.fixture
async def s2_reading() -> AsyncIterator[list[str]]:
    """The same for an S2 stream."""
    origin = await start_s2_origin()
    basin = origin.origin.account.create_basin("bench-basin", {}, 0.0)
    basin.create_stream("s", {}, 0.0)
    gateway = await start_gateway(
        GatewayConfig.for_origin(
            origin.url,
            protocol="s2",
            origin_http="2",
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            shutdown_timeout_s=1,
        )
    )
    port, path = gateway.gateway_url.rpartition(":")[2], "/v1/streams/s/records"
    publishing = ["--basin", "bench-basin", "--post", str(origin.port), "--post-path", path]
    yield ["--port", port, "--path", f"{path}?tail_offset=0", *publishing]
    await gateway.stop()
    await origin.stop(grace_s=0)


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
    # Answers count from when each reader has had its first.
    assert report["messages"] >= report["answers"] >= 20
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


async def test_streams_of_few_connections_are_read(clients: dict[str, Path], reading: list[str]) -> None:
    report = await said(
        clients["multiplex"], *reading, "--subscribers", "10", "--streams", "4", "--window", "4", *SHORT
    )
    assert report["deliveries"] > 0
    assert report["upstream_live"] == 1


@pytest.mark.parametrize(
    "command", [("live", "fanout"), ("multiplex", "--streams", "4")], ids=["server-sent events", "sessions"]
)
async def test_records_of_s2_are_counted_where_they_arrive(
    clients: dict[str, Path], s2_reading: list[str], command: tuple[str, ...]
) -> None:
    argv = [*command[1:], *s2_reading, "--subscribers", "10", "--window", "4", "--batch", "2", *SHORT]
    report = await said(clients[command[0]], *argv)
    assert report["deliveries"] > 0
    assert report["p99_ms"] >= report["p50_ms"] > 0


async def test_conversations_are_appended_to_and_followed(clients: dict[str, Path], tmp_path: Path) -> None:
    origin = await start_origin()
    gateway = await start_gateway(
        GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1)
    )
    sections = tmp_path / "sections"
    sections.write_bytes(b"".join(b"Host: bench\r\nUser-Agent: %d\r\n\r\n" % number for number in range(9)))
    argv = ["--port", gateway.gateway_url.rpartition(":")[2], "--path", "/c", "--sections", str(sections)]
    argv += ["--conversations", "3", "--readers", "2", "--gap-us", "20000"]
    try:
        report = await said(clients["converse"], *argv, *SHORT)
    finally:
        await gateway.stop()
        await origin.stop(grace_s=0)
    assert report["appends"] > 0
    assert report["deliveries"] > 0
    assert report["p99_ms"] >= report["p50_ms"] > 0


async def test_idle_readers_are_counted_and_let_go(clients: dict[str, Path], reading: list[str]) -> None:
    report = await said(clients["live"], "idle", *reading, "--mode", "longpoll", "--subscribers", "10")
    assert report["open"] == 10


async def test_a_client_says_why_it_failed(clients: dict[str, Path]) -> None:
    [nobody] = free_ports(1)
    with pytest.raises(AssertionError, match=f"cannot connect to port {nobody}"):
        await said(clients["poll"], "--port", str(nobody), "--post", str(nobody), "--subscribers", "1")
