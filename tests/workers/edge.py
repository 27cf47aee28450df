"""A gateway with workers in the place of one that runs in the tests' own process.

The tests of clients and SDKs start their gateways by `start_edge`.  It has one process, unless the environment variable
`DURABLE_GATEWAY_SERVER__WORKERS` asks for more, as it does of every gateway that is started as a program.
"""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Final

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.ops.figures import Total
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from tests.workers.process import GatewayProcess, samples

WORKERS: Final = int(os.environ.get("DURABLE_GATEWAY_SERVER__WORKERS", "1"))
_BOUND_S: Final = 20.0


class ProcessMetrics:
    """The metrics of a gateway with workers, as the methods of `gateway.ops.metrics.Metrics` give them."""

    def __init__(self, admin_url: str) -> None:
        self._admin_url = admin_url

    def requests(self, mode: Mode, outcome: Outcome) -> Total:
        """The number of requests with this mode and outcome."""
        return self._total("durable_gateway_requests_total", f'mode="{mode.value}"', f'outcome="{outcome.value}"')

    def upstream_requests(self, mode: Mode) -> Total:
        """The number of requests sent to the origin."""
        return self._total("durable_gateway_upstream_requests_total", f'mode="{mode.value}"')

    def _total(self, name: str, *labels: str) -> Total:
        def value() -> int:
            found = samples(fetched(f"{self._admin_url}/metrics"))
            counts = (text for one, of, text in found if one == name and all(label in of for label in labels))
            return int(sum(map(float, counts)))

        return Total(value)


class EdgeProcess:
    """A gateway with workers."""

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self.gateway_url = process.url
        self.metrics = ProcessMetrics(process.admin_url)

    def is_followed(self, path: str) -> bool:
        """Whether a stream has live readers, and its tail is confirmed."""
        rows = json.loads(fetched(f"{self._process.admin_url}/api/streams"))["streams"]
        return any(row["path"] == path and row["readers"] and row["is_followed"] for row in rows)

    async def stop(self) -> None:
        """Drain, and end all processes; AssertionError if one has said anything of an exception."""
        await self._process.stop()


async def start_edge(config: GatewayConfig, workers: int = WORKERS) -> RunningGateway | EdgeProcess:
    """Start a gateway with as many workers as the environment asks for.  `stop` is owed."""
    if workers == 1:
        return await start_gateway(config)
    return EdgeProcess(await GatewayProcess.start(config, workers))


def fetched(url: str) -> str:
    """The answer to a GET.  It blocks the loop, and the gateway is another process."""
    with urllib.request.urlopen(url, timeout=_BOUND_S) as reply:
        text: str = reply.read().decode()
        return text
