"""The servers that the conformance suite runs against, each started as the program that a user would start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.suite import LONG_POLL_TIMEOUT_S, SHORT, run_conformance
from tests.node_tools import node_packages, node_tools
from tests.served import durable_gateway, served
from tests.transports import made

AT_ONCE = 2
"""Concurrent runs.  The suite allows expiring streams half a second, which more runs would use up."""


@pytest.fixture(scope="session")
def reference_server() -> Iterator[str]:
    """URL of the real `@durable-streams/server`."""
    tools = node_tools()
    environment = {**tools.environment, "REFERENCE_LONG_POLL_MS": str(int(LONG_POLL_TIMEOUT_S * 1000))}
    command = [tools.node, "reference_server.mjs"]
    with served(command, "reference", environment=environment, cwd=node_packages()) as urls:
        yield urls["reference"]


@pytest.fixture(scope="session")
def memory_origin() -> Iterator[str]:
    """URL of the in-memory origin."""
    command = durable_gateway("origin", "--listen", "127.0.0.1:0", "--long-poll-timeout", str(LONG_POLL_TIMEOUT_S))
    with served(command, "origin") as urls:
        yield urls["origin"]


@pytest.fixture(scope="session")
def gateway_before_memory_origin(memory_origin: str) -> Iterator[str]:
    """URL of a gateway in front of the in-memory origin, configured by flags alone."""
    command = durable_gateway(
        *("serve", "--origin", memory_origin),
        *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--long-poll-timeout", str(LONG_POLL_TIMEOUT_S)),
    )
    with served(command, "gateway", "admin") as urls:
        yield urls["gateway"]


@pytest.fixture(scope="session")
def gateway_before_reference_server(reference_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway in front of the reference server; the gateway answers CORS itself."""
    config = tmp_path_factory.mktemp("gateway") / "gateway.toml"
    config.write_text(
        f"""\
[server]
listen = "127.0.0.1:0"
admin = "127.0.0.1:0"

[[route]]
origin = "{reference_server}"
long_poll_timeout_s = {LONG_POLL_TIMEOUT_S}

[route.cors]
allow_origins = ["*"]
"""
    )
    with served(durable_gateway("serve", "--config", str(config)), "gateway", "admin") as urls:
        yield urls["gateway"]


@pytest.fixture(scope="session")
def results(
    memory_origin: str, gateway_before_memory_origin: str, gateway_before_reference_server: str
) -> Iterator[Callable[[str], dict[str, bool]]]:
    """Gives the results of the server at a URL.  A run sleeps for two thirds of its time."""
    urls = (gateway_before_reference_server, gateway_before_memory_origin, memory_origin)
    with ThreadPoolExecutor(AT_ONCE) as runs:
        running = {url: runs.submit(run_conformance, url) for url in urls}
        yield lambda url: running[url].result()


@pytest.fixture(scope="session", params=[False, True], ids=["http/1.1", "h2"])
def results_over_tls(
    request: pytest.FixtureRequest, memory_origin: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bool]:
    """Results of a gateway over TLS: all tests if all transports are asked for, otherwise those about connections."""
    folder = tmp_path_factory.mktemp("tls")
    trust = made(folder)
    config = folder / "gateway.toml"
    config.write_text(
        f"""\
[server]
admin = "127.0.0.1:0"

[[listener]]
address = "127.0.0.1:0"

[listener.tls]
certificates = [{{ certificate = "{trust.pair.certificate}", key = "{trust.pair.key}" }}]

[[route]]
origin = "{memory_origin}"
long_poll_timeout_s = {LONG_POLL_TIMEOUT_S}
"""
    )
    names = SHORT if request.config.getoption("--transports") == "some" else None
    with served(durable_gateway("serve", "--config", str(config)), "gateway", "admin") as urls:
        return run_conformance(urls["gateway"], trust.authority, names, is_http_2=request.param)
