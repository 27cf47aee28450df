"""Reads while a stream is made anew, and while the gateway may or may not know it.

With several workers, another worker's write can make a worker forget the bytes in memory between two steps of a read.
The read may then have asked the origin at an offset of the former stream, which is beyond the tail of the present one.
The origin answers every request here as the protocol says, so no client may be told that the origin has failed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Final

import pytest

from gateway.engine.read import StreamEnded, Uncacheable
from gateway.protocol.names import SSE_DATA_ENCODING
from gateway.protocol.sse import Control, encode_control
from gateway.tape.stream import End
from tests.effort import IS_LONG
from tests.engine.bench import BINARY, BinaryOrigin, EngineBench, LongPoll, Start, bring
from tests.memory_upstream import Asked
from tests.waiting import pass_turns

SEEDS: Final = range(400) if IS_LONG else (76, 81, 155, 177, 266, 304, 339, 358, *range(8))
"""The first eight have shown faults."""
_STEPS: Final = 80


class _Origin:
    """One stream, which is replaced from time to time.  Half of the requests are answered at once, the others later.

    Its offsets are four digits, which count bytes.
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._lives = 0
        self._body = b"ab" * rng.randrange(1, 5)
        self._held: list[Asked] = []
        self._live: list[Asked] = []

    @property
    def _tail(self) -> str:
        return f"{len(self._body):04d}"

    def __call__(self, asked: Asked) -> None:
        if self._rng.random() < 0.5:
            self._held.append(asked)
        else:
            self._answer(asked)

    def _answer(self, asked: Asked) -> None:
        offset = asked.query.get("offset", "-1")
        start = {"-1": 0, "now": len(self._body)}.get(offset)
        rest = self._body[int(offset) if start is None else start :]
        if asked.is_live:
            asked.begin(200, {"Content-Type": "text/event-stream", SSE_DATA_ENCODING: "base64"})
            self._live.append(asked)
            if rest:
                bring(asked, rest, self._tail)
            else:
                asked.inflow.say(encode_control(Control(self._tail, "1", True, False)))
            return
        fields = {**BINARY, "Stream-Next-Offset": self._tail, "Stream-Up-To-Date": "true"}
        fields["ETag"] = f'"{self._lives}:{offset}:{self._tail}"'
        asked.answer(200, fields, rest if asked.method == "GET" else b"")

    def append(self) -> None:
        self._body += b"xy"
        for asked in self._live:
            bring(asked, b"xy", self._tail)

    def make_anew(self) -> None:
        """Replace the stream.  The live requests for the former one end."""
        self._lives += 1
        self._body = b"AB" * self._rng.randrange(4)
        for asked in self._live:
            asked.inflow.finish()
        self._live.clear()

    def answer_some(self) -> None:
        for _ in range(min(len(self._held), self._rng.randrange(1, 4))):
            self._answer(self._held.pop(self._rng.randrange(len(self._held))))

    def answer_all(self) -> None:
        while self._held:
            self._answer(self._held.pop())


class _Scene:
    """An engine, its origin, and the clients that read."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self.origin = _Origin(self._rng)
        trust_s = self._rng.choice([0.5, 2.0, 30.0])
        self.bench = EngineBench(self.origin, long_poll_timeout_s=20, live_linger_s=2, trust_s=trust_s)
        self.polls: list[LongPoll] = []
        self.reads: list[asyncio.Task[None]] = []

    async def _poll(self, target: str) -> None:
        # A stream that has ended is a 404, and a read that cannot be shared is relayed.
        with suppress(StreamEnded, Uncacheable):
            self.polls.append(await self.bench.poll(f"{target}&live=long-poll"))

    async def _read(self, target: str) -> None:
        with suppress(StreamEnded, Uncacheable):
            (await self.bench.engine.catch_up(self.bench.read(target))).close()

    async def _subscribe(self, target: str) -> None:
        with suppress(StreamEnded, Uncacheable):
            await self.bench.subscribe(f"{target}&live=sse")

    def step(self) -> None:
        rng, store, target = self._rng, self.bench.engine.store, f"/s?offset={2 * self._rng.randrange(8):04d}"
        match rng.choice("llllrrsaannfttthhh"):
            case "l":
                self.reads.append(asyncio.ensure_future(self._poll(target)))
            case "r":
                self.reads.append(asyncio.ensure_future(self._read(target)))
            case "s":
                self.reads.append(asyncio.ensure_future(self._subscribe(target)))
            case "a":
                self.origin.append()
            case "n":
                self.origin.make_anew()
                for stream in list(store):
                    if rng.random() < 0.7:
                        # As after a PUT by another worker.
                        store.forget_bytes(stream)
                        stream.mark_stale()
                    elif rng.random() < 0.5:
                        store.drop_stream(stream, End.RECREATED)
            case "f":
                for stream in list(store):
                    store.forget_bytes(stream)
            case "t":
                self.bench.clock.advance(rng.choice([0.1, 1.0, 5.0, 21.0]))
            case "h":
                self.origin.answer_some()

    async def settle(self) -> None:
        """Answer all that is asked, until every read is over or waits for its client."""
        for advanced_s in (0.0, 30.0):
            self.bench.clock.advance(advanced_s)
            for _ in range(50):
                self.origin.answer_all()
                await pass_turns(3)


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_read_fails_while_the_origin_answers(seed: int) -> None:
    scene, rng = _Scene(seed), Random(seed)
    try:
        for _ in range(_STEPS):
            scene.step()
            await pass_turns(rng.randrange(4))
        await scene.settle()
        assert all(read.done() for read in scene.reads)
        for read in scene.reads:
            read.result()
        assert scene.polls
        failed = [answer for poll in scene.polls for answer in poll.answers if answer.status >= 500]
        assert not failed, [(answer.status, answer.body) for answer in failed]
    finally:
        await scene.bench.engine.close()


async def test_a_head_for_another_worker_finds_a_stream_that_was_re_created(start: Start) -> None:
    origin = BinaryOrigin(b"abcd")
    bench = start(origin)
    await bench.body()
    origin.body = b"x"
    answer = await bench.engine.fetched_head(bench.read("/s", is_handed=True))
    assert (answer.status, answer.headers["Stream-Next-Offset"]) == (200, "0001")
