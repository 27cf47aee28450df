"""`@durable-streams/client` through the gateway, in front of the in-memory origin and of the real server."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from gateway.origin.app import OriginSettings, start_origin
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from tests.clients.conftest import Edge, gateway_config
from tests.clients.program import Failed
from tests.clients.typescript import TypeScript
from tests.workers.edge import WORKERS, start_edge

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "clients.md").read_text()
BOUND_S = 60.0
JSON = "application/json"
BINARY = "application/octet-stream"
TEXT = "text/plain"

MESSAGES: dict[str, list[bytes]] = {
    JSON: [json.dumps({"n": number, "text": "é\u2028\n"}).encode() for number in range(6)],
    BINARY: [bytes(range(number, 256)) for number in range(6)],
    TEXT: [f"line {number}, é\nand one more\n".encode() for number in range(6)],
}
AS = {JSON: "json", BINARY: "bytes", TEXT: "text"}


def content(content_type: str, batches: list[dict[str, Any]]) -> Any:
    """The contents of all batches together, in the form of the writer's messages."""
    return joined(content_type, [batch["batch"] for batch in batches])


def joined(content_type: str, parts: list[Any]) -> Any:
    if content_type == JSON:
        return [item for part in parts for item in part]
    if content_type == BINARY:
        return b"".join(base64.b64decode(part) for part in parts)
    return "".join(parts)


def wanted(content_type: str, messages: list[bytes]) -> Any:
    if content_type == JSON:
        return [json.loads(message) for message in messages]
    return b"".join(messages) if content_type == BINARY else b"".join(messages).decode()


every_type = pytest.mark.parametrize("content_type", [JSON, BINARY, TEXT], ids=["json", "binary", "text"])
both_modes = pytest.mark.parametrize("live", ["long-poll", "sse"])


@every_type
async def test_a_catch_up_read_has_everything(edge: Edge, typescript: TypeScript, path: str, content_type: str) -> None:
    messages = MESSAGES[content_type]
    await edge.create(path, content_type, *messages)
    for _ in range(2):
        read = await typescript.do("read", url=edge.url + path, **{"as": AS[content_type]})
        assert joined(content_type, [read["content"]]) == wanted(content_type, messages)
    await edge.append(path, content_type, messages[0])
    found: Any = None
    async with asyncio.timeout(BOUND_S):
        # With workers, a stream whose tail is asked for twice within a second is followed.  The origin's event of the
        # append, which has not come through the gateway, may arrive after the client's next read.
        while not found and (found is None or WORKERS > 1):
            rest = await typescript.do("read", url=edge.url + path, offset=read["offset"], **{"as": AS[content_type]})
            found = joined(content_type, [rest["content"]])
    assert found == wanted(content_type, messages[:1])


@every_type
@both_modes
async def test_a_session_follows_appends_to_the_end_of_the_stream(
    edge: Edge, typescript: TypeScript, path: str, content_type: str, live: str
) -> None:
    messages = MESSAGES[content_type]
    await edge.create(path, content_type, *messages[:2])
    await typescript.follow(edge.url + path, live, AS[content_type])
    batches = await typescript.until_up_to_date()
    assert content(content_type, batches) == wanted(content_type, messages[:2])
    for count, message in enumerate(messages[2:], 3):
        await edge.append(path, content_type, message)
        while content(content_type, batches) != wanted(content_type, messages[:count]):
            batches.append(await typescript.batch())
    await edge.close(path)
    batches += await typescript.until_end()
    assert content(content_type, batches) == wanted(content_type, messages)
    assert batches[-1]["closed"]
    offsets = [batch["offset"] for batch in batches]
    assert offsets == sorted(offsets)


async def test_json_arrays_arrive_as_their_messages(edge: Edge, typescript: TypeScript, path: str) -> None:
    await typescript.do("create", url=edge.url + path, contentType=JSON)
    await typescript.follow(edge.url + path, "sse", "json")
    batches = await typescript.until_up_to_date()
    await edge.append(path, JSON, b'[{"a": 1}, [2, 3], "four"]')
    await edge.append(path, JSON, b"[[5]]")
    await edge.close(path)
    batches += await typescript.until_end()
    assert content(JSON, batches) == [{"a": 1}, [2, 3], "four", [5]]


@both_modes
async def test_a_session_resumed_at_its_offset_has_the_rest_and_nothing_twice(
    edge: Edge, typescript: TypeScript, path: str, live: str
) -> None:
    messages = MESSAGES[JSON]
    await edge.create(path, JSON, *messages[:2])
    await typescript.follow(edge.url + path, live, "json")
    batches = await typescript.until_up_to_date()
    await edge.append(path, JSON, messages[2])
    while content(JSON, batches) != wanted(JSON, messages[:3]):
        batches.append(await typescript.batch())
    typescript.cancel()
    batches += await typescript.until_end()
    for message in messages[3:]:
        await edge.append(path, JSON, message)
    await edge.close(path)
    await typescript.follow(edge.url + path, live, "json", offset=batches[-1]["offset"])
    rest = await typescript.until_end()
    assert content(JSON, batches + rest) == wanted(JSON, messages)


@both_modes
async def test_a_session_survives_the_gateways_restart(
    edge: Edge, typescript: TypeScript, path: str, live: str
) -> None:
    messages = MESSAGES[TEXT]
    await edge.create(path, TEXT, messages[0])
    await typescript.follow(edge.url + path, live, "text")
    batches = await typescript.until_up_to_date()
    for count in (2, 4):
        await edge.restart_gateway()
        for message in messages[count - 1 : count + 1]:
            await edge.append(path, TEXT, message)
        while content(TEXT, batches) != wanted(TEXT, messages[: count + 1]):
            batches.append(await typescript.batch())
    await edge.close(path)
    batches += await typescript.until_end()
    assert content(TEXT, batches) == wanted(TEXT, messages[:5])


@pytest.mark.parametrize("edge", ["memory"], indirect=True)
@both_modes
@pytest.mark.parametrize("grace_s", [0, 1.0], ids=["cut off", "in order"])
async def test_a_session_survives_the_origins_restart_without_another_request(
    edge: Edge, typescript: TypeScript, path: str, live: str, grace_s: float
) -> None:
    messages = MESSAGES[JSON]
    await edge.create(path, JSON, messages[0])
    await typescript.follow(edge.url + path, live, "json")
    batches = await typescript.until_up_to_date()
    assert edge.origin is not None
    await edge.until_followed(path)
    await edge.origin.stop(grace_s=grace_s)
    at = OriginSettings(port=edge.origin.port)
    edge.origin = await start_origin(at, origin=edge.origin.origin)
    for message in messages[1:]:
        await edge.append(path, JSON, message)
    await edge.close(path)
    batches += await typescript.until_end()
    assert content(JSON, batches) == wanted(JSON, messages)
    failed = [edge.gateway.metrics.requests(mode, Outcome.FAILED).value for mode in Mode]
    assert sum(failed) == 0


@pytest.mark.parametrize("gateway_settings", [{"sse_lifetime_s": 1.0, "heartbeat_s": 0.3}], ids=[""])
async def test_a_session_outlives_many_sse_connections(edge: Edge, typescript: TypeScript, path: str) -> None:
    messages = MESSAGES[JSON]
    await edge.create(path, JSON, messages[0])
    await typescript.follow(edge.url + path, "sse", "json")
    batches = await typescript.until_up_to_date()
    connections = edge.gateway.metrics.requests(Mode.SSE, Outcome.FOLLOWED)
    # After three connections that end too soon, the client would give SSE up and complain on stderr.
    while connections.value < 3:
        batches.append(await typescript.batch())
    for message in messages[1:]:
        await edge.append(path, JSON, message)
    await edge.close(path)
    batches += await typescript.until_end()
    assert content(JSON, batches) == wanted(JSON, messages)
    assert sum(edge.gateway.metrics.requests(Mode.LONGPOLL, outcome).value for outcome in Outcome) == 0


@every_type
async def test_the_client_reads_what_it_wrote_and_closed(
    edge: Edge, typescript: TypeScript, path: str, content_type: str
) -> None:
    at: dict[str, Any] = {"url": edge.url + path, "contentType": content_type}
    bodies = [
        base64.b64encode(message).decode() if content_type == BINARY else message.decode()
        for message in MESSAGES[content_type]
    ]
    await typescript.do("create", **at)
    for count, body in enumerate(bodies[:-1], 1):
        await typescript.do("append", body=body, **at)
        read = await typescript.do("read", url=at["url"], **{"as": AS[content_type]})
        assert joined(content_type, [read["content"]]) == wanted(content_type, MESSAGES[content_type][:count])
        assert not read["closed"]
    closed = await typescript.do("close", body=bodies[-1], **at)
    read = await typescript.do("read", url=at["url"], **{"as": AS[content_type]})
    assert joined(content_type, [read["content"]]) == wanted(content_type, MESSAGES[content_type])
    assert read["closed"]
    assert read["offset"] == closed["offset"]
    with pytest.raises(Failed, match="closed"):
        await typescript.do("append", body=bodies[0], **at)


async def test_an_idempotent_producer_writes_everything_once_and_in_order(
    edge: Edge, typescript: TypeScript, path: str
) -> None:
    at: dict[str, Any] = {"url": edge.url + path, "contentType": JSON}
    await typescript.do("create", **at)
    bodies = [json.dumps({"n": number}) for number in range(100)]
    # A producer that repeats its messages after a restart without a new epoch adds nothing.
    for epoch, said in ((0, bodies[:50]), (0, bodies[:50]), (1, bodies[50:])):
        produced = await typescript.do("produce", producer="p", epoch=epoch, bodies=said, **at)
        assert produced["errors"] == []
    fenced = await typescript.do("produce", producer="p", epoch=0, bodies=bodies[:1], **at)
    assert "epoch is stale" in fenced["errors"][0]
    read = await typescript.do("read", url=at["url"], **{"as": "json"})
    assert read["content"] == [json.loads(body) for body in bodies]


async def during_a_restart(edge: Edge, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Replace the gateway while the client works.  Between the two, the port resets each connection, one at least."""
    host, port = edge.url.removeprefix("http://").split(":")
    tried = asyncio.Event()

    def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        tried.set()

    await edge.gateway.stop()
    between = await asyncio.start_server(reset, host, int(port))
    working = asyncio.create_task(work)
    async with asyncio.timeout(BOUND_S):
        await tried.wait()
    between.close()
    await between.wait_closed()
    edge.gateway = await start_edge(gateway_config(edge.origin_url, listen=f"{host}:{port}"))
    return await working


def guides_fetch() -> str:
    """The guide's `retrying`, in JavaScript."""
    blocks: list[str] = re.findall(r"```ts\n(.*?)```", GUIDE, re.DOTALL)
    (wrapper,) = (block for block in blocks if "retrying: typeof" in block)
    return wrapper.replace(": typeof fetch", "").replace("<void>", "")


@pytest.mark.parametrize("is_wrapped", [True, False], ids=["with the guide's fetch", "bare"])
async def test_a_producer_with_the_guides_fetch_loses_nothing_at_a_restart(
    edge: Edge, typescript: TypeScript, path: str, is_wrapped: bool
) -> None:
    at: dict[str, Any] = {"url": edge.url + path, "contentType": JSON}
    await typescript.do("create", **at)
    await typescript.do("begin", producer="p", wrapper=guides_fetch() if is_wrapped else None, **at)
    bodies = [json.dumps({"n": number}) for number in range(3)]
    assert (await typescript.do("push", bodies=bodies[:1]))["errors"] == []
    between = await during_a_restart(edge, typescript.do("push", bodies=bodies[1:2]))
    after = await typescript.do("push", bodies=bodies[2:])
    read = await typescript.do("read", url=at["url"], **{"as": "json"})
    if is_wrapped:
        assert between["errors"] == after["errors"] == []
        assert read["content"] == [json.loads(body) for body in bodies]
    else:
        # The client's own fault, of which the guide warns: once it is mended, the guide may forget it.
        assert len(after["errors"]) == 2
        assert read["content"] == [json.loads(bodies[0])]


async def test_the_guides_fetch_settles_where_no_repeat_helps_and_repeats_any_body() -> None:
    program = f"""{guides_fetch()}
import http from "node:http"
let calls = 0, answered = () => {{}}
const server = http.createServer(async (request, response) => {{
  const parts = []
  for await (const part of request) parts.push(part)
  const isAbsent = request.url === "/absent" || calls++ === 0
  response.writeHead(isAbsent ? 503 : 200, request.url === "/absent" ? {{ "retry-after": "100000" }} : {{}})
  response.end(isAbsent ? "" : Buffer.concat(parts), () => answered())
}})
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve))
const url = `http://127.0.0.1:${{server.address().port}}/`
const said = (made) => made.then((response) => response.text(), (error) => error.name)
const abort = new AbortController()
answered = () => setTimeout(() => abort.abort(), 100)
const out = [
  await said(retrying("http://[bad")),
  await said(retrying(url, {{ headers: {{ "x\\n": "1" }} }})),
  await said(retrying(url + "absent", {{ method: "POST", body: "x", signal: abort.signal }})),
]
answered = () => {{}}
out.push(await said(retrying(new Request(url, {{ method: "POST", body: "request" }}))))
calls = 0
out.push(await said(retrying(url, {{ method: "POST", body: new Blob(["stream"]).stream(), duplex: "half" }})))
calls = 0
out.push(await said(retrying(url)))
console.log(JSON.stringify([...out, calls]))
process.exit(0)
"""
    node = await asyncio.create_subprocess_exec(
        "node", "--input-type=module", "-e", program, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(BOUND_S):
            out, _ = await node.communicate()
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()
    assert json.loads(out) == ["TypeError", "TypeError", "AbortError", "request", "stream", "", 2]


async def test_a_missing_stream_is_an_error_at_once(edge: Edge, typescript: TypeScript, path: str) -> None:
    with pytest.raises(Failed) as failed:
        await typescript.do("read", url=edge.url + path, **{"as": "json"})
    assert failed.value.status == 404


async def test_a_briefly_interrupted_session_costs_no_second_live_request(
    edge: Edge, typescript: TypeScript, path: str
) -> None:
    await edge.create(path, JSON, MESSAGES[JSON][0])
    await typescript.follow(edge.url + path, "long-poll", "json")
    batches = await typescript.until_up_to_date()
    for count, message in enumerate(MESSAGES[JSON][1:], 2):
        await edge.append(path, JSON, message)
        while content(JSON, batches) != wanted(JSON, MESSAGES[JSON][:count]):
            batches.append(await typescript.batch())
    assert edge.gateway.metrics.upstream_requests(Mode.SSE).value == 1
    assert edge.gateway.metrics.upstream_requests(Mode.LONGPOLL).value == 0
    await edge.close(path)
    await typescript.until_end()
