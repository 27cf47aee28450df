"""Official clients on routes that authorise: tokens that are renewed, signed URLs and signed cookies.

Signed URLs and cookies do not fit Yjs: its provider adds parameters such as `awareness` to its URLs, and the gateway
refuses parameters that are not signed.  Editors of Yjs send tokens.  The AI SDK's transport reads streams without
headers: a page must replace `fetch` to send a token, or rely on the browser's cookies.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from durable_streams import astream

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.auth.signed_urls import Signed, signed_query
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.protocol.mode import Mode
from tests.clients.conftest import LONG_POLL_TIMEOUT_S, Edge, gateway_config
from tests.clients.program import Failed
from tests.clients.test_aisdk import WORDS, Aisdk
from tests.clients.test_yjs import COMPACTION_THRESHOLD_BYTES, SERVICE, Yjs
from tests.clients.typescript import TypeScript
from tests.scenarios.credentials import LINK_KEY, WALL, jwt_rule, signed_rule, token

JSON = "application/json"
COOKIE = "__Secure-s"
BOUND_S = 60.0
MESSAGES = [json.dumps({"n": number}).encode() for number in range(9)]


@pytest.fixture
def clock() -> ManualClock:
    """The gateway's clock: tokens expire when the test says so."""
    return ManualClock()


@pytest.fixture(params=["memory", "reference"])
async def edge(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Edge]:
    """A gateway with rules in front of the in-memory origin, and one in front of the reference server."""
    origin: RunningOrigin | None = None
    if request.param == "memory":
        origin = await start_origin(OriginSettings(long_poll_timeout_s=LONG_POLL_TIMEOUT_S))
    origin_url = origin.url if origin is not None else request.getfixturevalue("reference_server")
    rules = [jwt_rule(tmp_path, permissions=["* /clients/**"]), signed_rule(tmp_path, cookie=COOKIE)]
    async with ClientSession() as writer:
        config = gateway_config(origin_url, auth=rules, credentials="shared", long_poll_timeout_s=60)
        gateway = await start_gateway(config, clock=clock)
        yield Edge(gateway, origin_url, writer, origin)
        await gateway.stop()
        if origin is not None:
            await origin.stop(grace_s=0)


def items(batches: list[dict[str, Any]]) -> list[Any]:
    return [item for batch in batches for item in batch["batch"]]


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_a_token_renewed_in_the_middle_of_a_live_read_loses_and_doubles_nothing(
    edge: Edge, typescript: TypeScript, clock: ManualClock, path: str, live: str
) -> None:
    await edge.create(path, JSON, *MESSAGES[:2])
    await typescript.do("token", value=token("ada", exp=WALL + 40))
    await typescript.follow(edge.url + path, live, "json")
    batches = await typescript.until_up_to_date()
    # The client takes SSE connections that end within a second for a broken proxy, and the third one ends them.
    for count in (4, 6, 8) if live == "long-poll" else (8,):
        for message in MESSAGES[len(items(batches)) : count]:
            await edge.append(path, JSON, message)
        while len(items(batches)) < count:
            batches.append(await typescript.batch())
        await edge.until_followed(path)
        # The next one is there before this one ends.
        await typescript.do("token", value=token("ada", exp=clock.wall() + 80))
        clock.advance(41)
    await edge.append(path, JSON, MESSAGES[8])
    await edge.close(path)
    batches += await typescript.until_end()
    assert items(batches) == [json.loads(message) for message in MESSAGES]
    # Tokens are many, but the stream was followed by one request at a time.
    assert (
        edge.gateway.metrics.upstream_requests(Mode.SSE).value
        + edge.gateway.metrics.upstream_requests(Mode.LONGPOLL).value
        <= 8
    )


@pytest.mark.parametrize("edge", ["memory"], indirect=True)
async def test_a_token_that_is_not_renewed_ends_the_client_with_401(
    edge: Edge, typescript: TypeScript, clock: ManualClock, path: str
) -> None:
    await edge.create(path, JSON, *MESSAGES[:2])
    await typescript.do("token", value=token("ada", exp=WALL + 40))
    await typescript.follow(edge.url + path, "long-poll", "json")
    await typescript.until_up_to_date()
    await edge.until_followed(path)
    clock.advance(41)
    with pytest.raises(Failed) as failed:
        await typescript.until_end()
    assert failed.value.status == 401


async def test_the_python_client_goes_on_with_a_renewed_token(edge: Edge, clock: ManualClock, path: str) -> None:
    await edge.create(path, JSON, *MESSAGES[:2])
    tokens = [token("ada", exp=WALL + 40)]
    headers: dict[str, Any] = {"Authorization": lambda: f"Bearer {tokens[-1]}"}
    found: list[Any] = []
    async with (
        asyncio.timeout(BOUND_S),
        astream(edge.url + path, offset="-1", live="long-poll", headers=headers) as read,
    ):
        async for item in read.iter_json():
            found.append(item)
            if len(found) == len(MESSAGES):
                break
            if len(found) % 2 == 0:
                tokens.append(token("ada", exp=clock.wall() + 80))
                clock.advance(41)
                for message in MESSAGES[len(found) : len(found) + 2]:
                    await edge.append(path, JSON, message)
                if len(found) == 8:
                    await edge.append(path, JSON, MESSAGES[8])
    assert found == [json.loads(message) for message in MESSAGES]


def cookie(streams: str) -> str:
    """A Cookie field that is signed for longer than any test."""
    named = Signed(str(WALL + 10**6), streams=streams)
    return f"a=b; {COOKIE}={signed_query(named, LINK_KEY)}"


def link(path: str, *, methods: str = "", streams: str = "") -> str:
    """The query that signs a URL for longer than any test."""
    return signed_query(Signed(str(WALL + 10**6), methods=methods, streams=streams, path=path), LINK_KEY)


async def test_signed_urls_and_cookies_are_read_and_followed_by_the_official_clients(
    edge: Edge, typescript: TypeScript, path: str
) -> None:
    ways: tuple[tuple[str, dict[str, Any], str], ...] = (
        (f"{edge.url}{path}-url?{link(f'{path}-url')}", {}, "sse"),
        (f"{edge.url}{path}-cookie", {"Cookie": cookie(f"{path}-cookie")}, "long-poll"),
    )
    for url, headers, live in ways:
        stream = url.removeprefix(edge.url).partition("?")[0]
        await edge.create(stream, JSON, *MESSAGES[:3])
        async with asyncio.timeout(BOUND_S), astream(url, live=False, headers=headers) as read:
            assert await read.read_json() == [json.loads(message) for message in MESSAGES[:3]]
        if headers:
            await typescript.do("cookie", value=headers["Cookie"])
        await typescript.follow(url, live, "json")
        batches = await typescript.until_up_to_date()
        for message in MESSAGES[3:]:
            await edge.append(stream, JSON, message)
        await edge.close(stream)
        batches += await typescript.until_end()
        assert items(batches) == [json.loads(message) for message in MESSAGES]


@pytest.mark.parametrize("way", ["signed URL", "token, then signed cookie"])
async def test_a_chat_of_the_ai_sdk_resumes_its_answer_as_each_way_allows(edge: Edge, path: str, way: str) -> None:
    every = f"{path}/**"
    writes = link(path, methods="append,close,create,read", streams=every)
    queries = (link(path, streams=every), writes) if way == "signed URL" else ()
    async with Aisdk.start(edge.url + path, *queries) as chat:
        if not queries:
            await chat.do("send", headers={"Authorization": f"Bearer {token('ada')}"})
        errors = [await chat.do("ask", text="what is a stream?"), await chat.do("answer", words=WORDS[:8])]
        if not queries:
            await chat.do("send", headers={"Cookie": cookie(every)})
        errors += [await chat.do("open", tabs=1), await chat.do("leave", tabs=[0])]
        if not queries:
            # The cookie is for reads alone, and the application's server still has to append.
            await chat.do("send", headers={"Authorization": f"Bearer {token('ada')}"})
        errors += [await chat.do("answer", words=WORDS[8:]), await chat.do("finish")]
        assert [said["errors"] for said in errors if said.get("errors")] == []
        tabs = (await chat.do("tabs"))["tabs"]
    assert [tab["text"] for tab in tabs] == ["".join(WORDS[:8]), "".join(WORDS)]


@pytest.fixture(params=["memory", "reference"])
async def documents(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """URL of the origin that stores the documents of Yjs."""
    if request.param == "reference":
        yield request.getfixturevalue("reference_server")
        return
    origin = await start_origin(OriginSettings(long_poll_timeout_s=LONG_POLL_TIMEOUT_S))
    yield origin.url
    await origin.stop(grace_s=0)


async def test_editors_of_a_yjs_document_edit_together_with_tokens_that_they_renew(
    documents: str, clock: ManualClock, tmp_path: Path, path: str
) -> None:
    async with Yjs.start(documents, str(COMPACTION_THRESHOLD_BYTES)) as yjs:
        rules = [jwt_rule(tmp_path, permissions=["* /**"])]
        config = gateway_config((await yjs.hear())["url"], auth=rules, credentials="shared", long_poll_timeout_s=60)
        gateway = await start_gateway(config, clock=clock)
        where = {"url": gateway.gateway_url + SERVICE, "document": path[1:], "live": "long-poll"}
        try:
            await yjs.do("token", value=token("ada", exp=WALL + 40))
            await yjs.do("join", editors=3, **where)
            await yjs.do("edit", edits=2)
            await yjs.do("token", value=token("ada", exp=WALL + 80))
            clock.advance(41)
            await yjs.do("edit", edits=1)
            said = await yjs.do("documents")
            await yjs.do("leave")
        finally:
            await gateway.stop()
    assert said["errors"] == []
    assert len({json.dumps(document, sort_keys=True) for document in said["documents"]}) == 1
    assert sorted(said["documents"][0]["edits"]) == sorted(said["made"])
    assert len(said["made"]) == 3 * 3
