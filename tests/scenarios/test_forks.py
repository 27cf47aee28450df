"""Forks: the stream that is judged is the one that the origin forks, and it is a stream of the same route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.config.routes import RouteConfig
from gateway.config.server import ServerConfig
from gateway.origin.app import RunningOrigin
from tests.scenarios.auth_service import AuthService
from tests.scenarios.conftest import Edge, Hostile, Start
from tests.scenarios.credentials import bearer, jwt_rule
from tests.scenarios.hostile import Asked, answer
from tests.scenarios.wire import Answer

pytestmark = pytest.mark.judging

TEXT = {"Content-Type": "text/plain"}
Serve = Callable[..., Awaitable[Edge]]


@pytest.fixture
async def serve(origin: RunningOrigin, clock: ManualClock) -> AsyncIterator[Serve]:
    """Starts a gateway with these routes."""
    edges: list[Edge] = []

    async def start_one(*routes: dict[str, Any]) -> Edge:
        server = ServerConfig(listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1)
        made = tuple(RouteConfig(**{"origin": origin.url, "credentials": "shared", **route}) for route in routes)
        edges.append(Edge(await start_gateway(GatewayConfig(server=server, routes=made), clock=clock), clock))
        return edges[-1]

    yield start_one
    for edge in edges:
        await edge.leave()
        await edge.gateway.stop()


async def fork(edge: Edge, path: str, source: str, headers: dict[str, str] | None = None) -> Answer:
    return await edge.send("PUT", path, {**TEXT, "Stream-Forked-From": source, **(headers or {})})


async def created(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(answer("201 Created", {"Content-Type": "text/plain", "Stream-Next-Offset": "0001"}))


# -- the source is a stream of the same route


async def test_a_writer_of_one_tenant_forks_no_stream_of_another(
    serve: Serve, origin: RunningOrigin, tmp_path: Path
) -> None:
    rule = jwt_rule(tmp_path, permissions=[])
    edge = await serve(
        {"name": "a", "host": "a.test", "origin": f"{origin.url}/tenant-a", "auth": [rule]},
        {"name": "b", "host": "b.test", "origin": f"{origin.url}/tenant-b", "auth": [{**rule, "audience": ["b"]}]},
    )
    eve = {"Host": "a.test", **bearer("eve", streams=["* /**"])}
    bob = {"Host": "b.test", **bearer("bob", aud="b", streams=["* /**"])}
    assert (await edge.send("PUT", "/secret", {**TEXT, **bob}, b"secret of b")).status == 201
    # The origin calls the stream `/tenant-b/secret`.  At tenant a, that is `/tenant-a/tenant-b/secret`.
    assert (await fork(edge, "/mine", "/tenant-b/secret", eve)).status == 404
    assert (await edge.get("/mine", eve)).status == 404
    for source in ("//b.test/secret", "http://b.test/secret"):
        assert (await fork(edge, "/mine", source, eve)).status == 403
    assert (await fork(edge, "/copy", "/secret", bob)).status == 201
    assert (await edge.get("/copy", bob)).body == b"secret of b"


@pytest.mark.parametrize("spelling", ["/secret/s", "/x/../secret/s", "/%73ecret/s", " /secret/s"])
async def test_a_stream_of_another_route_is_forked_by_no_route_with_or_without_rules(
    serve: Serve, tmp_path: Path, spelling: str
) -> None:
    rule = jwt_rule(tmp_path, permissions=["* /**"])
    edge = await serve(
        {"name": "all", "auth": [rule]},
        {"name": "secret", "prefix": "/secret", "auth": [{**rule, "audience": ["secret"]}]},
        {"name": "scratch", "prefix": "/scratch"},
    )
    bob, eve = bearer("bob", aud="secret"), bearer("eve")
    assert (await edge.send("PUT", "/secret/s", {**TEXT, **bob}, b"secret")).status == 201
    for path, headers in (("/mine", eve), ("/scratch/mine", {}), ("/scratch/__ds/x", {})):
        assert (await fork(edge, path, spelling, headers)).status == 403, path
    assert (await edge.get("/mine", eve)).status == 404
    assert (await edge.get("/scratch/mine")).status == 404
    # A route may fork its own streams.
    assert (await fork(edge, "/secret/copy", spelling, bob)).status == 201
    assert (await edge.get("/secret/copy", bob)).body == b"secret"


async def test_no_header_with_underscores_forks_or_closes_a_stream(
    serve: Serve, hostile: Hostile, tmp_path: Path
) -> None:
    origin = await hostile(created)
    edge = await serve(
        {"name": "kept", "origin": origin.url, "auth": [jwt_rule(tmp_path)]},
        {"name": "scratch", "origin": origin.url, "prefix": "/scratch"},
    )
    sent = {**TEXT, "Stream_Forked_From": "/ada/s", "stream-forked_from": "/ada/s", "Stream_Closed": "true"}
    for path, headers in (("/eve/f", bearer("eve", streams=["create /eve/*"])), ("/scratch/f", {})):
        assert (await edge.send("PUT", path, {**sent, **headers})).status == 201
        assert not [name for name in origin.asked[-1].headers if name.lower().startswith("stream")]


async def test_a_header_that_replaces_the_method_forks_no_stream_of_another_route(
    serve: Serve, hostile: Hostile, tmp_path: Path
) -> None:
    origin = await hostile(created)
    edge = await serve(
        {"name": "secret", "origin": origin.url, "prefix": "/secret", "auth": [jwt_rule(tmp_path)]},
        {"name": "scratch", "origin": origin.url, "prefix": "/scratch"},
    )
    sent = {**TEXT, "X-HTTP-Method-Override": "PUT", "Stream-Forked-From": "/secret/s"}
    for method in ("POST", "PATCH"):
        assert (await edge.send(method, "/scratch/mine", sent, b"x")).status == 403
    assert not origin.asked


async def test_a_source_that_nobody_has_judged_does_not_reach_the_origin(
    serve: Serve, hostile: Hostile, tmp_path: Path
) -> None:
    origin = await hostile(created, takes_head=True)
    edge = await serve(
        {"name": "kept", "origin": origin.url, "auth": [jwt_rule(tmp_path)]},
        {"name": "scratch", "origin": origin.url, "prefix": "/scratch", "cache": False},
    )
    preflight = {"Origin": "https://a.test", "Access-Control-Request-Method": "PUT"}
    for source in ("/ada/s", "/scratch/s", "x"):
        sent = {"X-HTTP-Method-Override": "PUT", "Stream-Forked-From": source}
        for method, path, headers in (
            ("GET", "/scratch/mine", {}),
            ("HEAD", "/scratch/mine", {}),
            ("POST", "/__ds/subscriptions/one/ack", {}),
            ("OPTIONS", "/ada/s", preflight),
        ):
            origin.asked.clear()
            await edge.send(method, path, {**sent, **headers}, b"" if method == "POST" else None)
            assert len(origin.asked) == 1, (method, path, source)
            assert "Stream-Forked-From" not in origin.asked[0].headers, (method, path, source)


# -- the source has one name for clients and another for the origin


@pytest.mark.parametrize(
    ("route", "public"),
    [
        ({}, "/pub/x"),
        ({"origin": "/base"}, "/pub/x"),
        ({"prefix": "/v1"}, "/v1/pub/x"),
        ({"prefix": "/v1", "strip_prefix": True}, "/v1/pub/x"),
        ({"prefix": "/v1", "strip_prefix": True, "origin": "/base/"}, "/v1/pub/x"),
    ],
)
async def test_the_source_is_named_by_the_path_of_its_url_at_the_gateway(
    serve: Serve, origin: RunningOrigin, tmp_path: Path, route: dict[str, Any], public: str
) -> None:
    place = {**route, "origin": origin.url + route.get("origin", "")}
    for settings in ({}, {"auth": [jwt_rule(tmp_path, permissions=["* /**"])]}):
        edge = await serve({**place, **settings})
        folder = f"{public}-{'auth' in settings}"
        assert (await edge.send("PUT", f"{folder}/~x", {**TEXT, **bearer()}, b"public")).status == 201
        for number, spelling in enumerate(("~x", "%7ex", "./~x")):
            path = f"{folder}/fork-{number}"
            assert (await fork(edge, path, f"{folder}/{spelling}", bearer())).status == 201
            assert (await edge.get(path, bearer())).body == b"public"


async def test_the_permission_is_checked_for_the_stream_that_the_origin_forks(
    start: Start, origin: RunningOrigin, tmp_path: Path
) -> None:
    edge = await start(
        origin.url, prefix="/v1", strip_prefix=True, auth=[jwt_rule(tmp_path, permissions=[])], credentials="shared"
    )
    root, eve = bearer("root", streams=["* /**"]), bearer("eve", streams=["* /v1/eve/**", "read /v1/pub/*"])
    assert (await edge.send("PUT", "/v1/pub/x", {**TEXT, **root}, b"public")).status == 201
    assert (await edge.send("PUT", "/v1/v1/pub/x", {**TEXT, **root}, b"secret")).status == 201
    assert (await fork(edge, "/v1/eve/f", "/v1/v1/pub/x", eve)).status == 403
    # Without its prefix, this path would begin with two slashes.
    assert (await fork(edge, "/v1/eve/f", "/v1//pub/x", eve)).status == 403
    assert (await fork(edge, "/v1/eve/f", "/v1/pub/x", eve)).status == 201
    assert (await edge.get("/v1/eve/f", eve)).body == b"public"


@pytest.mark.http_2
async def test_without_rules_the_origin_answers_for_a_source_that_is_missing(edge: Edge) -> None:
    missing = await fork(edge, "/f", "/missing")
    assert (missing.status, missing.body.strip()) == (404, b"Source stream not found")
    for source in ("", "x", "/x?y=1", "/x#y", "/%zz", "/__ds/x", "/a%2F__ds"):
        refused = await fork(edge, "/f", source)
        assert (refused.status, refused.body.strip()) == (400, b"Stream-Forked-From must be the path of a stream")


# -- who may


async def test_a_client_is_authenticated_before_the_source_of_its_fork_is_refused(
    origin: RunningOrigin, start: Start, tmp_path: Path
) -> None:
    for settings, status in (({}, 403), ({"conceal": True}, 404)):
        edge = await start(origin.url, auth=[jwt_rule(tmp_path)], credentials="shared", **settings)
        for source in ("x", "", "/ada/s?x=1"):
            refused = await fork(edge, "/ada/f", source)
            assert (refused.status, "WWW-Authenticate" in refused.headers) == (401, True)
            assert (await fork(edge, "/ada/f", source, bearer())).status == status


async def test_two_sources_are_refused(start: Start, origin: RunningOrigin, tmp_path: Path) -> None:
    for settings, status in (({}, 400), ({"auth": [jwt_rule(tmp_path)], "credentials": "shared"}, 403)):
        edge = await start(origin.url, **settings)
        wire = await edge.wire()
        credential = bearer()["Authorization"]
        lines = f"Host: h\r\nAuthorization: {credential}\r\n" + "Stream-Forked-From: /ada/s\r\n" * 2
        await wire.send(f"PUT /ada/f HTTP/1.1\r\n{lines}Content-Length: 0\r\n\r\n".encode())
        assert (await wire.answer("PUT")).status == status


async def test_a_public_stream_may_be_forked_by_whoever_may_fork(
    origin: RunningOrigin, start: Start, tmp_path: Path
) -> None:
    rules = [{"by": "public", "streams": ["/public/**"]}, jwt_rule(tmp_path)]
    edge = await start(origin.url, auth=rules, credentials="shared")
    assert (await edge.send("PUT", "/public/s", {**TEXT, **bearer("w", streams=["* /**"])}, b"x")).status == 201
    assert (await fork(edge, "/ada/f", "/public/s", bearer())).status == 201
    assert (await fork(edge, "/ada/g", "/public/s", bearer(streams=["create /ada/g"], sub="eve"))).status == 403


async def test_a_service_learns_the_source_by_its_name_at_the_gateway(
    serve: Serve, hostile: Hostile, origin: RunningOrigin
) -> None:
    service = await AuthService.open(hostile)
    rule = {"by": "forward", "url": f"{service.url}/verify"}
    edge = await serve({"origin": f"{origin.url}/base", "auth": [rule]})
    assert (await edge.send("PUT", "/s", {**TEXT, "Authorization": "Bearer ada"}, b"x")).status == 201
    assert (await fork(edge, "/f", "/./s", {"Authorization": "Bearer ada"})).status == 201
    assert service.asked[-1].headers["Stream-Forked-From"] == "/s"
    assert (await fork(edge, "/g", "/../x?y", {"Authorization": "Bearer ada"})).status == 403
