"""Official clients behind a service that decides: a token renewed within a live read costs and doubles no byte."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from durable_streams import astream

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from tests.clients.conftest import Edge, gateway_config
from tests.clients.test_aisdk import WORDS, Aisdk
from tests.clients.test_yjs import COMPACTION_THRESHOLD_BYTES, SERVICE, Yjs
from tests.clients.typescript import TypeScript
from tests.scenarios.auth_service import AuthService
from tests.scenarios.hostile import Asked, HostileOrigin
from tests.waiting import eventually

TEXT = "text/plain"
BOUND_S = 60.0
ROUNDS = 3
ROUND_S = 30.0


@dataclass(slots=True)
class Guarded:
    """A gateway with rules who may, on a manual clock, in front of the origin of `edge`."""

    gateway: RunningGateway
    clock: ManualClock
    service: AuthService
    valid: str = ""
    """The token that the service accepts."""

    def decide(self, asked: Asked) -> tuple[str, dict[str, str]]:
        is_valid = asked.headers.get("Authorization") == f"Bearer {self.valid}"
        return "200 OK" if is_valid else "401 Unauthorized", {"Cache-Control": "max-age=20"}

    async def end_round(self, successor: str) -> None:
        """Let the current token expire, which ends the live read; from now on the service accepts its successor."""
        live = self.gateway.routes.verdicts.live_reads
        # Its request has been judged, so none is under way with the former token.
        await eventually(lambda: bool(live()))
        before = {one.allowed for one in live()}
        self.valid = successor
        for _ in range(int(ROUND_S * 2)):
            self.clock.advance(0.5)
            await asyncio.sleep(0)
        await eventually(lambda: not before & {one.allowed for one in live()})


@asynccontextmanager
async def guarding(origin_url: str, **more: float) -> AsyncIterator[Guarded]:
    """A gateway in front of this origin, and its service."""
    service = AuthService()
    service.server = HostileOrigin(service.reply, takes_head=True)
    await service.server.start()
    clock, rule = ManualClock(), {"by": "forward", "url": f"{service.url}/may"}
    config = gateway_config(origin_url, auth=[rule], credentials="shared", sse_lifetime_s=600, **more)
    gateway = await start_gateway(config, clock=clock, rng=random.Random(7))
    one = Guarded(gateway, clock, service)
    service.decide = one.decide
    yield one
    await gateway.stop()
    await service.server.stop()


@pytest.fixture
async def guarded(edge: Edge) -> AsyncIterator[Guarded]:
    async with guarding(edge.origin_url) as one:
        yield one


async def test_typescript_client_renews_its_token_within_a_live_read(
    edge: Edge, guarded: Guarded, typescript: TypeScript, path: str
) -> None:
    await edge.create(path, TEXT, b"<0>")
    guarded.valid = "token-0"
    await typescript.do("token", value=guarded.valid)
    await typescript.follow(guarded.gateway.gateway_url + path, "sse", "text")
    text = "".join(one["batch"] for one in await typescript.until_up_to_date())
    for round_ in range(1, ROUNDS):
        await typescript.do("token", value=f"token-{round_}")
        await guarded.end_round(f"token-{round_}")
        await edge.append(path, TEXT, f"<{round_}>".encode())
        while f"<{round_}>" not in text:
            text += (await typescript.batch())["batch"]
    await edge.close(path)
    text += "".join(one["batch"] for one in await typescript.until_end())
    assert text == "<0><1><2>"


async def test_python_client_renews_its_token_within_a_live_read(edge: Edge, guarded: Guarded, path: str) -> None:
    await edge.create(path, TEXT, b"<0>")
    guarded.valid = "token-0"
    sent, text, offset, round_ = {"token": guarded.valid}, "", "-1", 0
    headers: dict[str, str | Callable[[], str]] = {"Authorization": lambda: f"Bearer {sent['token']}"}
    async with asyncio.timeout(BOUND_S):
        while round_ < ROUNDS:
            # Each ends with its token, and the next goes on where it was.
            async with astream(guarded.gateway.gateway_url + path, offset=offset, live="sse", headers=headers) as read:
                async for part in read.iter_text():
                    text += part
                    if f"<{round_}>" in text and (round_ := round_ + 1) < ROUNDS:
                        sent["token"] = f"token-{round_}"
                        await guarded.end_round(sent["token"])
                        await edge.append(path, TEXT, f"<{round_}>".encode())
                    elif round_ == ROUNDS:
                        break
                offset = read.offset
    assert text == "<0><1><2>"


async def test_a_chat_of_the_ai_sdk_resumes_its_answer_with_another_token(guarded: Guarded, path: str) -> None:
    async with Aisdk.start(guarded.gateway.gateway_url + path) as chat:
        guarded.valid = "token-0"
        await chat.do("send", headers={"Authorization": "Bearer token-0"})
        errors = [await chat.do("ask", text="what is a stream?"), await chat.do("answer", words=WORDS[:8])]
        guarded.valid = "token-1"
        await chat.do("send", headers={"Authorization": "Bearer token-1"})
        errors += [await chat.do("open", tabs=1), await chat.do("leave", tabs=[0])]
        errors += [await chat.do("answer", words=WORDS[8:]), await chat.do("finish")]
        assert [said["errors"] for said in errors if said.get("errors")] == []
        tabs = (await chat.do("tabs"))["tabs"]
    assert [tab["text"] for tab in tabs] == ["".join(WORDS[:8]), "".join(WORDS)]


async def test_editors_of_a_yjs_document_edit_together_with_tokens_that_they_renew(edge: Edge, path: str) -> None:
    async with (
        Yjs.start(edge.origin_url, str(COMPACTION_THRESHOLD_BYTES)) as yjs,
        guarding((await yjs.hear())["url"], long_poll_timeout_s=60) as guarded,
    ):
        where = {"url": guarded.gateway.gateway_url + SERVICE, "document": path[1:], "live": "long-poll"}
        guarded.valid = "token-0"
        await yjs.do("token", value=guarded.valid)
        await yjs.do("join", editors=3, **where)
        await yjs.do("edit", edits=2)
        await yjs.do("token", value="token-1")
        await guarded.end_round("token-1")
        await yjs.do("edit", edits=1)
        said = await yjs.do("documents")
        await yjs.do("leave")
    assert said["errors"] == []
    assert len({json.dumps(document, sort_keys=True) for document in said["documents"]}) == 1
    assert sorted(said["documents"][0]["edits"]) == sorted(said["made"])
    assert len(said["made"]) == 3 * 3
