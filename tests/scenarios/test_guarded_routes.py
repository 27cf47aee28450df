"""Routes with rules who may, and the rest of HTTP: metadata, preflights, private replies, other routes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.config.routes import RouteConfig
from gateway.config.server import ServerConfig
from gateway.origin.app import RunningOrigin
from gateway.server.header_meanings import Section
from gateway.server.query_credentials import VerdictKey
from gateway.server.remembered import RememberedAnswer
from gateway.server.request import Peer
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.credentials import ISSUER, bearer, jwt_rule, signed, signed_rule
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.wire import Answer

pytestmark = pytest.mark.judging


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    rules = [{"by": "public", "streams": ["/public/**"]}, jwt_rule(tmp_path), signed_rule(tmp_path)]
    return {"auth": rules, "credentials": "shared"}


# -- RFC 9728


@pytest.mark.http_2
async def test_a_challenge_names_metadata_whose_resource_is_the_url_that_was_asked_for(edge: Edge) -> None:
    for path in ("/ada/s", "/ada/%22x%22", "/"):
        for headers in ({}, bearer("ada", exp=1), bearer("eve")):
            refused = await edge.get(f"{path}?offset=-1", headers)
            assert refused.status in (401, 403)
            url = refused.headers["WWW-Authenticate"].partition('resource_metadata="')[2].rstrip('"')
            site = f"{edge.scheme}://edge.test"
            assert url == f"{site}/.well-known/oauth-protected-resource{path.rstrip('/')}"
            found = await edge.get(url.removeprefix(site))
            assert (found.status, found.headers["Content-Type"]) == (200, "application/json")
            assert found.headers["Access-Control-Allow-Origin"] == "*"
            assert json.loads(found.body) == {
                "resource": f"{site}{path.rstrip('/')}",
                "authorization_servers": [ISSUER],
                "bearer_methods_supported": ["header"],
                "authorization_details_types_supported": ["durable-streams"],
                "resource_name": "default",
            }
    assert (await edge.send("HEAD", "/.well-known/oauth-protected-resource/x")).status == 200
    for target in ("/.well-known/oauth-protected-resource?x=1", "/.well-known/oauth-protected-resources"):
        assert (await edge.get(target)).status == 401


async def test_a_route_without_rules_for_tokens_has_no_metadata(
    start: Start, origin: RunningOrigin, tmp_path: Path
) -> None:
    edge = await start(origin.url, auth=[signed_rule(tmp_path)], credentials="shared")
    refused = await edge.get("/.well-known/oauth-protected-resource/s")
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, 'Bearer realm="default"')


# -- replies that the origin marks private


@pytest.mark.parametrize(
    ("cache_control", "is_stored"),
    [("private", True), ("private, max-age=60", True), ("private, no-store", False), ('private="etag"', False)],
)
async def test_private_replies_are_shared_by_authorised_readers_if_the_operator_says_so(
    hostile: Hostile, start: Start, settings: dict[str, Any], cache_control: str, *, is_stored: bool
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        more = {"Cache-Control": cache_control, "Stream-Closed": "true"}
        writer.write(part_of_stream(b"x" if "offset=0001" not in asked.target else b"", "0001", **more))

    for store_private in (True, False):
        origin = await hostile(script, takes_head=True)
        edge = await start(origin.url, **settings, store_private=store_private)
        for path in ("/shared/s", "/public/s"):
            origin.asked.clear()
            for name in ("ada", "bob", "eve"):
                for _ in range(2):
                    read = await edge.get(f"{path}?offset=-1", bearer(name))
                    assert (read.status, read.body) == (200, b"x")
                    assert "private" in read.headers["Cache-Control"]
                    assert "public" not in read.headers["Cache-Control"]
                    assert not store_private or "Authorization" in read.headers.getall("Vary")
            assert (len(origin.reads) == 1) is (store_private and is_stored), (path, store_private)


# -- what reaches the origin


async def ok(asked: Asked, writer: asyncio.StreamWriter) -> None:
    if asked.method == "OPTIONS":
        writer.write(answer("204 No Content", {"Access-Control-Allow-Origin": "https://site.test"}))
    else:
        writer.write(part_of_stream(b"", "0001"))


PREFLIGHT = {"Origin": "https://site.test", "Access-Control-Request-Method": "POST"}


async def preflight(edge: Edge, path: str = "/ada/s", **more: str) -> Answer:
    return await edge.send("OPTIONS", path, {**PREFLIGHT, **more})


async def test_preflights_without_cors_at_the_edge_reach_the_origin_without_credentials(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    origin = await hostile(ok, takes_head=True)
    edge = await start(origin.url, **settings, principal_header="x-principal")
    passed = await preflight(edge, **{"X-Principal": "root", "Cookie": "a=b", **bearer("ada")})
    assert (passed.status, passed.headers["Access-Control-Allow-Origin"]) == (204, "https://site.test")
    assert not {"authorization", "cookie", "x-principal"} & {name.lower() for name in origin.asked[0].headers}
    assert (await preflight(edge, signed("/ada/s"))).status == 204
    assert "signature" not in origin.asked[1].target
    # Neither is a preflight.
    assert (await edge.send("OPTIONS", "/ada/s", {"Origin": "https://site.test"})).status == 401
    assert (await edge.send("OPTIONS", "/ada/s", PREFLIGHT, b"x")).status == 401
    assert len(origin.asked) == 2


async def test_the_origin_gets_no_credential_in_any_spelling_of_its_header(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    origin = await hostile(ok, takes_head=True)
    edge = await start(origin.url, **settings, credential_headers=["authorization", "x-api-key"])
    sent = {"X-Api-Key": "1", "X_Api_Key": "1", "x-api_key": "1", "X_Other": "1", **bearer("ada")}
    assert (await edge.send("POST", "/ada/s", sent, b"x")).status == 200
    assert [name for name in origin.asked[0].headers if name.lower().startswith(("x", "auth"))] == ["X_Other"]


@pytest.mark.parametrize("header", ["Authorization", "X-Key"])
async def test_the_origin_gets_the_routes_own_credentials_only_with_what_the_gateway_has_authorised(
    hostile: Hostile, start: Start, settings: dict[str, Any], tmp_path: Path, header: str
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method == "PUT":
            writer.write(answer("201 Created", {"Content-Type": "text/plain", "Stream-Next-Offset": "0001"}))
        else:
            writer.write(answer("200 OK", {}))

    origin = await hostile(script)
    (tmp_path / "own").write_text("Bearer own")
    own = {"header": header, "file": str(tmp_path / "own")}
    edge = await start(origin.url, **settings, origin_credentials=own)
    theirs = {"Authorization": "Bearer callback-token"}
    for call in ("callback", "ack", "release"):
        assert (await edge.send("POST", f"/__ds/subscriptions/x/{call}", theirs, b"{}")).status == 200
        assert origin.asked[-1].headers.getall("Authorization") == ["Bearer callback-token"]
        assert (await edge.send("POST", f"/__ds/subscriptions/x/{call}", {}, b"{}")).status == 200
    assert (await edge.get("/__ds/jwks.json")).status == 200
    assert (await preflight(edge)).status == 200
    assert (await preflight(edge, **bearer("ada"))).status == 200
    assert not any("own" in value for asked in origin.asked for value in asked.headers.values())
    for _ in range(2):
        assert (await edge.send("PUT", "/ada/s", bearer("ada"), b"")).status == 201
        assert origin.asked[-1].headers.getall(header) == ["Bearer own"]


async def test_the_answer_to_a_preflight_shows_nothing_of_a_stream(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        of_stream = {"Stream-Next-Offset": "0007", "stream-closed": "true", "Producer-Epoch": "3"}
        cors = {
            "Access-Control-Allow-Origin": "https://site.test",
            "Access-Control-Expose-Headers": "Stream-Next-Offset",
        }
        writer.write(answer("204 No Content", {**of_stream, **cors}))

    origin = await hostile(script)
    edge = await start(origin.url, **settings)
    for _ in range(2):
        passed = await preflight(edge)
        assert passed.headers["Access-Control-Allow-Origin"] == "https://site.test"
        assert not [name for name in passed.headers if name.lower().startswith(("stream-", "producer-"))]


async def test_preflights_are_answered_at_the_edge_with_cors_and_passed_by_no_route_that_conceals(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    origin = await hostile(ok, takes_head=True)
    concealing = await start(origin.url, **settings, conceal=True)
    assert (await preflight(concealing)).status == 401
    own = await start(origin.url, **settings, conceal=True, cors={})
    assert (await preflight(own)).status == 204
    assert not origin.asked


async def test_no_header_makes_the_origin_take_a_request_for_one_with_another_method(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    origin = await hostile(ok, takes_head=True)
    edge = await start(origin.url, **settings, cache=False)
    names = ("X-HTTP-Method-Override", "x-http-method", "X-METHOD-OVERRIDE", "X_HTTP_Method_Override")
    for name in names:
        sent = {name: "DELETE", **bearer("eve", streams=["read,append /ada/s"])}
        assert (await edge.send("POST", "/ada/s", sent, b"x")).status == 200
        assert (await edge.get("/ada/s", sent)).status == 200
    assert len(origin.asked) == 2 * len(names)
    assert not any(
        "override" in name.lower() or "method" in name.lower() for one in origin.asked for name in one.headers
    )


# -- other routes


async def test_hits_of_a_route_without_rules_are_sent_without_a_look_at_those_of_others(
    origin: RunningOrigin, clock: Any, tmp_path: Path
) -> None:
    rules: Any = [jwt_rule(tmp_path)]
    routes = (
        RouteConfig(name="free", prefix="/free", origin=origin.url),
        RouteConfig(name="kept", prefix="/shared", origin=origin.url, auth=rules, credentials="shared"),
    )
    server = ServerConfig(listen="127.0.0.1:0", admin="127.0.0.1:0")
    edge = Edge(await start_gateway(GatewayConfig(server=server, routes=routes), clock=clock), clock)
    looks: list[str] = []
    clients = edge.gateway.clients
    admits = clients.admits

    def counted(answer: RememberedAnswer, peer: Peer, section: Section, key: VerdictKey | None) -> bool:
        looks.append(answer.route)
        return admits(answer, peer, section, key)

    clients.admits = counted
    try:
        text = {"Content-Type": "text/plain", "Stream-Closed": "true"}
        wire = await edge.wire()
        for path, headers in (("/free/s", {}), ("/shared/s", bearer("eve", streams=["* /**"]))):
            assert (await edge.send("PUT", path, {**text, **headers}, b"x")).status == 201
            for _ in range(4):
                await wire.ask(path, headers)
                assert (await bounded(wire.answer("GET"))).body == b"x"
        assert clients.remembered is not None
        assert clients.remembered.served >= 4
        assert set(looks) == {"kept"}
    finally:
        await edge.leave()
        await edge.gateway.stop()
