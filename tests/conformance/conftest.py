"""The servers that the conformance suite runs against, each started as the program that a user would start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.suite import ALL, LONG_POLL_TIMEOUT_S, MENDED, SHORT, Found, Run, named, run_conformance
from tests.effort import IS_LONG
from tests.node_tools import node_packages, node_tools
from tests.served import durable_gateway, forked_gateway, served
from tests.transports import Trust, made


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
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    """The certificate of the gateway over TLS, and the authority that has signed it."""
    return made(tmp_path_factory.mktemp("trust"))


@pytest.fixture(scope="session")
def gateway_over_tls(memory_origin: str, trust: Trust, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a gateway over TLS in front of the in-memory origin."""
    config = tmp_path_factory.mktemp("tls") / "gateway.toml"
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
    with served(forked_gateway("serve", "--config", str(config)), "gateway", "admin") as urls:
        yield urls["gateway"]


@pytest.fixture(scope="session")
def found(
    request: pytest.FixtureRequest,
    reference_server: str,
    gateway_before_reference_server: str,
    memory_origin: str,
    gateway_before_memory_origin: str,
    gateway_over_tls: str,
    trust: Trust,
) -> Found:
    """The results of every run, by the server."""
    over_tls = SHORT if request.config.getoption("--transports") == "some" else ALL
    runs = {
        "gateway before reference server": Run(gateway_before_reference_server),
        "reference server": Run(reference_server, named(MENDED), and_failed=True),
        "gateway before origin": Run(gateway_before_memory_origin),
        **({"origin": Run(memory_origin)} if IS_LONG else {}),
        "gateway over TLS, http/1.1": Run(gateway_over_tls, over_tls),
        "gateway over TLS, h2": Run(gateway_over_tls, over_tls, http2=True),
    }
    return dict(zip(runs, run_conformance(*runs.values(), authority=trust.authority), strict=True))
