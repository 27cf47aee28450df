"""Routes with rules who may: a request is judged by its credential, and then served from the one tape of its stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from gateway.auth.asked import Asked as Request
from gateway.auth.guard import Guard
from gateway.auth.remembered_verdicts import Allowed, Revocation
from gateway.auth.signed_urls import Signed, parameters_of, signed_query
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from gateway.server.authorising import BAD_AT_ONCE
from tests.commands.here import run_here
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.credentials import LINK_KEY, WALL, bearer, jwt_rule, link_key_file, signed, signed_rule, token
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.noting import log_lines
from tests.scenarios.wire import Dropped, Wire
from tests.waiting import eventually

CREATE = bearer("writer", streams=["* /**"])


@pytest.fixture
def settings(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    rules = [{"by": "public", "streams": ["/public/**"]}, jwt_rule(tmp_path), signed_rule(tmp_path)]
    return {"auth": rules, "credentials": "shared", **getattr(request, "param", {})}


async def made(edge: Edge, path: str, **more: str) -> str:
    """Create a stream; returns its tail."""
    answer = await edge.send("PUT", path, {"Content-Type": "text/plain", **CREATE, **more}, b"0123456789")
    assert answer.status == 201, answer
    return answer.next_offset


@pytest.mark.http_2
async def test_readers_with_tokens_of_their_own_share_one_tape(edge: Edge, counters: Counters) -> None:
    await made(edge, "/shared/s")
    wire = await edge.wire()
    for _ in range(4):
        for name in ("ada", "bob", "eve"):
            await wire.ask("/shared/s", bearer(name))
            answer = await bounded(wire.answer("GET"))
            assert (answer.status, answer.body) == (200, b"0123456789")
            assert "private" in answer.headers["Cache-Control"]
            assert "public" not in answer.headers["Cache-Control"]
            assert "Authorization" in answer.headers.getall("Vary")
    assert counters.body_bytes[Kind.CATCHUP] == 10


@pytest.mark.http_2
async def test_a_hit_is_recognised_again_and_ends_with_the_token(edge: Edge) -> None:
    await made(edge, "/shared/s", **{"Stream-Closed": "true"})
    headers, wire = bearer("ada", exp=WALL + 50), await edge.wire()

    async def status() -> int:
        await wire.ask("/shared/s?offset=-1", headers)
        return (await bounded(wire.answer("GET"))).status

    assert [await status() for _ in range(5)] == [200] * 5
    remembered = edge.gateway.clients.remembered
    assert remembered is None or remembered.served > 0
    served = remembered.served if remembered is not None else 0
    edge.clock.advance(51)
    assert [await status() for _ in range(2)] == [401] * 2
    assert remembered is None or remembered.served == served


@pytest.mark.http_2
async def test_a_remembered_answer_is_no_answer_to_another_credential(edge: Edge) -> None:
    await made(edge, "/ada/s", **{"Stream-Closed": "true"})
    wire = await edge.wire()
    for _ in range(4):
        for headers, status in ((bearer("ada"), 200), (bearer("bob"), 403), ({}, 401), ({"Cookie": "a=b"}, 401)):
            await wire.ask("/ada/s", headers)
            answer = await bounded(wire.answer("GET"))
            assert answer.status == status
            assert (b"0123456789" in answer.body) is (status == 200)
            assert status == 200 or "Stream-Next-Offset" not in answer.headers


@pytest.mark.http_2
async def test_live_readers_with_tokens_of_their_own_share_one_live_request(edge: Edge, counters: Counters) -> None:
    tail = await made(edge, "/shared/s")
    polls = [await edge.begin(f"/shared/s?live=long-poll&offset={tail}", bearer(f"p{n}")) for n in range(4)]
    events = [await edge.begin(f"/shared/s?live=sse&offset={tail}", bearer(f"e{n}")) for n in range(4)]
    for wire in events:
        head = await bounded(wire.head())
        assert head.status == 200
        assert "private" in head.headers["Cache-Control"]
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: any(topic.is_confirmed and topic.readers == 8 for topic in topics()))
    assert len(edge.gateway.routes.verdicts.live_reads()) == 8
    assert (await edge.send("POST", "/shared/s", {"Content-Type": "text/plain", **CREATE}, b"abc")).status == 204
    for wire in polls:
        answer = await bounded(wire.answer("GET"))
        assert (answer.body, "private" in answer.headers["Cache-Control"]) == (b"abc", True)
    for wire in events:
        while (event := await bounded(wire.event())) is not None and event.name != "data":
            pass
        assert event is not None
        assert event.data == "abc"
    await eventually(lambda: len(edge.gateway.routes.verdicts.live_reads()) == 4)


@pytest.mark.judging
@pytest.mark.http_2
@pytest.mark.parametrize("mode", ["long-poll", "sse"])
async def test_live_reads_end_in_order_when_the_token_expires(edge: Edge, mode: str) -> None:
    tail = await made(edge, "/shared/s")
    wire = await edge.begin(f"/shared/s?live={mode}&offset={tail}", bearer("ada", exp=WALL + 10))
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: any(topic.is_confirmed and topic.readers == 1 for topic in topics()))
    if mode == "sse":
        assert (await bounded(wire.head())).status == 200
    edge.clock.advance(11)
    if mode == "sse":
        await bounded(wire.body())
    else:
        assert (await bounded(wire.answer("GET"))).status == 204
    await eventually(lambda: not edge.gateway.routes.verdicts.live_reads())


@pytest.mark.judging
@pytest.mark.http_2
@pytest.mark.parametrize("mode", ["long-poll", "sse"])
async def test_a_live_read_ends_when_a_step_of_the_clock_expires_its_token(edge: Edge, mode: str) -> None:
    tail = await made(edge, "/shared/s")
    names = {"ada": WALL + 10, "bob": WALL + 1_000, "eve": WALL + 28}
    for name, exp in names.items():
        await edge.begin(f"/shared/s?live={mode}&offset={tail}", bearer(name, exp=exp))
    topics, verdicts = edge.gateway.engine.live.topics, edge.gateway.routes.verdicts
    await eventually(lambda: any(topic.is_confirmed and topic.readers == 3 for topic in topics()))
    edge.clock.step_wall(-20)
    edge.clock.advance(2)
    assert len(verdicts.live_reads()) == 3
    # As a time server does, or a machine that was suspended.
    edge.clock.step_wall(40)
    edge.clock.advance(2)
    await eventually(lambda: [read.allowed.principal.name for read in verdicts.live_reads()] == ["bob", "eve"])
    # Eve's token had not expired at the step, but expires earlier by the monotonic clock.
    edge.clock.advance(6)
    await eventually(lambda: [read.allowed.principal.name for read in verdicts.live_reads()] == ["bob"])


@pytest.mark.judging
@pytest.mark.http_2
@pytest.mark.parametrize("mode", ["long-poll", "sse"])
async def test_revocation_ends_the_live_reads_of_its_principal_alone(edge: Edge, mode: str) -> None:
    tail = await made(edge, "/shared/s")
    target = f"/shared/s?live={mode}&offset={tail}"
    topics, verdicts = edge.gateway.engine.live.topics, edge.gateway.routes.verdicts
    for _ in range(2):
        # The second ones join without being parsed.
        wires = {name: await edge.begin(target, bearer(name)) for name in ("ada", "bob")}
        await eventually(lambda: any(topic.is_confirmed and topic.readers == 2 for topic in topics()))
        if mode == "sse":
            assert [(await bounded(wire.head())).status for wire in wires.values()] == [200] * 2
        assert verdicts.revoke(Revocation("principal", "ada"), 60) == 1
        edge.clock.advance(0.2)
        if mode == "sse":
            await bounded(wires["ada"].body())
        else:
            with pytest.raises(Dropped):
                await bounded(wires["ada"].answer("GET"))
        assert (await edge.get("/shared/s", bearer("ada"))).status == 401
        assert (await edge.get("/shared/s", bearer("bob"))).status == 200
        await edge.send("POST", "/shared/s", {"Content-Type": "text/plain", **CREATE}, b"abc")
        if mode == "long-poll":
            assert (await bounded(wires["bob"].answer("GET"))).status == 200
        wires["bob"].reset()
        await eventually(lambda: not verdicts.live_reads())
        edge.clock.advance(61)
        target = f"/shared/s?live={mode}&offset={(await edge.get('/shared/s', bearer('bob'))).next_offset}"


@pytest.mark.http_1
async def test_revocation_ends_live_reads_of_clients_without_an_address(
    start: Start, origin: RunningOrigin, settings: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "s.sock"
    edge = await start(origin.url, **settings, listeners=[{"address": f"unix:{path}"}])
    created = await edge.send_to(origin.url, "PUT", "/shared/s", {"Content-Type": "text/plain"}, b"0123456789")
    verdicts, tail = edge.gateway.routes.verdicts, created.next_offset
    wires = [Wire(*await asyncio.open_unix_connection(str(path))) for _ in range(3)]

    async def ask() -> None:
        for count, wire in enumerate(wires, 1):
            # The last one joins without being parsed.
            await wire.ask(f"/shared/s?live=long-poll&offset={tail}", bearer("ada"))
            await eventually(lambda count=count: len(verdicts.live_reads()) == count)

    await ask()
    await edge.send_to(origin.url, "POST", "/shared/s", {"Content-Type": "text/plain"}, b"abc")
    for wire in wires:
        tail = (await bounded(wire.answer("GET"))).next_offset
    assert verdicts.revoke(Revocation("principal", "ada"), 0) == 0
    await ask()
    assert verdicts.revoke(Revocation("principal", "ada"), 60) == 3
    for wire in wires:
        with pytest.raises(Dropped):
            await bounded(wire.answer("GET"))
        await wire.closed()


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The credential and the path of each request that a guard judges."""
    judge, found = Guard.judge, list[tuple[str, str]]()

    def noting(self: Guard, asked: Request, *arguments: Any) -> Allowed:
        found.append((" ".join(asked.authorization), asked.path))
        return judge(self, asked, *arguments)

    monkeypatch.setattr(Guard, "judge", noting)
    return found


@pytest.mark.judging
@pytest.mark.http_1
@pytest.mark.parametrize("mode", ["long-poll", "sse"])
async def test_a_credential_is_judged_once_for_live_reads_at_every_offset_of_a_stream(
    edge: Edge, judged: list[tuple[str, str]], mode: str
) -> None:
    tail = await made(edge, "/shared/s")
    ada, bob = bearer("ada", exp=WALL + 4_000), bearer("bob", exp=WALL + 4_000)
    topics, verdicts = edge.gateway.engine.live.topics, edge.gateway.routes.verdicts

    async def read() -> int:
        """Bob asks first, so that Ada's request is recognised.  The status of Ada's answer."""
        nonlocal tail
        target = f"/shared/s?live={mode}&offset={tail}"
        first = await edge.begin(target, bob)
        await eventually(lambda: any(topic.is_confirmed and topic.readers for topic in topics()))
        second = await edge.begin(target, ada)
        head = asyncio.ensure_future(second.head())
        await eventually(lambda: len(verdicts.live_reads()) == 2 or head.done())
        tail = (await edge.send("POST", "/shared/s", {"Content-Type": "text/plain", **CREATE}, b"abc")).next_offset
        status = (await bounded(head)).status
        for wire in (first, second):
            wire.reset()
        await eventually(lambda: not verdicts.live_reads())
        return status

    assert [await read() for _ in range(2)] == [200] * 2
    judged.clear()
    assert [await read() for _ in range(3)] == [200] * 3
    assert (ada["Authorization"], "/shared/s") not in judged
    verdicts.revoke(Revocation("principal", "ada"), 60)
    assert await read() == 401
    edge.clock.advance(61)
    assert await read() == 200
    edge.clock.advance(4_000)
    assert (await edge.get(f"/shared/s?live={mode}&offset={tail}", ada)).status == 401


@pytest.mark.judging
@pytest.mark.parametrize("read", ["offset=-1", "live=sse&offset=-1"])
async def test_a_verdict_for_one_path_allows_no_other_path_to_the_stream(
    start: Start, origin: RunningOrigin, tmp_path: Path, read: str
) -> None:
    edge = await start(origin.url, prefix="/p", strip_prefix=True, auth=[jwt_rule(tmp_path)], credentials="shared")
    await made(edge, "/p/", **{} if "live" in read else {"Stream-Closed": "true"})
    # Both paths are `/` at the origin.
    readers = {path: bearer("ada", streams=[f"read {path}"]) for path in ("/p", "/p/")}
    for _ in range(4):
        for path in readers:
            for own, headers in readers.items():
                wire = await edge.begin(f"{path}?{read}", headers)
                assert (await bounded(wire.head())).status == (200 if own == path else 403), (own, path)
                await wire.closed()


@pytest.mark.judging
@pytest.mark.parametrize("read", ["offset=-1", "live=sse&offset=-1"])
async def test_an_expired_signature_is_refused_although_the_header_is_known_for_the_stream(
    start: Start, origin: RunningOrigin, tmp_path: Path, read: str
) -> None:
    edge = await start(origin.url, auth=[signed_rule(tmp_path), jwt_rule(tmp_path)], credentials="shared")
    await made(edge, "/shared/s", **{} if "live" in read else {"Stream-Closed": "true"})
    ada = bearer("ada", exp=WALL + 10_000)
    link = f"{signed('/shared/s', WALL + 5_000)}&{read}"

    async def status(target: str) -> int:
        wire = await edge.begin(target, ada)
        try:
            return (await bounded(wire.head())).status
        finally:
            await wire.closed()

    for _ in range(4):
        assert [await status(target) for target in (link, f"/shared/s?{read}")] == [200] * 2
    edge.clock.advance(5_001)
    for _ in range(3):
        assert [await status(target) for target in (link, f"/shared/s?{read}")] == [401, 200]


@pytest.mark.http_2
async def test_a_signed_url_reads_its_stream_and_no_other(edge: Edge) -> None:
    await made(edge, "/s")
    for _ in range(3):
        for target in (signed("/s"), signed("/s", WALL + 60), signed("/s", others="x=1"), signed("/s", streams="/*")):
            answer = await edge.get(f"{target}&offset=-1")
            assert (answer.status, answer.body) == (200, b"0123456789"), target
            assert "private" in answer.headers["Cache-Control"]
    one = signed("/s")
    for target, text in (
        (one.replace("/s?", "/t?"), b"SIGNATURE_INVALID"),
        (f"{one}&x=1", b"SIGNATURE_INVALID"),
        (one.replace("key=one", "key=two"), b"SIGNATURE_INVALID"),
        (signed("/s", WALL - 1), b"SIGNATURE_EXPIRED"),
        (signed("/s", network="203.0.113.0/24"), b"SIGNATURE_INVALID"),
        (f"{one}&methods=delete", b"SIGNATURE_INVALID"),
    ):
        answer = await edge.get(target)
        assert (answer.status, text in answer.body) == (401, True), (target, answer)
    assert (await edge.get(f"{one}&expires=1")).status == 400
    assert (await edge.send("DELETE", one)).status == 403
    assert (await edge.send("DELETE", signed("/s", methods="delete"))).status == 204


@pytest.mark.parametrize("path", ["/rooms/*", "/rooms/**"])
async def test_a_signature_for_a_stream_is_none_for_the_pattern_of_the_same_text(edge: Edge, path: str) -> None:
    for name in (path, "/rooms/7"):
        await made(edge, name)
    own, pattern = signed(path), signed(path, streams=path)
    assert [(await edge.get(one)).status for one in (own, pattern)] == [200, 200]
    for one, status in ((own, 401), (f"{own}&streams={path}", 401), (pattern, 200)):
        assert (await edge.get(one.replace(f"{path}?", "/rooms/7?"))).status == status
    assert (await edge.get(pattern.replace(f"&streams={path}", ""))).status == 401


async def test_public_streams_need_no_credential_and_their_answers_stay_public(edge: Edge) -> None:
    await made(edge, "/public/a/b")
    for headers in ({}, bearer("bob")):
        answer = await edge.get("/public/a/b?offset=-1", headers)
        assert (answer.status, "private" in answer.headers["Cache-Control"]) == (200, False)
    assert (await edge.send("POST", "/public/a/b", {"Content-Type": "text/plain"}, b"x")).status == 401


@pytest.mark.judging
@pytest.mark.parametrize("passes", [False, True])
async def test_the_origin_gets_the_principal_and_no_credentials_unless_they_are_passed_on(
    hostile: Hostile, start: Start, settings: dict[str, Any], *, passes: bool
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"" if asked.method == "POST" else b"x", "0001"))

    origin = await hostile(script, takes_head=True)
    names = {"principal_header": "x-principal", "tenant_header": "x-tenant"}
    passing = {"client_credentials": "pass"} if passes else {}
    edge = await start(origin.url, **settings, **names, **passing)
    forged = {"X-Principal": "root", "X-Tenant": "all", "Cookie": "a=b", **bearer("writer")}
    assert (await edge.send("POST", "/writer/s", forged, b"x")).status == 200
    assert (await edge.get("/writer/s?a=1", forged)).status == 200
    link = signed("/writer/s", methods="read,append", others="b=2")
    assert (await edge.send("POST", link, None, b"x")).status == 200
    assert (await edge.get(link)).status == 200
    assert {"Authorization" in asked.headers for asked in origin.asked} == ({True, False} if passes else {False})
    assert {asked.headers.get("X-Principal") for asked in origin.asked} == {"writer", "one", None}
    assert not any("X-Tenant" in asked.headers or "signature" in asked.target for asked in origin.asked)
    assert {asked.target.partition("?")[2].partition("&")[0] for asked in origin.asked} >= {"b=2", ""}


@pytest.mark.judging
async def test_the_sign_command_and_the_revoke_endpoint_work_together(edge: Edge, tmp_path: Path) -> None:
    await made(edge, "/s", **{"Stream-Closed": "true"})

    def made_by_command(*more: str) -> str:
        key = ["--key", str(tmp_path / "link.key"), "--key-id", "one"]
        status, out, err = run_here("sign", f"{edge.url}/s?x=1", "--for", "2h", *key, *more)
        assert (status, err) == (0, "")
        return out.strip().removeprefix(edge.url)

    assert (await edge.get(made_by_command())).status == 200
    assert (await edge.send("DELETE", made_by_command())).status == 403
    async with ClientSession() as session:
        body = {"subject": "key", "name": "one"}
        async with session.post(f"{edge.gateway.admin_url}/api/revoke", json=body) as answer:
            assert (answer.status, await answer.json()) == (200, {"live_reads": 0})
    assert (await edge.get(made_by_command())).status == 401


def test_the_sign_command_makes_a_cookie_without_a_url(tmp_path: Path) -> None:
    key = ["--key", link_key_file(tmp_path), "--key-id", "one"]
    status, out, _ = run_here("sign", "--cookie", "--streams", "/s/**", *key)
    assert (status, parameters_of(out.strip())["streams"]) == (0, "/s/**")
    assert run_here("sign", *key)[0] == 2


async def test_bad_tokens_of_one_network_are_limited_and_known_ones_still_served(edge: Edge) -> None:
    await made(edge, "/shared/s", **{"Stream-Closed": "true"})
    wire = await edge.wire()

    async def status(headers: dict[str, str]) -> int:
        await wire.ask("/shared/s", headers)
        return (await bounded(wire.answer("GET"))).status

    ada = bearer("ada")
    assert await status(ada) == 200
    bad = [await status({"Authorization": f"{bearer('eve')['Authorization']}{number}"}) for number in range(52)]
    assert (bad[0], bad[-1]) == (401, 429)
    assert bad.count(401) == BAD_AT_ONCE
    assert await status(bearer("bob")) == 429
    # It was verified before the bad ones came.
    assert await status(ada) == 200
    await wire.ask(signed("/shared/s"))
    assert (await bounded(wire.answer("GET"))).status == 200
    edge.clock.advance(1)
    assert await status(bearer("bob")) == 200


async def test_no_credential_reaches_the_access_log(
    start: Start, origin: RunningOrigin, settings: dict[str, Any]
) -> None:
    log = Path(settings["auth"][1]["keys_file"]).with_name("access.log")
    edge = await start(origin.url, **settings, sink="file", path=str(log))
    await made(edge, "/s")
    secret = signed("/s").partition("signature=")[2]
    targets = ["/s?{0}", "/t?{0}", "/s?{0}&{0}", "/s?{0}&offset=-1&offset=1", "/s?{0}&x=%zz", "/s?{0}&live=sse"]
    for target in targets:
        await edge.get(target.format(f"expires={WALL + 60}&key=one&signature={secret}"))
    await edge.get(signed("/s"))
    await edge.get("/s", bearer("eve"))
    lines = await log_lines(edge, log, len(targets) + 3)
    text = log.read_text()
    assert len(lines) == len(targets) + 3
    assert secret not in text
    assert "eyJ" not in text


def signed_cookie(streams: str, **more: str) -> dict[str, str]:
    """A Cookie field with a signature for the streams of a pattern."""
    named = Signed(str(WALL + 3_600), streams=streams, **more)
    return {"Cookie": f"a=b; __Secure-s={signed_query(named, LINK_KEY)}"}


async def from_address(edge: Edge, address: str, live: str, headers: dict[str, str]) -> int:
    """The status of a read by a client with this address; the bytes of the request are the same for each."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", int(edge.url.rpartition(":")[2]), local_addr=(address, 0)
    )
    wire = Wire(reader, writer)
    try:
        await wire.ask(f"/s?{live}", headers)
        return (await bounded(wire.head())).status
    finally:
        await wire.closed()


@pytest.mark.parametrize("live", ["offset=-1", "live=sse&offset=-1"])
async def test_a_cookie_for_one_network_is_refused_to_another_that_sends_the_same_bytes(
    start: Start, origin: RunningOrigin, tmp_path: Path, live: str
) -> None:
    rules = [jwt_rule(tmp_path), signed_rule(tmp_path, cookie="__Secure-s")]
    edge = await start(origin.url, auth=rules, credentials="shared")
    await made(edge, "/s", **{} if "live" in live else {"Stream-Closed": "true"})
    cookie = signed_cookie("/s", network="127.0.0.1/32")
    for _ in range(4):
        assert await from_address(edge, "127.0.0.1", live, cookie) == 200
        assert await from_address(edge, "127.0.0.2", live, cookie) == 401


@pytest.mark.judging
async def test_cookies_authorise_reads_and_writes_from_the_site_and_never_reach_the_origin(
    hostile: Hostile, start: Start, tmp_path: Path
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        more = {"X-Accel-Expires": "60", "CDN-Cache-Control": "max-age=60"}
        writer.write(part_of_stream(b"" if asked.method == "POST" else b"x", "0001", **more))

    origin = await hostile(script, takes_head=True)
    rules = [jwt_rule(tmp_path, cookie="__Secure-t"), signed_rule(tmp_path, cookie="__Secure-s")]
    more = {"credential_headers": ["authorization"], "cors": {"allow_origins": ["https://site.test"]}}
    edge = await start(origin.url, auth=rules, credentials="shared", **more)
    mine = {"Cookie": f"__Secure-t={token('ada')}"}
    for cookie in (mine, signed_cookie("/ada/**", methods="read,append")):
        for _ in range(3):
            answer = await edge.get("/ada/s?offset=-1", cookie)
            assert answer.status == 200
            assert "private" in answer.headers["Cache-Control"]
            varied = ", ".join(answer.headers.getall("Vary"))
            assert "Authorization" in varied
            assert "Cookie" in varied
        for web_origin, status in (("https://site.test", 200), ("https://evil.test", 403), (None, 403)):
            sent = {**cookie, "Content-Type": "text/plain", **({"Origin": web_origin} if web_origin else {})}
            answer = await edge.send("POST", "/ada/s", sent, b"x")
            assert answer.status == status
            assert not {"X-Accel-Expires", "CDN-Cache-Control"} & set(answer.headers)
        assert (await edge.get("/bob/s", cookie)).status == 403
    twice = {"Cookie": f"{mine['Cookie']}; __Secure-t={token('bob')}"}
    for bad, status in ((twice, 400), ({"Cookie": f"{mine['Cookie']}\xff"}, 401)):
        refused = await edge.get("/ada/s", bad)
        assert (refused.status, 'error="invalid_request"' in refused.headers["WWW-Authenticate"]) == (
            status,
            bad is twice,
        )
    assert origin.asked
    assert not any("Cookie" in asked.headers for asked in origin.asked)


@pytest.mark.judging
async def test_calls_with_tokens_of_the_origin_pass_and_no_other_spelling_of_them(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"", "0001"))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, **settings, principal_header="x-principal")
    forged = {"X-Principal": "root", "X_Principal": "root", "Authorization": "Bearer callback-token"}
    for method, path in (
        ("POST", "/__ds/subscriptions/one/callback"),
        ("POST", "/v1/stream/__ds/subscriptions/one/ack"),
        ("GET", "/__ds/jwks.json"),
    ):
        assert (await edge.send(method, path, forged, b"" if method == "POST" else None)).status == 200
    for method, path in (
        ("GET", "/__ds/subscriptions/one/callback"),
        ("DELETE", "/__ds/subscriptions/callback"),
        ("PUT", "/__ds/subscriptions/ack"),
        ("POST", "/__ds/subscriptions/release"),
        ("POST", "/__ds/subscriptions/..%2F..%2Fada%2Fx/callback"),
        ("POST", "/__ds/subscriptions/one/two/callback"),
        ("PUT", "/__ds/jwks.json"),
        # Here the origin may have streams of these names.
        ("POST", "/ada/__ds/subscriptions/one/ack"),
        ("POST", "/__ds/__ds/subscriptions/one/ack"),
        ("GET", "/ada/v1/stream/__ds/jwks.json"),
    ):
        assert (await edge.send(method, path, forged, b"" if method != "GET" else None)).status == 401, (method, path)
    assert len(origin.asked) == 3
    for asked in origin.asked:
        assert "X-Principal" not in asked.headers
        assert "X_Principal" not in asked.headers
        assert asked.headers["Authorization"] == "Bearer callback-token"


@pytest.mark.judging
@pytest.mark.parametrize("strips", [True, False])
async def test_calls_with_tokens_of_the_origin_are_below_the_path_of_the_route(
    hostile: Hostile, start: Start, settings: dict[str, Any], *, strips: bool
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("200 OK", {}))

    origin = await hostile(script)
    edge = await start(origin.url, **settings, prefix="/chat", strip_prefix=strips)
    for root in ("/chat", "/chat/v1/stream"):
        assert (await edge.send("POST", f"{root}/__ds/subscriptions/one/ack", {}, b"")).status == 200
    assert (await edge.send("POST", "/chat/a/__ds/subscriptions/one/ack", {}, b"")).status == 401
    assert len(origin.asked) == 2


@pytest.mark.judging
async def test_no_spelling_of_a_reserved_path_is_a_stream_to_the_rules(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("201 Created", {}))

    origin = await hostile(script)
    edge = await start(origin.url, **settings)
    writer = bearer("eve", streams=["read,create,append,delete /**"])
    subscriber = bearer("eve", streams=["subscribe /**"])
    paths = (
        "/__ds/subscriptions/x",
        "/__ds%2Fsubscriptions%2Fx",
        "/a%2f__ds/x",
        "/__ds%5cx",
        "/%5C__ds/x",
        "/__ds;a/x",
        "/__ds/subscriptions/__ds",
        "/__ds%2Fsubscriptions/__ds",
    )
    for path in paths:
        for method in ("PUT", "POST", "DELETE", "GET"):
            refused = await edge.send(method, path, writer, None if method == "GET" else b"{}")
            assert refused.status == 403, (method, path)
        assert not origin.asked
        assert (await edge.send("PUT", path, subscriber, b"{}")).status == 201, path
        origin.asked.clear()
    assert (await edge.send("PUT", "/a__ds/x", writer, b"{}")).status == 201


@pytest.mark.judging
async def test_a_relayed_live_read_ends_when_its_token_expires(
    start: Start, origin: RunningOrigin, settings: dict[str, Any]
) -> None:
    edge = await start(origin.url, **settings, cache=False, long_poll_timeout_s=300)
    tail = await made(edge, "/shared/s")
    wires = [
        await edge.begin(f"/shared/s?live={mode}&offset={tail}", bearer("ada", exp=WALL + 10))
        for mode in ("sse", "long-poll")
    ]
    assert (await bounded(wires[0].head())).status == 200
    verdicts = edge.gateway.routes.verdicts
    await eventually(lambda: len(verdicts.live_reads()) == 2 and edge.gateway.engine.live_table.relayed == 2)
    edge.clock.advance(9)
    assert len(verdicts.live_reads()) == 2
    edge.clock.advance(1.1)
    with pytest.raises(Dropped):
        await bounded(wires[1].answer("GET"))
    await eventually(lambda: not verdicts.live_reads())


@pytest.mark.judging
async def test_a_drain_that_is_undone_lengthens_no_read_beyond_its_token(edge: Edge) -> None:
    tail = await made(edge, "/shared/s")
    wire = await edge.begin(f"/shared/s?live=sse&offset={tail}", bearer("ada", exp=WALL + 20))
    assert (await bounded(wire.head())).status == 200
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: any(topic.is_confirmed and topic.readers == 1 for topic in topics()))
    edge.gateway.drain(50)
    assert edge.gateway.undo_drain()
    edge.clock.advance(20)
    edge.clock.advance(0.2)
    await bounded(wire.body())
    await eventually(lambda: not edge.gateway.routes.verdicts.live_reads())


@pytest.mark.judging
async def test_each_closing_spelling_of_a_write_needs_the_permission_to_close(edge: Edge) -> None:
    await made(edge, "/s")
    appender = {"Content-Type": "text/plain", **bearer("eve", streams=["append /s"])}
    assert (await edge.send("POST", "/s", appender, b"x")).status == 204
    for fields in ("Stream-Closed: true", "Stream-Closed: false\r\nStream-Closed: true", "stream-closed: false, TRUE"):
        name, _, value = fields.partition(": ")
        assert (await edge.send("POST", "/s", {**appender, name: value}, b"x")).status == 403
