"""Concurrent appenders, readers and tail checks: what is answered is what was true between request and answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch
from tests.s2.edge.clients import Edge

ROUNDS = 60


@dataclass
class History:
    """The tails that appends have acknowledged, and the most that could have been appended."""

    acknowledged: int = 0
    begun: int = 0
    broken: list[str] = field(default_factory=list)

    def judge(self, what: str, least: int, tail: int) -> None:
        """An answer whose request was sent when `least` records were acknowledged shows the stream up to `tail`."""
        if not least <= tail <= self.begun:
            self.broken.append(f"{what}: {tail}, not from {least} to {self.begun}")


async def append(edge: Edge, history: History, number: int) -> None:
    client = edge.direct if number % 2 else edge.client
    for _ in range(ROUNDS):
        history.begun += 1
        answer = await client.append("x")
        history.acknowledged = max(history.acknowledged, answer.json["tail"]["seq_num"])  # type: ignore[index]


async def check_tails(edge: Edge, history: History) -> None:
    for _ in range(ROUNDS):
        least = history.acknowledged
        found = (await edge.client.tail()).json["tail"]["seq_num"]  # type: ignore[index]
        history.judge("tail", least, found)


async def read(edge: Edge, history: History, random: Random) -> None:
    for _ in range(ROUNDS):
        least = history.acknowledged
        start = random.randrange(least + 1)
        kind = random.choice([f"seq_num={start}", f"tail_offset={random.randrange(5)}", "timestamp=1"])
        answer = await edge.client.read(kind)
        if answer.status == 416:
            history.judge(kind, least, answer.json["tail"]["seq_num"])  # type: ignore[index]
        else:
            numbers = [record["seq_num"] for record in answer.json["records"]]  # type: ignore[attr-defined]
            history.judge(kind, least, numbers[-1] + 1)
            if kind.startswith("seq_num"):
                assert numbers == list(range(start, numbers[-1] + 1))


async def follow(edge: Edge, history: History, total: int) -> None:
    least = history.acknowledged
    session = await edge.client.session("seq_num=0")
    at = 0
    has_heard = False
    while at < total:
        batch = await session.next()
        assert isinstance(batch, ReadBatch)
        for record in batch.records:
            assert record.seq_num == at
            at += 1
        if batch.tail is not None and not has_heard:
            history.judge("session", least, batch.tail.seq_num)
            has_heard = True
    session.close()


@pytest.mark.parametrize("is_behind", [False, True], ids=["live", "behind"])
@pytest.mark.parametrize("seed", range(2))
async def test_no_read_is_stale(edge: Edge, seed: int, is_behind: bool) -> None:
    """`is_behind` has the live session at the origin bring nothing while records are appended."""
    history, random = History(begun=1, acknowledged=1), Random(seed)
    await edge.client.append("first", timestamp=1)
    stalled = edge.faults.stall(after_bytes=100, kind=Call.READ_SESSION) if is_behind else None
    first = asyncio.ensure_future(follow(edge, history, 1 + 4 * ROUNDS))
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    await asyncio.gather(
        *(append(edge, history, number) for number in range(4)),
        *(check_tails(edge, history) for _ in range(3)),
        *(read(edge, history, random) for _ in range(6)),
    )
    followers = [asyncio.ensure_future(follow(edge, history, 1 + 4 * ROUNDS)) for _ in range(5)]
    if stalled is not None:
        await stalled.waiting(1)
        stalled.gate.release()
    await asyncio.gather(first, *followers)
    assert history.broken == []
