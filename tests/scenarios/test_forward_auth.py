"""Forward-auth: the service is asked once for equal requests, and holds none for longer than its bounds."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.auth.remembered_verdicts import Revocation
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from gateway.server.authorising import BAD_AT_ONCE
from gateway.server.connection import Connection
from tests.scenarios.auth_service import AuthService, probe_and_metrics
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.credentials import jwt_rule
from tests.scenarios.hostile import Asked, part_of_stream
from tests.scenarios.wire import Answer, Dropped, Wire
from tests.transports import Trust
from tests.waiting import eventually, pass_turns

pytestmark = pytest.mark.judging

ADA = {"Authorization": "Bearer ada"}
BOB = {"Authorization": "Bearer bob"}


def by_name(asked: Asked) -> tuple[str, dict[str, str]]:
    """Ada and Bob may do everything; others have to log in, and Eve is known."""
    name = asked.headers.get("Authorization", "").removeprefix("Bearer ")
    if name in ("ada", "bob"):
        return "200 OK", {"X-User": name, "X-Org": "blue", "Cache-Control": "max-age=20"}
    if name == "eve":
        return "403 Forbidden", {"Cache-Control": "max-age=20"}
    return "401 Unauthorized", {"WWW-Authenticate": 'Bearer realm="login", scope="streams"'}


@pytest.fixture
async def service(hostile: Hostile) -> AuthService:
    return await AuthService.open(hostile, decide=by_name, body=b"verdict")


def rule(service: AuthService, **more: Any) -> dict[str, Any]:
    return {"by": "forward", "url": f"{service.url}/verify?a=b", **more}


async def started(start: Start, origin: RunningOrigin, service: AuthService, **more: Any) -> Edge:
    rules = [{"by": "public", "streams": ["/public/**"]}, rule(service, **more.pop("rule", {}))]
    return await start(origin.url, auth=rules, credentials="shared", **more)


async def made(edge: Edge, path: str = "/s") -> str:
    answer = await edge.send("PUT", path, {"Content-Type": "text/plain", **ADA}, b"0123456789")
    assert answer.status == 201, answer
    return answer.next_offset


@pytest.mark.http_2
async def test_equal_requests_share_one_question_and_its_verdict_until_it_ends(
    start: Start, origin: RunningOrigin, service: AuthService, counters: Counters
) -> None:
    edge = await started(start, origin, service)
    tail = await made(edge)
    service.gate.clear()
    before = len(service.asked)
    targets = ["/s", "/s?offset=-1", f"/s?offset={tail}", "/s?offset=-1&live=sse"]
    waiting = [await edge.begin(target, headers) for headers in (ADA, BOB) for target in targets]
    head = await edge.begin("/s", ADA, method="HEAD")
    await eventually(lambda: f"{len(waiting) + 1} waiting" in repr(edge.gateway.auth_services))
    await service.count(before + 3)
    service.gate.set()
    for wire in waiting:
        assert (await bounded(wire.head())).status == 200
        wire.reset()
    assert (await bounded(head.answer("HEAD"))).status == 200
    wire = await edge.wire()
    for _ in range(4):
        for headers in (ADA, BOB):
            await wire.ask("/s", headers)
            answer = await bounded(wire.answer("GET"))
            assert (answer.status, answer.body) == (200, b"0123456789")
            assert "private" in answer.headers["Cache-Control"]
            assert {"Authorization", "Cookie"} <= set(", ".join(answer.headers.getall("Vary")).split(", "))
    assert len(service.asked) == before + 3
    edge.clock.advance(20)
    await wire.ask("/s", ADA)
    assert (await bounded(wire.answer("GET"))).status == 200
    assert len(service.asked) == before + 4
    remembered = edge.gateway.clients.remembered
    assert remembered is None or remembered.served > 0
    assert counters.body_bytes[Kind.CATCHUP] == 10


async def test_the_service_gets_credential_and_target_and_the_origin_no_credential(
    hostile: Hostile, start: Start, service: AuthService
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"" if asked.method in ("POST", "PUT") else b"x", "0001"))

    server = await hostile(script, takes_head=True)
    names = {"principal_header": "x-principal", "tenant_header": "x-tenant"}
    rules = [
        rule(
            service,
            request_headers=["authorization", "x-api-key"],
            parameter="token",
            principal_from="x-user",
            tenant_from="x-org",
            sends_client=True,
        )
    ]
    edge = await start(server.url, auth=rules, credentials="shared", **names)
    forged = {"X-Forwarded-Uri": "/public", "Stream-Actions": "read", "X-Principal": "root", "X_Principal": "root"}
    sent = {**ADA, **forged, "X-Api-Key": "1", "Cookie": "a=b", "Stream-Closed": "true", "Content-Type": "text/plain"}
    assert (await edge.send("POST", "/a/./s?b=2&a=%31&token=k", sent, b"x")).status == 200
    assert (await edge.send("PUT", "/t", {**ADA, "Stream-Forked-From": "/a/s"})).status == 200
    assert (await edge.get("/s?token=bob&offset=-1&live=long-poll&cursor=3")).status == 200
    first, second, third = ({name.lower(): value for name, value in one.headers.items()} for one in service.asked)
    assert first == {
        "host": service.url[7:],
        "accept-encoding": "identity",
        "authorization": "Bearer ada",
        "x-api-key": "1",
        "x-forwarded-for": "127.0.0.1",
        "x-forwarded-method": "POST",
        "x-forwarded-proto": "http",
        "x-forwarded-host": "edge.test",
        "x-forwarded-uri": "/a/s?a=1&b=2",
        "stream-actions": "append,close",
    }
    assert (second["stream-actions"], second["stream-forked-from"]) == ("create,fork", "/a/s")
    assert (third["authorization"], third["x-forwarded-uri"]) == ("Bearer bob", "/s")
    assert service.asked[0].target == "/verify?a=b"
    for asked in server.asked:
        assert not {"Authorization", "X-Api-Key"} & set(asked.headers)
        assert "token=" not in asked.target
    assert {asked.headers.get("X-Principal") for asked in server.asked if asked.method != "GET"} == {"ada"}
    assert {asked.headers.get("X-Tenant") for asked in server.asked if asked.method != "GET"} == {"blue"}


async def test_refusals_carry_the_challenge_of_the_service_and_other_answers_are_a_503(
    start: Start, origin: RunningOrigin, service: AuthService, caplog: pytest.LogCaptureFixture
) -> None:
    edge = await started(start, origin, service, rule={"timeout_s": 3})
    answer = await edge.get("/s", {"Authorization": "Bearer stranger"})
    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="login", scope="streams"')
    assert (await edge.get("/s", {"Authorization": "Bearer eve"})).status == 403
    asked = len(service.asked)
    # Without a credential it is not asked at all.
    assert (await edge.get("/s")).status == 401
    assert (await edge.get("/public/s")).status == 404
    assert len(service.asked) == asked
    service.decide = None
    for status, headers in (
        ("500 Internal Server Error", {}),
        ("302 Found", {"Location": "/login"}),
        ("404 Not Found", {}),
        ("429 Too Many Requests", {"Retry-After": "9"}),
        ("101 Switching Protocols", {}),
    ):
        service.status, service.headers = status, headers
        answer = await edge.get("/s", ADA)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1"), status
    service.gate.clear()
    slow = [await edge.begin("/s", ADA) for _ in range(3)]
    await eventually(lambda: "3 waiting" in repr(edge.gateway.auth_services))
    edge.clock.advance(3)
    assert [(await bounded(wire.answer("GET"))).status for wire in slow] == [503] * 3
    await service.server.stop()
    assert (await edge.get("/s", ADA)).status == 503
    said = [line for line in caplog.messages if "/verify" in line]
    assert len(said) == 1
    assert "answered 500; its requests get a 503" in said[0]


@pytest.mark.parametrize(("kept", "again"), [("no-store", True), ("max-age=0", True), ("max-age=9, private", False)])
async def test_a_verdict_is_kept_as_long_as_it_says_and_within_its_bounds(
    start: Start, origin: RunningOrigin, service: AuthService, kept: str, again: bool
) -> None:
    edge = await started(start, origin, service, rule={"most_keep_s": 8})
    service.decide = None
    service.headers = {"Cache-Control": kept}
    await made(edge)
    asked = len(service.asked)
    for _ in range(3):
        assert (await edge.get("/s", ADA)).status == 200
    assert len(service.asked) == asked + (3 if again else 1)
    edge.clock.advance(8)
    assert (await edge.get("/s", ADA)).status == 200
    assert len(service.asked) == asked + (4 if again else 2)
    service.status = "403 Forbidden"
    edge.clock.advance(8)
    for _ in range(2):
        assert (await edge.get("/s", ADA)).status == 403
    assert len(service.asked) == asked + (6 if again else 3)


async def test_permissions_of_the_service_decide_without_another_question(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    own = {"sends_target": False, "permissions_from": "x-streams", "principal_from": "x-user", "keep_s": 100}
    edge = await started(start, origin, service, rule=own)
    service.decide = None
    service.headers = {"X-Streams": "create,read /rooms/*; append /rooms/7", "X-User": "ada"}
    text = {"Content-Type": "text/plain", **ADA}
    for method, path, status in (
        ("PUT", "/rooms/7", 201),
        ("POST", "/rooms/7", 204),
        ("PUT", "/rooms/8", 201),
        ("POST", "/rooms/8", 403),
        ("GET", "/rooms/8", 200),
        ("GET", "/other", 403),
    ):
        assert (await edge.send(method, path, text, b"x" if method != "GET" else None)).status == status, path
    assert len(service.asked) == 1
    edge.gateway.routes.verdicts.revoke(Revocation("principal", "ada"), 60)
    assert (await edge.get("/rooms/8", ADA)).status == 401
    service.headers = {"X-Streams": "rule /rooms/*"}
    assert (await edge.get("/rooms/8", BOB)).status == 503


async def test_sse_readers_that_waited_for_their_verdicts_hold_no_request(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    edge = await started(start, origin, service, sse_lifetime_s=600)
    tail = await made(edge)
    wires = []
    for headers in (ADA, BOB):
        wires.append(await edge.begin(f"/s?live=sse&offset={tail}", headers))
        assert (await bounded(wires[-1].head())).status == 200
    connections = [client for client in edge.gateway.clients if isinstance(client, Connection)]
    await eventually(lambda: [repr(one) for one in connections if "LIVE" in repr(one)] == ["<Connection LIVE>"] * 2)
    for wire in wires:
        wire.reset()


@pytest.mark.http_2
@pytest.mark.parametrize("end", ["refused", "down", "renewed", "clock stepped", "clock stepped a little"])
@pytest.mark.parametrize("cache", [True, False], ids=["shared", "relayed"])
async def test_a_live_read_lasts_while_the_service_renews_its_verdict(
    start: Start, origin: RunningOrigin, service: AuthService, end: str, cache: bool
) -> None:
    edge = await started(start, origin, service, cache=cache, sse_lifetime_s=600)
    tail = await made(edge)
    wires = [await edge.begin(f"/s?live=sse&offset={tail}", ADA) for _ in range(2)]
    for wire in wires:
        assert (await bounded(wire.head())).status == 200
    verdicts, services = edge.gateway.routes.verdicts, edge.gateway.auth_services
    await eventually(lambda: len(verdicts.live_reads()) == 2)
    asked = len(service.asked)
    for round_ in range(1, 3):
        # Both have asked before the verdict of 20 s ends, and have shared the answer.
        edge.clock.advance(17)
        await service.count(asked + round_)
        await eventually(lambda: "0 questions, 0 waiting" in repr(services))
        edge.clock.advance(2.9)
        await eventually(lambda: "0 questions, 0 waiting" in repr(services))
    assert len(verdicts.live_reads()) == 2
    if end == "renewed":
        assert (await edge.send("POST", "/s", {"Content-Type": "text/plain", **ADA}, b"abc")).status == 204
        for wire in wires:
            while (event := await bounded(wire.event())) is not None and event.name != "data":
                pass
            assert event is not None
            assert event.data == "abc"
            wire.reset()
    elif end == "clock stepped":
        edge.clock.step_wall(60)
        edge.clock.advance(2.5)
    elif end == "clock stepped a little":
        service.decide, service.status = None, "500 Internal Server Error"
        edge.clock.step_wall(10)
        for _ in range(5):
            # The verdict of 20 s ends after half of them.
            edge.clock.advance(2.1)
            await eventually(lambda: "0 questions, 0 waiting" in repr(services))
    elif end == "refused":
        service.decide, service.status = None, "403 Forbidden"
        edge.clock.advance(15)
        await service.count(asked + 3)
        # The verdict would be valid for another 5 s.
        await eventually(lambda: "0 questions, 0 waiting" in repr(services))
        edge.clock.advance(0.5)
    else:
        service.decide, service.status = None, "500 Internal Server Error"
        edge.clock.advance(14)
        await eventually(lambda: "0 questions, 0 waiting" in repr(services))
        assert len(verdicts.live_reads()) == 2
        edge.clock.advance(6.5)
        await eventually(lambda: "0 questions, 0 waiting" in repr(services))
        edge.clock.advance(0.5)
    if end != "renewed":
        await eventually(lambda: not verdicts.live_reads())
        for wire in wires:
            # A relayed one is dropped, because its end would be the origin's.
            with nullcontext() if cache else suppress(Dropped):
                await bounded(wire.body())
    await eventually(lambda: not verdicts.live_reads())


async def test_a_long_poll_outlasts_verdicts_that_are_not_kept(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    edge = await started(start, origin, service)
    tail = await made(edge)
    service.decide, service.headers = None, {"Cache-Control": "no-store"}
    poll = await edge.begin(f"/s?live=long-poll&offset={tail}", ADA)
    verdicts, services = edge.gateway.routes.verdicts, edge.gateway.auth_services
    await eventually(lambda: len(verdicts.live_reads()) == 1)
    for _ in range(5):
        asked = len(service.asked)
        edge.clock.advance(0.9)
        await service.count(asked + 1)
        await eventually(lambda: "0 questions, 0 waiting" in repr(services))
    assert (await edge.send("POST", "/s", {"Content-Type": "text/plain", **ADA}, b"abc")).status == 204
    assert (await bounded(poll.answer("GET"))).body == b"abc"
    await eventually(lambda: not verdicts.live_reads())


async def test_random_tokens_reach_the_service_at_a_bounded_rate_and_number(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    edge = await started(start, origin, service, auth_requests=8)
    await made(edge)
    assert (await edge.get("/s", ADA)).status == 200
    service.gate.clear()
    asked = len(service.asked)
    many = [await edge.begin("/s", {"Authorization": f"Bearer {number}"}) for number in range(BAD_AT_ONCE + 10)]
    await eventually(lambda: f"{len(many)} waiting" in repr(edge.gateway.auth_services))
    # One client network has half of the places.
    await service.count(asked + 4)
    await pass_turns(20)
    assert asked + 4 <= len(service.asked) <= asked + 8
    # Clients that leave are counted, too.
    for wire in many[:20]:
        wire.reset()
    service.gate.set()
    assert [(await bounded(wire.answer("GET"))).status for wire in many[20:]] == [401] * (len(many) - 20)
    asked = len(service.asked)
    assert (await edge.get("/s", {"Authorization": "Bearer another"})).status == 429
    assert len(service.asked) == asked
    assert (await edge.get("/s", ADA)).status == 200


async def test_opaque_tokens_pass_a_rule_for_jwts_and_cookies_need_the_site_to_write(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    rules = [
        {"by": "jwt", "issuer": "https://i.test", "audience": ["a"], "keys_url": f"{service.url}/keys"},
        rule(service, anonymous=True),
    ]
    cors = {"allow_origins": ["https://site.test"]}
    edge = await start(origin.url, auth=rules, credentials="shared", cors=cors)
    await made(edge)
    assert (await edge.get("/s", ADA)).status == 200
    service.decide, service.status = None, "204 No Content"
    service.body = b""
    assert (await edge.get("/s")).status == 200
    text = {"Content-Type": "text/plain", "Cookie": "session=1"}
    assert (await edge.send("POST", "/s", text, b"x")).status == 403
    assert (await edge.send("POST", "/s", {**text, "Origin": "https://site.test"}, b"x")).status == 204
    assert (await edge.send("POST", "/s", {**text, "Origin": "https://evil.test", **ADA}, b"x")).status == 204


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_challenge_of_the_service_gets_no_parameter_of_the_gateways(
    start: Start, origin: RunningOrigin, service: AuthService, tmp_path: Path, status: str
) -> None:
    rules = [jwt_rule(tmp_path), rule(service)]
    cors = {"allow_origins": ["https://site.test"]}
    edge = await start(origin.url, auth=rules, credentials="shared", cors=cors)
    sent = {"Authorization": "Negotiate YWJj", "Origin": "https://site.test"}
    for challenge in ("Negotiate", 'Bearer realm="login"', ""):
        named = {"WWW-Authenticate": challenge} if challenge else {}
        service.decide = lambda _, named=named: (status, {"Cache-Control": "no-store", **named})
        refused = await edge.get("/s", sent)
        found = refused.headers["WWW-Authenticate"]
        assert found == challenge or (not challenge and "resource_metadata=" in found)
        assert "WWW-Authenticate" in refused.headers["Access-Control-Expose-Headers"]


async def test_a_page_of_another_site_writes_with_no_cookie_whatever_else_it_sends(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    service.decide = lambda asked: ("200 OK", {}) if "session=1" in asked.headers.get("Cookie", "") else ("401 No", {})
    names = ["authorization", "cookie", "user-agent", "sec-fetch-mode", "x-real-ip", "x-api-key"]
    cors = {"allow_origins": ["https://site.test"]}
    rule = {"parameter": "token", "request_headers": names}
    credentials = ["authorization", "cookie", "x-api-key"]
    edge = await started(start, origin, service, rule=rule, cors=cors, credential_headers=credentials)
    sent = {"Content-Type": "text/plain", "Cookie": "session=1", "User-Agent": "x", "Sec-Fetch-Mode": "no-cors"}
    sent["X-Real-IP"] = "192.0.2.7"
    stored = {"Authorization": "basic eDp5"}
    for target, more in (("/s", {}), ("/s?token=x", {}), ("/s", stored)):
        for site, statuses in (("https://evil.test", [403]), ("https://site.test", [201, 200])):
            answer = await edge.send("PUT", target, {**sent, "Origin": site, **more}, b"x")
            assert answer.status in statuses, (target, more, site)
    foreign = {**sent, "Origin": "https://evil.test", "X-Api-Key": "1"}
    assert (await edge.send("PUT", "/s", foreign, b"x")).status == 200


async def test_a_token_in_the_query_that_no_field_may_hold_is_a_bad_credential(
    start: Start, origin: RunningOrigin, service: AuthService, caplog: pytest.LogCaptureFixture
) -> None:
    edge = await started(start, origin, service, rule={"parameter": "token"})
    await made(edge)
    asked = len(service.asked)
    for token in ("a%0d%0aX-User:%20root", "a%0d%0a%0d%0aGET%20/%20HTTP/1.1", "%00", "%ff", "a%20b", ""):
        assert (await edge.get(f"/s?token={token}")).status == 401, token
    assert len(service.asked) == asked
    assert not [line for line in caplog.messages if "503" in line]
    assert (await edge.get("/s?token=ada")).status == 200


async def test_a_concealed_refusal_takes_the_time_of_an_absent_stream_however_long_each_verdict_took(
    start: Start, origin: RunningOrigin, service: AuthService, faults: Faults
) -> None:
    edge = await started(start, origin, service, conceal=True)
    services = edge.gateway.auth_services

    async def decided_after(wait_s: float, path: str, headers: dict[str, str]) -> asyncio.Task[Answer]:
        service.gate.clear()
        reading = edge.asking(path, headers)
        await eventually(lambda: "1 waiting" in repr(services))
        edge.clock.advance(wait_s)
        service.gate.set()
        return reading

    held = faults.hold(times=1)
    absent = await decided_after(2, "/none", ADA)
    await bounded(held.waiting(1))
    edge.clock.advance(0.3)
    held.release()
    assert (await bounded(absent)).status == 404
    before = edge.clock.pending
    refused = await decided_after(1, "/s", {"Authorization": "Bearer eve"})
    await eventually(lambda: "0 questions, 0 waiting" in repr(services))
    await eventually(lambda: edge.clock.pending > before)
    edge.clock.advance(0.29)
    await pass_turns(5)
    assert not refused.done()
    edge.clock.advance(0.02)
    assert (await bounded(refused)).status == 404


async def test_metrics_and_the_verbose_probe_show_the_state_of_a_service(
    start: Start, origin: RunningOrigin, service: AuthService, caplog: pytest.LogCaptureFixture
) -> None:
    edge = await started(start, origin, service)

    async def shown() -> tuple[str, set[str]]:
        return await probe_and_metrics(edge, "durable_gateway_auth_sub")

    where = f"service {service.url}/verify of route default"
    series = 'durable_gateway_auth_subrequests_total{{result="{}",route="default"}} {}.0'
    assert await shown() == (
        f"[+] {where} has not been asked yet",
        {series.format(result, 0) for result in ("allowed", "refused", "undecided")},
    )
    await made(edge)
    await edge.get("/s", {"Authorization": "Bearer eve"})
    service.decide, service.status = None, "500 Internal Server Error"
    await edge.get("/s", BOB)
    line, figures = await shown()
    assert line == f"[-] {where}: answered 500"
    assert figures == {series.format(result, 1) for result in ("allowed", "refused", "undecided")}
    service.decide = by_name
    edge.clock.advance(10)
    await edge.get("/s", BOB)
    edge.clock.advance(3)
    assert (await shown())[0] == f"[+] {where} decided 3 s ago"
    said = [line for line in caplog.messages if "/verify" in line]
    assert ["answered 500" in said[0], "decides again" in said[1], len(said)] == [True, True, 2]


async def test_a_tenant_without_a_principal_is_limited_and_counted(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    limits = [{"name": "fair", "per": "tenant", "requests_per_s": 0.001, "burst": 4}]
    edge = await started(start, origin, service, rule={"tenant_from": "x-org"}, rate_limits=limits)
    await made(edge)
    statuses = [(await edge.get("/s", one)).status for one in (ADA, BOB, ADA, BOB, ADA)]
    assert statuses == [200] * 3 + [429] * 2
    ((_, usage),) = edge.gateway.routes.verdicts.tenants.items()
    assert usage.requests == 4


async def test_the_origin_learns_the_principal_of_the_verdict_that_allowed_each_write(
    hostile: Hostile, start: Start, service: AuthService
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"", "0001"))

    server = await hostile(script, takes_head=True)
    rules = [rule(service, principal_from="x-user", tenant_from="x-org")]
    names = {"principal_header": "x-principal", "tenant_header": "x-tenant"}
    edge = await start(server.url, auth=rules, credentials="shared", **names)
    service.decide = None
    wire = await edge.wire()
    # One session, whose user changes.
    for user in ("ada", "ada", "bob", "bob"):
        service.headers = {"X-User": user, "X-Org": f"of {user}", "Cache-Control": "no-store"}
        await wire.ask("/s", {"Content-Type": "text/plain", **ADA}, "POST", b"x")
        assert (await bounded(wire.answer("POST"))).status == 200
    found = [(one.headers.get("X-Principal"), one.headers.get("X-Tenant")) for one in server.asked]
    assert found == [("ada", "of ada")] * 2 + [("bob", "of bob")] * 2


async def test_verdicts_of_live_reads_behind_a_proxy_are_renewed_for_the_networks_of_their_clients(
    start: Start, origin: RunningOrigin, service: AuthService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.upstream.auth_services.MOST_WAITING", 16)
    edge = await started(start, origin, service, trusted_proxies=["127.0.0.1"], sse_lifetime_s=600)
    service.decide = lambda asked: ("200 OK", {"Cache-Control": "max-age=20"})
    tail = await made(edge)
    for number in range(6):
        headers = {"Authorization": f"Bearer {number}", "X-Forwarded-For": f"192.0.{number}.1"}
        # The second one is recognised.
        for _ in range(2):
            wire = await edge.begin(f"/s?live=sse&offset={tail}", headers)
            assert (await bounded(wire.head())).status == 200
    await eventually(lambda: len(edge.gateway.routes.verdicts.live_reads()) == 12)
    service.gate.clear()
    edge.clock.advance(17)
    # Both reads of a client share a renewal if they share a verdict.
    await eventually(lambda: "<AuthServices 6 questions, " in repr(edge.gateway.auth_services))
    service.gate.set()
    await eventually(lambda: "0 questions, 0 waiting" in repr(edge.gateway.auth_services))


@pytest.mark.http_1
async def test_a_verdict_for_one_host_is_not_remembered_for_another_in_the_request_line(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    edge = await started(start, origin, service)
    tail = await made(edge)

    def by_host(asked: Asked) -> tuple[str, dict[str, str]]:
        is_allowed = asked.headers["Authorization"] == "Bearer bob" or asked.headers["X-Forwarded-Host"] != "other.test"
        return "200 OK" if is_allowed else "403 Forbidden", {"Cache-Control": "max-age=100"}

    service.decide = by_host
    edge.clock.advance(21)
    for target in ("/s", f"/s?offset={tail}&live=sse"):
        for _ in range(4):
            for headers, host, status in (
                (BOB, "http://other.test", 200),
                (ADA, "", 200),
                (ADA, "http://other.test", 403),
            ):
                wire = await edge.begin(host + target, headers)
                assert (await bounded(wire.head())).status == status, (target, host)
                await wire.closed()


async def test_a_verdict_that_was_given_for_https_is_not_remembered_for_plain_http(
    start: Start, origin: RunningOrigin, service: AuthService, trust: Trust
) -> None:
    def only_secure(asked: Asked) -> tuple[str, dict[str, str]]:
        is_secure = asked.headers["X-Forwarded-Proto"] == "https"
        return "200 OK" if is_secure else "403 Forbidden", {"Cache-Control": "max-age=100"}

    tls = {"certificates": [trust.pair.as_config()]}
    edge = await started(start, origin, service, listeners=[{"address": "127.0.0.1:0", "tls": tls}])
    plain, secure = sorted(edge.gateway.listeners.urls, key=lambda url: url.partition(":")[0])
    answer = await edge.send_to(plain, "PUT", "/s", {"Content-Type": "text/plain", **ADA}, b"0123456789")
    tail = answer.next_offset
    service.decide = only_secure
    for target in ("/s", f"/s?offset={tail}&live=sse"):
        for url, status in ((secure, 200), (plain, 403), (secure, 200)):
            for _ in range(3):
                wire = await Wire.open(url, tls=trust.client if url == secure else None)
                await wire.ask(target, ADA)
                assert (await bounded(wire.head())).status == status, (url, target)
                await wire.closed()


@pytest.mark.parametrize("kind", ["client", "uncached", "trace"])
async def test_a_live_read_whose_verdict_is_not_remembered_leaves_no_timer(
    start: Start, origin: RunningOrigin, service: AuthService, kind: str
) -> None:
    edge = await started(start, origin, service, rule={"sends_client": kind == "client"}, cache=kind != "uncached")
    tail = await made(edge)
    for number in range(3):
        trace = {"traceparent": f"00-{number + 1:032x}-00f067aa0ba902b7-00"} if kind == "trace" else {}
        wire = await edge.begin(f"/s?live=sse&offset={tail}", {**ADA, **trace})
        assert (await bounded(wire.head())).status == 200
        await wire.closed()
    await eventually(lambda: not edge.gateway.routes.verdicts.live_reads())
    assert len(edge.gateway.auth_services.wheel) == 0


async def wire_from(edge: Edge, source: str) -> Wire:
    """Connect from this address of the loopback network."""
    parts = urlsplit(edge.url)
    return Wire(*await asyncio.open_connection(parts.hostname, parts.port, local_addr=(source, 0)))


@pytest.mark.http_1
async def test_a_verdict_for_a_scheme_that_a_proxy_states_is_not_remembered_for_a_forged_statement(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    edge = await started(start, origin, service, trusted_proxies=["127.0.0.2"])
    tail = await made(edge)
    # The stream has a live reader, so that its bytes are answered from memory.
    assert (await bounded((await edge.begin("/s?offset=-1&live=sse", BOB)).head())).status == 200

    def only_secure(asked: Asked) -> tuple[str, dict[str, str]]:
        is_secure = asked.headers["X-Forwarded-Proto"] == "https"
        return "200 OK" if is_secure else "403 Forbidden", {"Cache-Control": "max-age=100"}

    service.decide = only_secure
    sent = {**ADA, "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https"}
    for target in ("/s", f"/s?offset={tail}&live=sse"):
        asked = len(service.asked)
        for source, status in (("127.0.0.2", 200), ("127.0.0.1", 403), ("127.0.0.2", 200)):
            for _ in range(3):
                wire = await wire_from(edge, source)
                await wire.ask(target, sent)
                assert (await bounded(wire.head())).status == status, (target, source)
                await wire.closed()
        # The verdict for the proxy's scheme is remembered, and the refusal is kept by the service's rule.
        assert len(service.asked) <= asked + 2


@pytest.mark.http_1
async def test_later_reads_are_limited_as_the_principal_that_a_renewed_verdict_names(
    start: Start, origin: RunningOrigin, service: AuthService
) -> None:
    limits = [{"name": "fair", "per": "principal", "live_reads": 3}]
    edge = await started(
        start, origin, service, rule={"principal_from": "x-user"}, rate_limits=limits, sse_lifetime_s=600
    )
    tail = await made(edge)
    # The second read is recognised, so that later reads share its renewal.
    for _ in range(2):
        assert (await bounded((await edge.begin(f"/s?live=sse&offset={tail}", ADA)).head())).status == 200
    asked = len(service.asked)
    service.decide = lambda asked: ("200 OK", {"X-User": "eve", "Cache-Control": "max-age=100"})
    edge.clock.advance(17)
    await service.count(asked + 1)
    await eventually(lambda: "0 questions, 0 waiting" in repr(edge.gateway.auth_services))
    seen = [read.allowed.principal.name for read in edge.gateway.routes.verdicts.live_reads()]
    assert seen == ["eve", "eve"]
    # The first verdict has not expired.
    found = [await bounded((await edge.begin(f"/s?live=sse&offset={tail}", ADA)).head()) for _ in range(4)]
    assert [one.status for one in found] == [200, 200, 200, 429]
