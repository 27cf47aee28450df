"""Clients that append to one stream, and note each append.

    plain           no condition
    match_seq_num   each append names the tail that the client believes in
    fencing         clients fence each other off: each append names the token that the client believes in

Each client appends one batch after the other, or several at once over an append session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from random import Random

from yarl import URL

from gateway.s2 import json_format, protobuf, session
from gateway.s2.errors import FencingTokenMismatch, Other, S2ErrorCode, SeqNumMismatch, parse_error
from gateway.s2.json_format import Format
from gateway.s2.records import AppendAck, AppendInput, AppendRecord, Fence, command_record
from gateway.s2.session import FrameReader, Message, Terminal, encode_message
from tests.s2.edge.clients import BASIN, STREAM, Client
from tests.s2.linear.history import Call, History, content_hash
from tests.s2.linear.model import Acknowledged, Append, Fenced, Unmatched
from tests.s2.linear.progress import BOUND_S, TROUBLE, Progress
from tests.s2.linear.readers import Reader

_NO_EFFECT = {
    one.code
    for one in (S2ErrorCode.RATE_LIMITED, S2ErrorCode.HOT_SERVER, S2ErrorCode.UNAVAILABLE, S2ErrorCode.SERVER_DRAINING)
}
"""Codes that promise that an append had no effect."""
_PIPELINED = 4


class Workload(Enum):
    PLAIN = "plain"
    MATCH_SEQ_NUM = "match_seq_num"
    FENCING = "fencing"


@dataclass
class Appender:
    """One client that appends."""

    name: str
    client: Client
    history: History
    progress: Progress
    workload: Workload
    rng: Random
    back: Reader | None = None
    """Looks at the tail the moment that an append is acknowledged, if there is one."""
    tail: int = 0
    """The tail that the client believes in."""
    token: str = ""
    """The fencing token that it believes in."""
    _count: int = 0
    _answered: int = 0

    async def run(self, rounds: int) -> None:
        """Append until so many batches were answered, whatever the answer."""
        while self._answered < rounds:
            answered = self._answered
            if self.workload is Workload.PLAIN and self.rng.random() < 0.1:
                await self._session()
            else:
                await self._append()
            if self._answered == answered:
                await self.progress.failed()

    def _next(self) -> tuple[AppendInput, Append]:
        """The next append, on the wire and in the history."""
        self._count += 1
        match_seq_num = self.tail if self.workload is Workload.MATCH_SEQ_NUM else None
        token = self.token if self.workload is Workload.FENCING else None
        if self.workload is Workload.FENCING and self.rng.random() < 0.3:
            mine = f"{self.name}-{self._count}"
            # Some fence without asking who has the stream, as a writer does that takes over.
            token = token if self.rng.random() < 0.5 else None
            sets: str | None = mine
            records: tuple[AppendRecord, ...] = (command_record(Fence(mine)),)
        else:
            numbers = range(self.rng.randint(1, 3))
            records = tuple(AppendRecord(f"{self.name}-{self._count}-{number}".encode()) for number in numbers)
            sets = None
        append = AppendInput(records, match_seq_num, token)
        hashes = tuple(content_hash(record.body) for record in records)
        return append, Append(hashes, match_seq_num, token, sets)

    # -- one at a time

    async def _append(self) -> None:
        append, noted = self._next()
        call = self.history.call(self.name, "append", noted)
        try:
            async with asyncio.timeout(BOUND_S):
                status, body = await self._post(append)
        except TROUBLE:
            pass
        else:
            if status == 200:
                self._acknowledged(call, append, json_format.decode_append_ack(body))
            else:
                self._refused(call, status, body)
        self.progress.count()
        if self.back is not None and call.returned is not None:
            await self.back.look()

    async def _post(self, append: AppendInput) -> tuple[int, bytes]:
        headers = {
            "Authorization": f"Bearer {self.client.token}",
            "s2-basin": BASIN,
            "Content-Type": "application/json",
        }
        url = URL(f"{self.client.url}/v1/streams/{STREAM}/records", encoded=True)
        data = json_format.encode_append_input(append, Format.RAW)
        async with self.client.http.post(url, data=data, headers=headers) as reply:
            return reply.status, await reply.read()

    def _acknowledged(self, call: Call, append: AppendInput, ack: AppendAck) -> None:
        self._answered += 1
        self.history.returned(call, Acknowledged(ack.start.seq_num, ack.end.seq_num))
        if ack.tail.seq_num < ack.end.seq_num:
            self.history.is_wrong(call, f"the tail {ack.tail} lies before the end {ack.end}")
        self.tail = ack.tail.seq_num
        match append.records:
            case (AppendRecord(body, (_,)),):
                self.token = body.decode()

    def _refused(self, call: Call, status: int, body: bytes) -> None:
        match parse_error(status, body):
            case SeqNumMismatch(expected):
                self._answered += 1
                self.tail = expected
                self.history.returned(call, Unmatched(expected))
            case FencingTokenMismatch(expected_token):
                self._answered += 1
                self.token = expected_token
                self.history.returned(call, Fenced(expected_token))
            case Other(code, _) if code in _NO_EFFECT:
                self.history.had_no_effect(call)
            case _ if status < 500:
                self.history.is_wrong(call, f"answered {status} {body[:200]!r}")
            case _:
                pass

    # -- a session

    async def _session(self) -> None:
        """Several appends at once.  Acknowledgements come in the order of the appends."""
        calls: list[tuple[Call, AppendInput]] = []
        taken = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            for _ in range(_PIPELINED):
                append, noted = self._next()
                calls.append((self.history.call(self.name, "append in a session", noted), append))
                yield encode_message(protobuf.encode_append_input(append))
            await taken.wait()

        try:
            async with asyncio.timeout(BOUND_S):
                await self._exchange(body(), calls)
        except TROUBLE:
            pass
        finally:
            taken.set()
        self.progress.count()

    async def _exchange(self, body: AsyncIterator[bytes], calls: list[tuple[Call, AppendInput]]) -> None:
        headers = {
            "Authorization": f"Bearer {self.client.token}",
            "s2-basin": BASIN,
            "Content-Type": session.CONTENT_TYPE,
        }
        url = URL(f"{self.client.url}/v1/streams/{STREAM}/records", encoded=True)
        frames, count = FrameReader(), 0
        async with self.client.http.post(url, data=body, headers=headers) as reply:
            if reply.status != 200:
                return
            while count < _PIPELINED and (part := await reply.content.readany()):
                for frame in frames.feed(part):
                    match frame:
                        case Message():
                            call, append = calls[count]
                            self._acknowledged(call, append, protobuf.decode_append_ack(frame.body))
                            count += 1
                        case Terminal():
                            return
