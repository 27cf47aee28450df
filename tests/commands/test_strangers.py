"""Servers that are not what the commands take them for: redirects, words with brackets, another API's JSON."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from gateway.origin.app import RunningOrigin
from tests.commands.conftest import Client
from tests.commands.runs import finished, running

Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
Serve = Callable[[Answer], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start a server with this answer to everything; its URL."""
    async with AsyncExitStack() as stack:

        async def start(answer: Answer) -> str:
            runner = web.ServerRunner(web.Server(answer))
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            return f"http://127.0.0.1:{runner.addresses[0][1]}"

        yield start


# -- redirects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("create", [[], ["--create", "application/json"]])
async def test_a_redirected_write_fails_and_says_where_to(
    client: Client, url: str, serve: Serve, code: int, create: list[str]
) -> None:
    await client.put("/s")

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=code, headers={"Location": f"{url}/s"})

    elsewhere = await serve(answer)
    status, out, err = await finished("append", f"{elsewhere}/s", *create, data=b"1 2")
    method = "PUT" if create else "POST"
    said = f"{elsewhere}/s: {code}, redirected to {url}/s; a {method} does not follow"
    assert (status, out, err) == (
        1,
        "",
        f"durable-gateway: {said} (appended 0 {'bytes' if create else 'messages'} before)\n",
    )
    assert await client.content("/s") == b"[]"


async def test_a_purge_is_not_redirected_either(admin: str, serve: Serve) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": f"{admin}/api/purge"})

    elsewhere = await serve(answer)
    status, out, err = await finished("purge", "/s", "--admin", elsewhere)
    assert (status, out) == (1, "")
    assert (
        err == f"durable-gateway: {elsewhere}/api/purge: 302, redirected to {admin}/api/purge; a POST does not follow\n"
    )


async def test_headers_go_to_the_origin_that_was_asked_for_and_to_no_other(
    client: Client, url: str, serve: Serve
) -> None:
    await client.put("/s", b"[1]", Stream_Closed="true")
    seen: list[tuple[str, str | None, str | None]] = []

    def noted(where: str, location: str) -> Answer:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            seen.append((where, request.headers.get("X-Key"), request.headers.get("Authorization")))
            return web.Response(status=307, headers={"Location": location})

        return answer

    second = await serve(noted("second", f"{url}/s"))
    first = await serve(noted("first", f"{second}/s"))
    status, out, err = await finished("tail", f"{first}/s", "-H", "X-Key: k", "-H", "Authorization: a")
    assert (status, out, err) == (0, "1\n", "")
    assert seen == [("first", "k", "a"), ("second", None, None)]


async def test_a_redirect_that_leads_nowhere_is_one_line(serve: Serve) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": request.path})

    url = await serve(answer)
    assert await finished("tail", f"{url}/s") == (1, "", f"durable-gateway: {url}/s?offset=-1: redirected too often\n")


# -- words -------------------------------------------------------------------------------------------------------------

BRACKETS = "shard [/orders/1] is [bold]busy[/bold] :boom:"


async def test_a_servers_words_are_shown_as_they_are(client: Client, durable_origin: RunningOrigin, url: str) -> None:
    await client.put("/s")
    durable_origin.origin.faults.status(503, kind="append", times=1, text=BRACKETS)
    status, _, err = await finished("append", f"{url}/s", data=b"1")
    assert (status, err) == (0, f"503 {BRACKETS}; trying again\n")


async def test_offsets_with_brackets_are_shown_as_they_are(serve: Serve) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(
            text="[1]",
            content_type="application/json",
            headers={"Stream-Next-Offset": "[bold]:boom:", "Stream-Closed": "true", "Stream-Up-To-Date": "true"},
        )

    assert await finished("tail", f"{await serve(answer)}/s", "--offsets") == (0, "1\n", "offset [bold]:boom:\n")


# -- other things ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["{}", '{"streams": 1, "purged": [], "changed": 2, "server": [], "subscribers": 3}'])
@pytest.mark.parametrize("command", [["streams"], ["top"], ["purge", "/s"], ["drain"], ["reload"]])
async def test_another_servers_json_is_one_line(serve: Serve, command: list[str], body: str) -> None:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=body, content_type="application/json")

    url = await serve(answer)
    status, out, err = await finished(*command, "--admin", url)
    assert (status, out) == (1, "")
    assert err.startswith(f"durable-gateway: {url} does not answer as the admin port of this version does")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["tail", "http://a..b/x"], 2, "Invalid value for 'URL': expected an http:// or https:// URL"),
        (["append", f"http://{'a' * 64}.b/x"], 2, "Invalid value for 'URL': expected an http:// or https:// URL"),
        (["streams", "--admin", "http://a..b"], 2, "Invalid value for '--admin': expected an http:// or https:// URL"),
        (["streams", "--admin", "http://u:p@127.0.0.1:1"], 1, "credentials in the URL and in an Authorization header"),
        (["tail", "http://u:p@a.b/x", "-H", "authorization: x"], 1, "credentials in the URL and in an Authorization"),
    ],
)
async def test_urls_that_cannot_be_asked_are_one_line(arguments: list[str], status: int, said: str) -> None:
    got = await finished(*arguments, environ={"DURABLE_GATEWAY_ADMIN_TOKEN": "secret"})
    assert got[:2] == (status, "")
    assert got[2].startswith(f"durable-gateway: {said}")
    assert got[2].count("\n") == 1


async def test_what_failed_before_a_disk_was_full_is_said_and_no_more() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        async with running("streams", "--admin", "127.0.0.1:1", stdout=full) as run:
            status, _, err = await run.finished()
    finally:
        os.close(full)
    assert (status, err) == (1, "durable-gateway: admin port: cannot connect to 127.0.0.1:1: Connection refused\n")


@pytest.mark.parametrize("command", ["tail", "append", "streams", "top", "--help", "--version"])
async def test_a_disk_that_is_full_is_one_line(client: Client, url: str, admin: str, command: str) -> None:
    await client.put("/s", b"[1]", Stream_Closed="true")
    await client.put("/t")
    more = {"tail": [f"{url}/s"], "append": [f"{url}/t"], "streams": ["--admin", admin], "top": ["--admin", admin]}
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        async with running(command, *more.get(command, []), stdout=full) as run:
            run.end_input()
            status, _, err = await run.finished()
    finally:
        os.close(full)
    assert (status, err.split(" (")[0].strip()) == (1, "durable-gateway: cannot write: No space left on device")
    assert err.count("\n") == 1


async def test_a_reader_who_leaves_is_no_trouble(client: Client, url: str, admin: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        async with running("streams", "--admin", admin, stdout=writing) as run:
            assert (await run.finished())[::2] == (1, "")
    finally:
        os.close(writing)
