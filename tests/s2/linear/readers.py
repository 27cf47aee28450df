"""Clients that read one stream, or check its tail, and note what they have seen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from random import Random

from gateway.s2 import json_format
from gateway.s2.errors import Unwritten, parse_error
from gateway.s2.json_format import Format
from gateway.s2.records import ReadBatch, Record, StreamPosition
from gateway.s2.sse import BatchEvent, Done, Ping
from tests.s2.edge.clients import Answer, Client, SessionReader, SseReader
from tests.s2.linear.history import Call, History, Seen, content_hash
from tests.s2.linear.model import TailIs
from tests.s2.linear.progress import BOUND_S, TROUBLE, Progress

_MOST_BATCHES = 20
"""Batches that a follower takes before it begins again."""


def hashes(records: tuple[Record, ...]) -> tuple[bytes, ...]:
    return tuple(content_hash(record.body) for record in records)


@dataclass
class Reader:
    """One client that reads."""

    name: str
    client: Client
    history: History
    progress: Progress
    rng: Random
    end: int = 0
    """The end of what it has seen."""

    # -- unary

    async def check_tails(self) -> None:
        """Check the tail until cancelled."""
        while True:
            if not await self.check_tail():
                await self.progress.failed()

    async def check_tail(self) -> bool:
        """One check of the tail; whether it was answered."""
        call = self.history.call(self.name, "check tail")
        try:
            async with asyncio.timeout(BOUND_S):
                answer = await self.client.tail()
        except TROUBLE:
            return False
        finally:
            self.progress.count()
        if answer.status == 200:
            self.history.returned(call, TailIs(json_format.decode_tail(answer.body).seq_num))
        elif answer.status < 500:
            self._is_wrong(call, answer)
        return call.returned is not None

    async def read(self) -> None:
        """Read from anywhere until cancelled."""
        while True:
            if not await self.read_once(self._query()):
                await self.progress.failed()

    async def look(self) -> None:
        """One look at the tail, of any kind."""
        if self.rng.random() < 0.5:
            await self.check_tail()
        else:
            await self.read_once(self.rng.choice(["tail_offset=3", "tail_offset=0", f"seq_num={self.end}"]))

    def _query(self) -> str:
        start, count = self.rng.randint(0, self.end), self.rng.randint(1, 20)
        return self.rng.choice(
            [
                "seq_num=0",
                f"seq_num={start}",
                f"seq_num={start}&count={count}",
                f"seq_num={self.end}",
                f"seq_num={self.end + 5}&clamp=true",
                f"tail_offset={count}",
                "tail_offset=0",
            ]
        )

    async def read_once(self, query: str) -> bool:
        """One read, without waiting at the tail; whether it was answered."""
        call = self.history.call(self.name, query)
        try:
            async with asyncio.timeout(BOUND_S):
                answer = await self.client.read(query)
        except TROUBLE:
            return False
        finally:
            self.progress.count()
        if answer.status == 200:
            batch = json_format.decode_read_batch(answer.body, Format.RAW)
            limit = int(query.partition("count=")[2] or 1000)
            self._saw(call, batch.records, is_all=len(batch.records) < limit)
        elif isinstance(error := parse_error(answer.status, answer.body), Unwritten):
            self.history.returned(call, TailIs(error.tail.seq_num))
        elif answer.status < 500:
            self._is_wrong(call, answer)
        return call.returned is not None

    def _is_wrong(self, call: Call, answer: Answer) -> None:
        if answer.status != 429:
            self.history.is_wrong(call, f"answered {answer.status} {answer.body[:200]!r}")

    def _saw(self, call: Call, records: tuple[Record, ...], *, is_all: bool) -> None:
        if not records:
            self.history.is_wrong(call, "neither records nor the tail")
            return
        start = records[0].seq_num
        self._check_numbers(call, records, start)
        self.end = max(self.end, start + len(records))
        self.history.returned(call, Seen(start, hashes(records), is_all))

    def _check_numbers(self, call: Call, records: tuple[Record, ...], start: int) -> None:
        numbers = [record.seq_num for record in records]
        if numbers != list(range(start, start + len(records))):
            self.history.is_wrong(call, f"records {numbers}, not from {start} on")

    # -- sessions

    async def follow(self, *, is_sse: bool) -> None:
        """Follow the stream until cancelled, from a new place each time that a session is lost."""
        while True:
            start = self.rng.choice([0, self.end, max(0, self.end - 5)])
            call = self.history.call(self.name, f"{'SSE' if is_sse else 'session'} from {start}")
            session: SessionReader | SseReader | None = None
            try:
                async with asyncio.timeout(BOUND_S):
                    query = f"seq_num={start}&clamp=true"
                    session = await (self.client.events(query) if is_sse else self.client.session(query))
                    if session.status == 200:
                        await self._follow(session, call, start)
            except TROUBLE:
                pass
            finally:
                if session is not None:
                    session.close()
                self.progress.count()
            if call.returned is None:
                await self.progress.failed()

    async def _follow(self, session: SessionReader | SseReader, call: Call, start: int) -> None:
        """Take batches.  The first tail is one that the stream had since the session was asked for."""
        records: list[Record] = []
        # Some sessions are short, so that there are always new ones.
        for _ in range(self.rng.choice((2, 5, _MOST_BATCHES))):
            message = await session.next()
            match message:
                case None | Done():
                    # To S2's clients this says that the read is complete, which it never is.
                    self.history.is_wrong(call, "the session has ended in order")
                    return
                case ReadBatch(come, tail) | BatchEvent(batch=ReadBatch(come, tail)):
                    pass
                case Ping(_, tail):
                    come = ()
                case _:
                    # An error, which ends it.
                    return
            if come and not records and come[0].seq_num < start:
                # Clamped: the stream was shorter than this client believed, which it never is.
                self.history.is_wrong(call, f"records from {come[0].seq_num} on")
            records += come
            self._check_numbers(call, tuple(records), start)
            end = start + len(records)
            self.end = max(self.end, end)
            self.progress.count()
            if tail is not None:
                self._heard(call, start, records, come, tail)

    def _heard(
        self, call: Call, start: int, records: list[Record], come: tuple[Record, ...], tail: StreamPosition
    ) -> None:
        end = start + len(records)
        if not come and tail.seq_num != end:
            self.history.is_wrong(call, f"a heartbeat's tail is {tail.seq_num}, and the client was sent up to {end}")
        if call.returned is None and tail.seq_num == end:
            self.history.returned(call, Seen(start, hashes(tuple(records)), is_all=True))
