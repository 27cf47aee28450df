"""A real gateway before a real origin, for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from pyspark_durable_streams.client import Client, ClientConfig
from tests.served import forked_dev_gateway, served


@pytest.fixture(scope="module")
def urls() -> Iterator[Mapping[str, str]]:
    """Those of the gateway, its admin port, and the origin."""
    with served(forked_dev_gateway(), "gateway", "admin", "origin") as found:
        yield found


@pytest.fixture
def gateway(urls: Mapping[str, str]) -> Iterator[Client]:
    """A client of the gateway."""
    client = Client(ClientConfig(urls["gateway"]))
    yield client
    client.close()
