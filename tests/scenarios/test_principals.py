"""Principals and tenants: limits of their own, usage in log and metrics, and one name that two issuers have given."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from gateway.auth.remembered_verdicts import Revocation
from gateway.origin.app import RunningOrigin
from gateway.origin.faults import Faults
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.credentials import ISSUER, bearer, jwt_rule, signed, signed_rule
from tests.scenarios.hostile import Asked, part_of_stream
from tests.scenarios.noting import log_lines
from tests.waiting import eventually

pytestmark = pytest.mark.judging

OTHER = "https://other.test"
CREATE = bearer("writer", streams=["* /**"])
CLOSED = {"Content-Type": "text/plain", "Stream-Closed": "true", **CREATE}


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    rules = [
        {"by": "public", "streams": ["/public/**"]},
        jwt_rule(tmp_path, tenant_claim="org"),
        jwt_rule(tmp_path, issuer=OTHER, tenant_claim="org"),
        signed_rule(tmp_path),
    ]
    return {"auth": rules, "credentials": "shared"}


def limit(**table: Any) -> dict[str, Any]:
    return {"rate_limits": [{"name": "fair", **table}]}


async def statuses(edge: Edge, target: str, headers: dict[str, str], count: int) -> list[int]:
    wire = await edge.wire()
    found = []
    for _ in range(count):
        await wire.ask(target, headers)
        found.append((await bounded(wire.answer("GET"))).status)
    return found


@pytest.mark.http_2
@pytest.mark.parametrize("per", ["principal", "tenant"])
async def test_requests_are_limited_by_principal_or_tenant_whichever_way_they_are_answered(
    start: Start, origin: RunningOrigin, settings: dict[str, Any], per: str
) -> None:
    edge = await start(origin.url, **settings, **limit(per=per, requests_per_s=0.001, burst=4))
    for path in ("/shared/s", "/public/s"):
        assert (await edge.send("PUT", path, CLOSED, b"x")).status == 201
    ada = bearer("ada", org="acme")
    assert await statuses(edge, "/shared/s", ada, 6) == [200] * 4 + [429] * 2
    # Another token of hers has nothing left, either.
    assert await statuses(edge, "/shared/s", bearer("ada", org="acme", jti="2"), 1) == [429]
    colleague = [429] * 2 if per == "tenant" else [200] * 2
    assert await statuses(edge, "/shared/s", bearer("bob", org="acme"), 2) == colleague
    assert await statuses(edge, "/shared/s", bearer("ada", iss=OTHER, org="acme"), 5) == [200] * 4 + [429]
    # A limit per principal or tenant does not bound what has none.
    assert await statuses(edge, "/public/s", {}, 6) == [200] * 6


@pytest.mark.http_2
async def test_live_reads_are_limited_by_principal_until_they_end(
    start: Start, origin: RunningOrigin, settings: dict[str, Any]
) -> None:
    edge = await start(origin.url, **settings, **limit(per="principal", live_reads=2))
    created = await edge.send("PUT", "/shared/s", {"Content-Type": "text/plain", **CREATE}, b"x")
    target = f"/shared/s?live=long-poll&offset={created.next_offset}"
    live = edge.gateway.routes.verdicts.live_reads
    for count in (1, 2):
        await edge.begin(target, bearer("ada"))
        await eventually(lambda count=count: len(live()) == count)
    assert (await edge.get(target, bearer("ada"))).status == 429
    await edge.begin(target, bearer("bob"))
    await eventually(lambda: len(live()) == 3)
    await edge.send("DELETE", "/shared/s", CREATE)
    await eventually(lambda: not live())
    assert (await edge.get(target, bearer("ada"))).status == 404
    assert not any(account.live for account in edge.gateway.clients.accounts)


@pytest.mark.http_2
async def test_log_and_metrics_name_principal_and_tenant_however_a_request_was_answered(
    start: Start, origin: RunningOrigin, settings: dict[str, Any], tmp_path: Path
) -> None:
    log = tmp_path / "access.log"
    edge = await start(origin.url, **settings, sink="file", path=str(log))
    assert (await edge.send("PUT", "/shared/closed", CLOSED, b"0123456789")).status == 201
    created = await edge.send("PUT", "/shared/s", {"Content-Type": "text/plain", **CREATE}, b"x")
    live = edge.gateway.routes.verdicts.live_reads
    for name, org in (("ada", "acme"), ("bob", "acme"), ("eve", "umbrella")):
        assert await statuses(edge, "/shared/closed?offset=-1", bearer(name, org=org), 3) == [200] * 3
        for mode in ("sse", "long-poll"):
            # The second ones join without being parsed.
            wires = [
                await edge.begin(f"/shared/s?live={mode}&offset={created.next_offset}", bearer(name, org=org))
                for _ in range(2)
            ]
            await eventually(lambda: len(live()) == 2)
            edge.clock.advance(2)
            for wire in wires:
                wire.reset()
            await eventually(lambda: not live())
    assert (await edge.get(signed("/shared/closed"))).status == 200
    lines = await log_lines(edge, log, 2 + 3 * 7 + 1)
    named = [(line.get("principal"), line.get("tenant"), line.get("issuer")) for line in lines]
    for name, org in (("ada", "acme"), ("bob", "acme"), ("eve", "umbrella")):
        assert named.count((name, org, ISSUER)) == 7
    assert named.count(("one", None, None)) == 1
    assert named.count(("writer", None, ISSUER)) == 2
    async with ClientSession() as session, session.get(f"{edge.gateway.admin_url}/metrics") as answer:
        text = await answer.text()
    for name, org, count in (("requests", "acme", 14), ("requests", "umbrella", 7), ("sent_bytes", "umbrella", 30)):
        found = [line for line in text.splitlines() if line.startswith(f"durable_gateway_tenant_{name}_total{{")]
        value = next(line for line in found if f'tenant="{org}"' in line).rpartition(" ")[2]
        assert float(value) >= count if name == "sent_bytes" else float(value) == count, (name, org)
    assert f'durable_gateway_tenant_live_seconds_total{{issuer="{ISSUER}",tenant="umbrella"}} 8.0' in text


@pytest.mark.http_2
@pytest.mark.parametrize("cache", [True, False])
async def test_usage_has_every_byte_and_no_request_that_a_limit_refuses_or_the_origin_fails(
    start: Start, origin: RunningOrigin, faults: Faults, settings: dict[str, Any], *, cache: bool
) -> None:
    more = limit(per="tenant", requests_per_s=0.001, burst=10, live_reads=1)
    edge = await start(origin.url, **settings, **more, cache=cache, retry_attempts=0)
    assert (await edge.send("PUT", "/shared/closed", CLOSED, b"0123456789")).status == 201
    ada = bearer("ada", org="acme")
    for _ in range(2):
        for query in ("", "&live=long-poll", "&live=sse"):
            answer = await edge.get(f"/shared/closed?offset=-1{query}", ada)
            assert answer.status == 200
    usage = edge.gateway.routes.verdicts.tenants.usage(ISSUER, "acme")
    sse = len(answer.body)
    assert (usage.requests, usage.sent_bytes) == (6, 40 + 2 * sse)
    head = await edge.send("HEAD", "/shared/closed", ada)
    missing = await edge.get("/shared/none", ada)
    assert (head.status, missing.status, usage.requests) == (200, 404, 8)
    sent_bytes = 40 + 2 * sse + len(missing.body)
    faults.refuse(times=None)
    for query in ("", "?offset=-1&live=long-poll"):
        failed = await edge.get(f"/shared/failed{query}", ada)
        assert failed.status == 502
        sent_bytes += len(failed.body)
    assert (usage.requests, usage.sent_bytes) == (8, sent_bytes)
    for query in ("", "?offset=-1&live=long-poll"):
        assert (await edge.get(f"/shared/closed{query}", ada)).status == 429
    assert (usage.requests, usage.sent_bytes) == (8, sent_bytes)


async def test_one_name_of_two_issuers_is_two_principals(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"", "0001"))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, **settings, principal_header="x-principal", issuer_header="x-issuer")
    sent = {"X-Issuer": "forged", "X_Issuer": "forged"}
    for issuer in (ISSUER, OTHER):
        assert (await edge.send("POST", "/ada/s", {**sent, **bearer("ada", iss=issuer)}, b"x")).status == 200
    assert (await edge.send("POST", signed("/ada/s", methods="append"), sent, b"x")).status == 200
    assert [one.headers.getall("X-Issuer", []) for one in origin.asked] == [[ISSUER], [OTHER], []]
    verdicts = edge.gateway.routes.verdicts
    verdicts.revoke(Revocation("principal", "ada", OTHER), 60)
    assert (await edge.get("/ada/s", bearer("ada"))).status == 200
    assert (await edge.get("/ada/s", bearer("ada", iss=OTHER))).status == 401
    verdicts.revoke(Revocation("principal", "one", ISSUER), 60)
    assert (await edge.get(signed("/ada/s"))).status == 200
    # Without an issuer, the name is refused whoever has given it.
    async with ClientSession() as session:
        body = {"subject": "principal", "name": "ada"}
        async with session.post(f"{edge.gateway.admin_url}/api/revoke", json=body) as answer:
            assert answer.status == 200
    assert (await edge.get("/ada/s", bearer("ada"))).status == 401


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_usage_leaves_out_a_live_read_that_is_refused_after_its_admission(
    start: Start, origin: RunningOrigin, settings: dict[str, Any], live: str
) -> None:
    edge = await start(origin.url, **settings, client_new_streams_per_s=0.001)
    ada = bearer("ada", org="acme")
    found = [(await edge.get(f"/shared/{name}?offset=-1&live={live}", ada)).status for name in "ab"]
    assert found == [404, 429]
    assert edge.gateway.routes.verdicts.tenants.usage(ISSUER, "acme").requests == 1
