"""A real Prometheus with the project's own rules and scrape configuration, pointed at one gateway."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientError, ClientSession

from tests.debian import program
from tests.grafana.queries import GRAFANA, Series
from tests.waiting import eventually

READY_S = 20.0
EXIT_S = 10.0
INTERVAL_S = 0.5


class Prometheus:
    """A client of one that runs."""

    def __init__(self, url: str, session: ClientSession) -> None:
        self._url = url
        self._session = session

    async def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; AssertionError with its words where it refuses."""
        async with self._session.get(f"{self._url}/api/v1/{path}", params=parameters) as reply:
            answer = await reply.json()
        assert answer["status"] == "success", (parameters, answer["error"])
        return answer["data"]

    async def query(self, query: str, at: float | None = None) -> Series:
        """The values of an expression, now or at a time (Unix seconds), without the names of series."""
        # A sample's own millisecond, written as a decimal, may be cut to the one before it.
        when = {} if at is None else {"time": f"{at + 0.001:.3f}"}
        data = await self.get("query", query=query, **when)
        assert data["resultType"] == "vector", query
        return {
            tuple(sorted((name, value) for name, value in sample["metric"].items() if name != "__name__")): float(
                sample["value"][1]
            )
            for sample in data["result"]
        }

    async def is_ready(self) -> bool:
        try:
            async with self._session.get(f"{self._url}/-/ready") as reply:
                return reply.status == 200
        except ClientError:
            return False

    async def scraped_at(self) -> float:
        """When the gateway was last scraped (Unix seconds); 0 before the first time."""
        # The time of a sample is told of a plain series only; of anything computed it is the time of the question.
        return max((await self.query('timestamp(up{job="durable-gateway"})')).values(), default=0.0)

    async def scrapes(self, count: int) -> float:
        """Wait for so many further scrapes; when the last of them began."""
        latest = await self.scraped_at()

        async def is_scraped_anew() -> bool:
            return await self.scraped_at() > latest

        for _ in range(count):
            await eventually(is_scraped_anew, within_s=READY_S, look_s=INTERVAL_S / 5)
            latest = await self.scraped_at()
        return latest


def _configured(folder: Path, admin: str) -> Path:
    """The checked-in configuration with another target, scraping more often."""
    shutil.copytree(GRAFANA / "rules", folder / "rules")
    (folder / "targets").mkdir()
    (folder / "targets" / "durable-gateway.yml").write_text(yaml.safe_dump([{"targets": [admin]}]))
    text = (GRAFANA / "prometheus.yml").read_text()
    assert text.count("_interval: 15s") == 2
    path = folder / "prometheus.yml"
    path.write_text(text.replace("_interval: 15s", f"_interval: {int(INTERVAL_S * 1000)}ms"))
    return path


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@asynccontextmanager
async def running_prometheus(folder: Path, admin: str, session: ClientSession) -> AsyncIterator[Prometheus]:
    """One that scrapes the gateway whose admin port is `admin` (host:port), until the block ends."""
    address = f"127.0.0.1:{_free_port()}"
    command = [
        str(program("prometheus", "prometheus")),
        f"--config.file={_configured(folder, admin)}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    said = folder / "prometheus.log"
    with said.open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - it begins at once
    try:
        prometheus = Prometheus(f"http://{address}", session)

        async def is_ready() -> bool:
            assert process.poll() is None, said.read_text()
            return await prometheus.is_ready()

        await eventually(is_ready, within_s=READY_S, look_s=0.05)
        yield prometheus
    finally:
        process.terminate()
        try:
            process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
