"""The console's endpoints on the admin port, requested as a page could request them."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from aiohttp import ClientPayloadError

from gateway.ops.console.site import POLICY
from tests.console.visit import BOUND_S, JSON, Stage
from tests.served import dev_gateway, served

pytestmark = pytest.mark.asyncio(loop_scope="session")


def reading(target: str) -> str:
    return f"/api/console/read?target={quote(target, safe='')}"


async def test_stream_content_never_runs_on_the_admin_ports_origin(stage: Stage) -> None:
    await stage.create("/page", b"<script>alert(1)</script>", content_type="text/html")
    async with stage.session.get(stage.gateway.admin_url + reading("/page?offset=-1")) as reply:
        assert await reply.read() == b"<script>alert(1)</script>"
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
    assert reply.headers["X-Content-Type-Options"] == "nosniff"
    assert reply.headers["Content-Disposition"] == "attachment"
    assert reply.headers["Relayed-Content-Type"] == "text/html"
    assert reply.headers["Stream-Up-To-Date"] == "true"


async def test_the_page_has_a_strict_policy_and_is_revalidated(stage: Stage) -> None:
    async with stage.session.get(stage.gateway.admin_url + "/") as reply:
        assert reply.headers["Content-Security-Policy"] == POLICY
        assert "unsafe" not in POLICY
        assert POLICY.startswith("default-src 'none';")
        etag = reply.headers["ETag"]
    async with stage.session.get(stage.gateway.admin_url + "/", headers={"If-None-Match": etag}) as reply:
        assert reply.status == 304
    async with stage.session.get(stage.gateway.admin_url + "/console/../relay.py") as reply:
        assert reply.status == 404


@pytest.mark.parametrize("site", ["cross-site", "same-site", "none"])
async def test_only_the_page_itself_may_read(stage: Stage, site: str) -> None:
    url = stage.gateway.admin_url + reading("/page")
    async with stage.session.get(url, headers={"Sec-Fetch-Site": site}) as reply:
        assert reply.status == 403


@pytest.mark.parametrize("target", ["", "demo", "//evil@host /x", "/a b", "/a#b", "/é", "/a\r\nX: y"])
async def test_an_invalid_target_is_refused(stage: Stage, target: str) -> None:
    async with stage.session.get(stage.gateway.admin_url + reading(target)) as reply:
        assert reply.status == 400
        assert "target" in (await reply.json())["error"]


@pytest.mark.parametrize("more", ["basin=a%20b", "basin=a%0D%0AX:y", "accept=text/html"])
async def test_an_invalid_basin_or_media_type_is_refused(stage: Stage, more: str) -> None:
    async with stage.session.get(f"{stage.gateway.admin_url}{reading('/a')}&{more}") as reply:
        assert reply.status == 400
        assert "basin" in (await reply.json())["error"]


async def test_a_page_that_closes_leaves_no_reader_behind(stage: Stage) -> None:
    await stage.create("/live", 1)
    async with stage.session.get(stage.gateway.admin_url + reading("/live?offset=-1&live=sse")) as reply:
        await reply.content.readany()
        await stage.until_readers(1)
        reply.close()
    await stage.until_readers(0)


async def test_a_truncated_read_is_truncated_for_the_page_too(stage: Stage) -> None:
    await stage.create("/broken", b"x" * 500_000, content_type="text/plain")
    stage.origin.origin.faults.truncate(after_bytes=100_000, times=10)
    async with stage.session.get(stage.gateway.admin_url + reading("/broken?offset=-1")) as reply:
        assert reply.status == 200
        with pytest.raises(ClientPayloadError):
            await reply.read()


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ({"do": "truncate", "target": "/x"}, "do:"),
        ({"do": "create"}, "target:"),
        ({"do": "create", "target": "x"}, "target:"),
        ({"do": "create", "target": "/x", "content_type": "text/plain\r\nX: y"}, "content_type:"),
        ({"do": "create", "target": "/x", "host": "a/b"}, "host:"),
        ({"do": "create", "target": "/x", "basin": "a b"}, "basin:"),
        ({"do": "create", "target": "/x", "ttl_s": "1"}, "ttl_s:"),
        ({"do": "create", "target": "/x", "more": 1}, "more:"),
    ],
)
async def test_an_invalid_write_is_refused_with_the_field_at_fault(
    stage: Stage, command: dict[str, Any], fault: str
) -> None:
    async with stage.session.post(stage.gateway.admin_url + "/api/console/write", json=command) as reply:
        assert reply.status == 400
        error = (await reply.json())["error"]
    assert error.startswith(fault)
    assert "\n" not in error


async def test_writes_reach_the_stream_and_return_the_gateways_answer(stage: Stage) -> None:
    async def write(**command: Any) -> tuple[int, str]:
        async with stage.session.post(stage.gateway.admin_url + "/api/console/write", json=command) as reply:
            assert reply.status == 200, await reply.text()
            said = await reply.json()
            return said["status"], said["text"]

    assert (await write(do="create", target="/w", content_type=JSON, ttl_s=60))[0] == 201
    assert (await write(do="append", target="/w", content_type=JSON, body='{"n": 1}'))[0] == 204
    assert json.loads(await stage.read("/w?offset=-1")) == [{"n": 1}]
    assert (await write(do="close", target="/w"))[0] == 204
    assert (await write(do="append", target="/w", content_type=JSON, body="2"))[0] == 409
    assert (await write(do="delete", target="/w"))[0] == 204
    assert (await write(do="delete", target="/w"))[0] == 404


@pytest.mark.parametrize("settings", [{"console_writes": False}])
async def test_without_permission_nothing_is_written(stage: Stage) -> None:
    command = {"do": "create", "target": "/w", "content_type": JSON}
    async with stage.session.post(stage.gateway.admin_url + "/api/console/write", json=command) as reply:
        assert reply.status == 403
    assert not (await stage.admin("/api/console"))["may_write"]
    async with stage.session.head(stage.gateway.gateway_url + "/w") as reply:
        assert reply.status == 404


async def test_dev_lets_the_console_write() -> None:
    def may_write() -> bool:
        with (
            served(dev_gateway(), "admin") as urls,
            urlopen(urls["admin"] + "/api/console", timeout=BOUND_S) as reply,
        ):
            return bool(json.load(reply)["may_write"])

    assert await asyncio.to_thread(may_write)


@pytest.mark.parametrize("settings", [{"host": "streams.example.org", "prefix": "/v1", "strip_prefix": True}])
async def test_a_route_with_a_host_of_its_own_is_reached_by_its_name(stage: Stage) -> None:
    await stage.create("/named", 1)
    url = stage.gateway.admin_url + reading("/v1/named?offset=-1")
    async with stage.session.get(url) as reply:
        assert reply.status == 404
    async with stage.session.get(url + "&host=streams.example.org") as reply:
        assert (reply.status, json.loads(await reply.read())) == (200, [1])


@pytest.mark.parametrize("environ", [{"DURABLE_GATEWAY_ADMIN_TOKEN": "secret"}])
async def test_only_the_files_are_served_without_the_token(stage: Stage) -> None:
    async with asyncio.timeout(BOUND_S):
        statuses = {}
        for path in ("/", "/console/main.js", "/api/console", reading("/x"), "/metrics", "/api/overview"):
            async with stage.session.get(stage.gateway.admin_url + path) as reply:
                statuses[path] = reply.status
    assert list(statuses.values()) == [200, 200, 401, 401, 401, 401]
