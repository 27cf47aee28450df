"""Origins on the admin port: the JSON, the verbose probe, the series, and the effect of a reload."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from gateway.config.gateway import GatewayConfig
from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from tests.ops.admin.conftest import Bench, Start


async def samples(bench: Bench) -> dict[tuple[str, ...], float]:
    """The series of origins: value by name and labels, without the origin's own label."""
    told = await bench.ask("GET", "/metrics")
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "origin")): sample.value
        for family in text_string_to_metric_families(told.body)
        for sample in family.samples
        if "origin" in sample.labels
    }


async def test_a_healthy_origin(bench: Bench) -> None:
    await bench.put("/s")
    (origin,) = (await bench.get("/api/origins"))["origins"]
    assert origin == {
        "origin": bench.gateway.config.routes[0].origin,
        "routes": ["default"],
        "weight": 1,
        "state": "closed",
        "is_ejected": False,
        "reason": None,
        "since_s": 0,
        "retry_in_s": None,
        "requests": 1,
        "failures": 0,
        "refused": 0,
        "in_flight": 0,
        "last_heard_s": 0,
    }
    assert (
        await bench.ask("GET", "/readyz?verbose")
    ).body == f"ready\n[+] origin {origin['origin']} answered 0 s ago\n"
    assert (await bench.ask("GET", "/readyz")).body == "ready\n"
    series = await samples(bench)
    assert series["durable_gateway_origin_up",] == 1
    assert series["durable_gateway_origin_requests_total",] == 1
    states = {state: series["durable_gateway_origin_breaker_state", state] for state in ("closed", "open", "half_open")}
    assert states == {"closed": 1, "open": 0, "half_open": 0}


async def test_the_verbose_probe_states_only_known_facts_of_an_origin(bench: Bench, start: Start) -> None:
    dark = await start("http://127.0.0.1:1", breaker_failures=3)
    where = "origin http://127.0.0.1:1"
    assert (await dark.ask("GET", "/readyz?verbose")).body == f"ready\n[+] {where} has not been asked yet\n"
    async with dark.session.head(f"{dark.gateway.gateway_url}/s"):
        pass
    assert (await dark.ask("GET", "/readyz?verbose")).body == f"ready\n[-] {where} has not answered yet\n"


async def test_an_origin_that_is_down_leaves_the_gateway_ready(bench: Bench, start: Start) -> None:
    dark = await start("http://127.0.0.1:1", breaker_failures=3, breaker_open_s=8, breaker_longest_open_s=8)
    for _ in range(5):
        async with dark.session.head(f"{dark.gateway.gateway_url}/s"):
            pass
    dark.clock.advance(2)
    (origin,) = (await dark.get("/api/origins"))["origins"]
    assert (origin["state"], origin["reason"], origin["since_s"]) == ("open", "connection refused", 2)
    assert (origin["requests"], origin["failures"], origin["refused"]) == (3, 3, 2)
    assert 2 <= origin["retry_in_s"] <= 6
    assert origin["last_heard_s"] is None
    told = await dark.ask("GET", "/readyz?verbose")
    assert told.status == 200
    assert re.fullmatch(
        r"ready\n\[-\] origin http://127\.0\.0\.1:1 open for 2 s: connection refused, next probe in \d\.\d s\n",
        told.body,
    )
    series = await samples(dark)
    assert series["durable_gateway_origin_up",] == 0
    assert series["durable_gateway_origin_refused_total",] == 2
    assert series["durable_gateway_origin_failures_total",] == 3
    assert series["durable_gateway_origin_breaker_state", "open"] == 1
    assert series["durable_gateway_origin_breaker_transitions_total", "open"] == 1
    totals = await totals_of(dark)
    # A refused request was not sent, and is not a failure of the origin.
    assert totals["durable_gateway_upstream_requests_total"] == 3
    assert totals["durable_gateway_upstream_failures_total"] == 3


async def totals_of(bench: Bench) -> dict[str, float]:
    told = await bench.ask("GET", "/metrics")
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(told.body):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


async def test_only_the_verbose_probe_needs_the_token(start: Start) -> None:
    bench = await start("http://127.0.0.1:1", environ={ADMIN_TOKEN_VARIABLE: "sesame"})
    assert (await bench.ask("GET", "/readyz")).status == 200
    assert (await bench.ask("GET", "/readyz?verbose")).status == 401
    assert (await bench.ask("GET", "/readyz?verbose", Authorization="Bearer sesame")).status == 200


async def test_origins_come_and_go_with_a_reload(bench: Bench, start: Start) -> None:
    url = str(bench.gateway.config.routes[0].origin)
    config = _configured([url])
    reloaded = await start(config=config, load=lambda: _configured([url, "http://127.0.0.1:1"], weights=(3, 1)))
    await reloaded.put("/reloaded")
    assert (await reloaded.post("/api/reload", {}))["changed"] == ["route.default.origins"]
    shown = (await reloaded.get("/api/origins"))["origins"]
    assert [(one["origin"], one["weight"], one["requests"]) for one in shown] == [
        (url, 3, 1),
        ("http://127.0.0.1:1", 1, 0),
    ]


async def test_a_reload_that_adds_an_origin_keeps_the_tapes(bench: Bench, start: Start) -> None:
    url = str(bench.gateway.config.routes[0].origin)
    reloaded = await start(config=_configured([url]), load=lambda: _configured([url, "http://127.0.0.1:1"]))
    await reloaded.put("/kept", is_closed=True)
    await reloaded.warm("/kept")
    await reloaded.post("/api/reload", {})
    status, body, how = await reloaded.read("/kept")
    assert (status, body, "; hit" in how) == (200, b"hello", True)


async def test_credentials_for_origins_are_neither_shown_nor_taken_where_they_are_missing(
    bench: Bench, start: Start
) -> None:
    url = str(bench.gateway.config.routes[0].origin)
    settings = {"origin_credentials": {"header": "X-Key", "environment": "ORIGIN_KEY"}}
    environ = {"ORIGIN_KEY": "a-secret-of-origins"}
    load = [GatewayConfig.for_origin(url, listen="127.0.0.1:0", admin="127.0.0.1:0", **settings)]
    shown = await start(config=load[0], load=lambda: load[0], environ=environ)
    await shown.put("/s")
    for path in ("/api/config", "/api/origins", "/metrics", "/api/overview", "/api/streams", "/readyz?verbose"):
        assert "a-secret-of-origins" not in str((await shown.ask("GET", path)).body), path
    assert (await shown.get("/api/config"))["routes"][0]["origin_credentials"] == {
        "header": "x-key", "file": "", "environment": "ORIGIN_KEY"
    }  # fmt: skip
    del environ["ORIGIN_KEY"]
    told = await shown.ask("POST", "/api/reload", {})
    assert told.status == 422
    assert told.body == {"error": "route.default.origin_credentials.environment: ORIGIN_KEY: is not set"}


def _configured(urls: list[str], weights: tuple[int, ...] = (1, 1)) -> GatewayConfig:
    origins = [{"url": url, "weight": weight} for url, weight in zip(urls, weights, strict=False)]
    return GatewayConfig.for_origin(
        "", listen="127.0.0.1:0", admin="127.0.0.1:0", origin=None, origins=origins, health_check={"interval_s": 0}
    )
