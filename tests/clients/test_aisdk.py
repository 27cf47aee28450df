"""Answers of a chat as durable streams: `@durable-streams/aisdk-transport`, with tabs that open and close."""

from __future__ import annotations

import json

import pytest

from gateway.origin.requests import Kind
from gateway.protocol.mode import Mode
from tests.clients.conftest import Edge
from tests.clients.program import Program

WORDS = [f"{number:<1000}" for number in range(24)]
BOUND_READS = 12
"""Bound on the origin's requests for five reads of one answer: its one live request, and some for the tail."""


class Aisdk(Program):
    """A chat's server, its model and its tabs: see `tests/node/aisdk.mjs`."""

    script = "aisdk.mjs"


async def test_an_answer_can_be_resumed_midway_and_read_in_other_tabs(edge: Edge, path: str) -> None:
    async with Aisdk.start(edge.url + path) as chat:
        errors = [
            await chat.do("ask", text="what is a stream?"),
            await chat.do("answer", words=WORDS[:8]),
            await chat.do("open", tabs=2),
            await chat.do("answer", words=WORDS[8:12]),
            # The first tab is reloaded in the middle of the answer, which continues without it.
            await chat.do("leave", tabs=[0]),
            await chat.do("answer", words=WORDS[12:16]),
            await chat.do("open", tabs=1),
            await chat.do("answer", words=WORDS[16:]),
            await chat.do("finish"),
            # This tab opens when the answer is complete.
            await chat.do("open", tabs=1),
        ]
        assert [said["errors"] for said in errors if said.get("errors")] == []
        left, *tabs = (await chat.do("tabs"))["tabs"]
    assert left["text"] == "".join(WORDS[:12])
    assert [tab["text"] for tab in tabs] == ["".join(WORDS)] * 4
    # One at a time; it is reconnected if the machine stalls for longer than a live request may lag.
    assert edge.gateway.metrics.upstream_requests(Mode.SSE).value <= 3
    assert edge.gateway.metrics.upstream_requests(Mode.LONGPOLL).value == 0
    assert edge.reads_at_origin <= BOUND_READS


@pytest.mark.parametrize("edge", ["memory"], indirect=True)
async def test_each_byte_of_an_answer_that_three_tabs_follow_leaves_the_origin_once(edge: Edge, path: str) -> None:
    async with Aisdk.start(edge.url + path) as chat:
        await chat.do("ask", text="what is a stream?")
        await chat.do("open", tabs=1)
        await chat.do("answer", words=WORDS[:12])
        await chat.do("leave", tabs=[0])
        await chat.do("open", tabs=1)
        await chat.do("answer", words=WORDS[12:])
        await chat.do("finish")
        tabs = (await chat.do("tabs"))["tabs"]
    assert [tab["text"] for tab in tabs[1:]] == ["".join(WORDS)] * 2
    assert edge.origin is not None
    sent = edge.origin.origin.counters.body_bytes
    answer = sum(len(json.dumps({"type": "text-delta", "id": "text", "delta": word})) for word in WORDS)
    # Each chunk of the answer is framed as an event, and has a control event with its offset.
    assert answer < sent[Kind.CATCHUP] + sent[Kind.LONGPOLL] + sent[Kind.SSE] < answer * 1.25
