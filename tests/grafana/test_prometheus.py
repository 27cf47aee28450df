"""A real Prometheus with the project's rules and queries shows the counts of a gateway under load."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin, start_origin
from grafana.spared import BYTES_SPARED, REQUESTS_SPARED
from tests.certificates import Authority
from tests.fleet.redis_server import redis_server
from tests.fleet.site import SECRET
from tests.grafana.load import EARLY, READERS, ask_everything, live_readers, send, write_plan
from tests.grafana.prometheus import Prometheus, running_prometheus
from tests.grafana.queries import (
    Figure,
    alert_queries,
    alerts,
    annotation_queries,
    evaluate,
    figures,
    is_of_fleet,
    panel_queries,
    sums,
)
from tests.plans import PlanFile
from tests.ports import kept_port
from tests.waiting import eventually

BOUND_S = 60.0
ATTEMPTS = 10
RESTLESS = ("process_", "durable_gateway_event_loop_delay", "durable_gateway_upstream_connection", "up")
"""Series that change without requests: the process's own figures, and ages."""

MOVED = {
    "durable_gateway_cache_bytes",
    "durable_gateway_certificate_expiry_timestamp_seconds",
    "durable_gateway_compression_input_bytes_total",
    "durable_gateway_compression_output_bytes_total",
    "durable_gateway_compressions_total",
    "durable_gateway_connections",
    "durable_gateway_deliveries_total",
    "durable_gateway_delivery_delay_seconds_count",
    "durable_gateway_downstream_bytes_total",
    "durable_gateway_event_loop_delay_seconds_count",
    "durable_gateway_evictions_total",
    "durable_gateway_first_byte_seconds_count",
    "durable_gateway_followed_streams",
    "durable_gateway_origin_up",
    "durable_gateway_plan_byte_hit_ratio",
    "durable_gateway_plan_hit_ratio",
    "durable_gateway_plan_pinned_bytes",
    "durable_gateway_plan_pinned_limit_bytes",
    "durable_gateway_plan_pinned_streams",
    "durable_gateway_plan_taken_timestamp_seconds",
    "durable_gateway_plan_unmatched_entries",
    "durable_gateway_plan_unstored_bytes_total",
    "durable_gateway_plan_unstored_streams",
    "durable_gateway_plan_warmed_bytes_total",
    "durable_gateway_request_duration_seconds_count",
    "durable_gateway_requests_total",
    "durable_gateway_response_bytes_total",
    "durable_gateway_response_saved_bytes_total",
    "durable_gateway_store_limit_bytes",
    "durable_gateway_subscribers",
    "durable_gateway_tape_blocks",
    "durable_gateway_tape_bytes",
    "durable_gateway_tapes",
    "durable_gateway_tls_handshake_failures_total",
    "durable_gateway_tls_handshakes_total",
    "durable_gateway_upstream_bytes_total",
    "durable_gateway_upstream_connection_mean_seconds",
    "durable_gateway_upstream_connection_oldest_seconds",
    "durable_gateway_upstream_connections",
    "durable_gateway_upstream_failures_total",
    "durable_gateway_upstream_first_byte_seconds_count",
    "durable_gateway_upstream_replies_total",
    "durable_gateway_upstream_requests_total",
    "durable_gateway_upstream_retries_total",
}
"""Series that this load is meant to change."""


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


class Stage(NamedTuple):
    """A gateway at rest, and a Prometheus that has scraped it since."""

    gateway: RunningGateway
    origin: RunningOrigin
    requests_before: int
    """Requests to the origin from before the gateway started."""
    prometheus: Prometheus
    own: list[Figure]
    at: float
    """Time of the scrape at rest (Unix seconds)."""

    def of(self, name: str) -> float:
        return sum(figure.value for figure in self.own if figure.name == name)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    origin = await start_origin()
    authority = Authority(tmp_path)
    pair = authority.issue("localhost", days=90)
    plan = PlanFile(tmp_path / "plan.json")
    write_plan(plan)
    config = GatewayConfig.for_origin(
        origin.url,
        file=str(plan.path),
        warm_s=BOUND_S,
        admin="127.0.0.1:0",
        cache_bytes=400_000,
        live_linger_s=0.0,
        shutdown_timeout_s=1.0,
        store={"path": str(tmp_path / "store")},
        rate_limits=[{"name": "reads", "requests_per_s": 1_000_000}],
        listeners=[{"address": "127.0.0.1:0"}, {"address": "127.0.0.1:0", "tls": {"certificates": [pair.as_config()]}}],
    )
    connector = TCPConnector(limit=0)
    async with ClientSession(timeout=ClientTimeout(total=BOUND_S), connector=connector) as session:
        assert await send(session, "PUT", f"{origin.url}{EARLY}", b'["early"]') == 201
        requests_before = origin.origin.counters.total_requests
        gateway = await start_gateway(config)
        admin = gateway.admin_url.removeprefix("http://")
        async with running_prometheus(tmp_path, admin, session) as prometheus:
            # Rates begin with the second sample, so the zeros have to be scraped first.
            await prometheus.scrapes(2)
            await ask_everything(session, gateway.gateway_url, origin.origin.faults)
            secure = int(gateway.listeners.urls[-1].rpartition(":")[2])
            assert await send(session, "GET", f"http://127.0.0.1:{secure}/closed?offset=-1") == 400
            async with session.get(f"https://localhost:{secure}/closed?offset=-1", ssl=authority.client()) as reply:
                assert reply.status == 200
            async with live_readers(session, gateway.gateway_url):
                own, at = await at_rest(session, gateway, prometheus)
                yield Stage(gateway, origin, requests_before, prometheus, own, at)
        await gateway.stop()
    await origin.stop(grace_s=0)


async def at_rest(
    session: ClientSession, gateway: RunningGateway, prometheus: Prometheus
) -> tuple[list[Figure], float]:
    """The gateway's figures, and the time of a scrape before and after which they were the same."""
    instance = gateway.admin_url.removeprefix("http://")

    async def look() -> list[Figure]:
        async with session.get(f"{gateway.admin_url}/metrics") as reply:
            assert reply.status == 200
            return figures(await reply.text(), instance)

    def restful(seen: list[Figure]) -> list[Figure]:
        return [figure for figure in seen if not figure.name.startswith(RESTLESS)]

    warming = gateway.planned.warming
    assert warming is not None
    for _ in range(ATTEMPTS):
        before = await look()
        # The first scrape that ends after this look may have begun before it.
        at = await prometheus.scrapes(2)
        after = await look()
        if warming.is_over and restful(before) == restful(after):
            return after, at
    raise AssertionError("the figures do not come to rest")


async def test_prometheus_shows_the_gateways_counts(stage: Stage) -> None:
    seen: set[str] = set()
    alone = [asked for asked in panel_queries() if not is_of_fleet(asked.query)]
    for asked in (*alone, *alert_queries()):
        for one in sums(asked.query):
            if not one.name.startswith(RESTLESS):
                shown = await stage.prometheus.query(one.query, stage.at)
                assert shown == pytest.approx(evaluate(one, stage.own)), (asked.where, one.query)
                seen.add(one.name)
    counted = {figure.name for figure in stage.own if figure.name.startswith("durable_gateway_")}
    assert len(seen) > 20
    assert seen <= counted

    # The gateway's counts are those of the origin and of the clients.
    counters = stage.origin.origin.counters
    assert stage.of("durable_gateway_upstream_requests_total") == counters.total_requests - stage.requests_before
    assert stage.of("durable_gateway_subscribers") == 2 * READERS
    assert stage.of("durable_gateway_followed_streams") == 1
    assert stage.of("durable_gateway_upstream_failures_total") == 1
    assert stage.of("durable_gateway_ready") == 1

    # Over everything since the zeros, the headline's queries agree with the gateway's own shares.
    tally = stage.gateway.sample().tally
    assert tally.requests_spared is not None
    for query, share in ((REQUESTS_SPARED, tally.requests_spared), (BYTES_SPARED, tally.bytes_spared)):
        asked_now = query.replace("$instance", ".*").replace("$route", ".*").replace("$__rate_interval", "10m")
        (shown_share,) = (await stage.prometheus.query(asked_now, stage.at)).values()
        assert shown_share == pytest.approx(share, abs=0.03), query

    for ratio in ("hit", "byte_hit"):
        name = f"durable_gateway_plan_{ratio}_ratio"
        assert {one.labels["kind"] for one in stage.own if one.name == name and one.value} == {"expected", "actual"}

    # Every panel has data, and values where the load causes some.
    assert {name for name in counted if stage.of(name)} >= MOVED
    for asked in alone:
        found = await stage.prometheus.query(asked.query, stage.at)
        assert found, asked
        parts = [evaluate(one, stage.own) for one in sums(asked.query)]
        if all(part and any(part.values()) for part in parts):
            assert any(value > 0 and math.isfinite(value) for value in found.values()), (asked, found)

    # Prometheus understands the annotations' queries; the start is an annotation.
    marks = {asked.where: await stage.prometheus.query(asked.query, stage.at) for asked in annotation_queries()}
    (started_ms,) = marks["overview: Starts"].values()
    assert 0 < started_ms / 1000 <= stage.at

    # Every alert is evaluated, has data, and is silent.
    groups = (await stage.prometheus.get("rules"))["groups"]
    loaded = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(loaded) == {rule["alert"] for rule in alerts()}
    for name, rule in loaded.items():
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), name
        assert not any(alert["state"] == "firing" for alert in rule["alerts"]), name
    for asked in alert_queries():
        found = await stage.prometheus.query(asked.query, stage.at)
        assert found, asked
        assert set(found.values()) <= {0.0, 1.0}, asked


async def test_the_fleets_dashboard_shows_a_member_that_is_lost(tmp_path: Path) -> None:
    origin = await start_origin()
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(redis_server(tmp_path))
        session = await stack.enter_async_context(ClientSession(timeout=ClientTimeout(total=BOUND_S)))
        members = {}
        for name in "ab":
            port = stack.enter_context(kept_port())
            fleet = {"name": name, "listen": f"127.0.0.1:{port}", "members_redis": True, "redis": redis.url}
            config = GatewayConfig.for_origin(
                origin.url,
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                node_name=name,
                shutdown_timeout_s=1.0,
                fleet={**fleet, "secret": SECRET},
            )
            members[name] = await start_gateway(config)
        admin = members["a"].admin_url.removeprefix("http://")
        prometheus = await stack.enter_async_context(running_prometheus(tmp_path, admin, session))

        async def shown(series: str) -> set[float]:
            return set((await prometheus.query(f"durable_gateway_fleet_{series}")).values())

        async def is_shared() -> bool:
            return await shown("member_share") == {1.0}

        await eventually(is_shared, within_s=BOUND_S, look_s=0.2)
        for number in range(16):
            url = f"{members['a'].gateway_url}/s/{number}"
            assert await send(session, "PUT", url, b"[1]", {"Stream-Closed": "true"}) == 201
            assert await send(session, "GET", f"{url}?offset=-1") == 200
        at = await prometheus.scrapes(2)
        async with session.get(f"{members['a'].admin_url}/metrics") as reply:
            own = figures(await reply.text(), admin)
        for asked in panel_queries():
            if is_of_fleet(asked.query) and "_fleet_dns_" not in asked.query:
                assert await prometheus.query(asked.query, at), asked
                for one in sums(asked.query):
                    assert await prometheus.query(one.query, at) == pytest.approx(evaluate(one, own)), asked
        assert min(await shown("requests_total")) > 0

        await members["b"].stop()

        async def is_lost() -> bool:
            return await shown("member_share") == {0.0} and await shown("member_losses_total") == {1.0}

        await eventually(is_lost, within_s=BOUND_S, look_s=0.2)
        await members["a"].stop()
    await origin.stop(grace_s=0)
