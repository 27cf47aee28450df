"""Appends to an S2 stream, in order, without duplicates.

S2 has no producer ids.  Instead, each append states the sequence number that its first record must get
(`match_seq_num`).  Of two copies of one append, at most one can match.

If another writer was faster, the number does not match, and nothing is appended.  The append is sent again with the
number that the origin names.  It is sent at once, because during a pause the other writer might use that number too.

If the answer to an append is lost, the append is sent again with the same number.  If the number no longer matches, the
producer reads the records at that number, to find out whether they are its own.

One append is in progress at a time, and the time for retries is bounded.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import aiohttp

from gateway.aio.clock import Clock
from gateway.commands.exchange import Backoff, Transient, request
from gateway.commands.failure import CommandFailed
from gateway.commands.s2_exchange import body_error, mismatched_seq_num, s2_error, tail_in
from gateway.s2 import protobuf
from gateway.s2.records import AppendInput, AppendRecord

_LEAST_RACING_S: Final = 5.0
"""If other writers are faster, an append is sent again for at least this many seconds, even if retries are disabled."""

_APPEND: Final = {"Content-Type": protobuf.CONTENT_TYPE, "Accept": protobuf.CONTENT_TYPE}
_READ: Final = {"Accept": protobuf.CONTENT_TYPE}


class RecordProducer:
    """Appends to one S2 stream."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        clock: Clock,
        rng: random.Random,
        retry_for_s: float,
        notice: Callable[[str], None],
    ) -> None:
        self._session = session
        self._url = url
        self._seq_num = 0
        self._has_appended = False
        self._clock = clock
        self._rng = rng
        self._retry_for_s = retry_for_s
        self._notice = notice

    def __repr__(self) -> str:
        return f"<RecordProducer at {self._seq_num}>"

    @property
    def tail(self) -> str | None:
        """The sequence number after the last appended record; None before the first append."""
        return str(self._seq_num) if self._has_appended else None

    async def open(self) -> None:
        """Find the tail.  Raises CommandFailed if the stream cannot be written to."""
        try:
            async with request(self._session, "GET", f"{self._url}/records/tail") as response:
                if response.status == 200:
                    self._seq_num = tail_in(self._url, await response.read()).seq_num
                elif response.status not in (403, 404):
                    raise await s2_error(response)
                # The token may only allow appends, or the first append may create the stream.  Go on.
        except Transient as error:
            raise CommandFailed(str(error)) from None

    async def append(self, bodies: list[bytes]) -> None:
        """Return once the origin has acknowledged records with these bodies.  Raises CommandFailed."""
        backoff = Backoff(self._clock, self._rng)
        failing_since: float | None = None
        is_in_doubt = False
        racing_since: float | None = None
        while True:
            try:
                if await self._attempt(bodies, is_in_doubt=is_in_doubt):
                    self._has_appended = True
                    return
            except Transient as error:
                is_in_doubt = True
                now = self._clock.now()
                if failing_since is None:
                    failing_since = now
                    self._notice(f"{error}; trying again")
                if now + error.floor_s - failing_since >= self._retry_for_s:
                    raise CommandFailed(f"{error}; gave up after {self._retry_for_s:g} s") from None
                await backoff.pause(error.floor_s)
            else:
                is_in_doubt = False
                if racing_since is None:
                    racing_since = self._clock.now()
                raced_s = self._clock.now() - racing_since
                if raced_s >= max(self._retry_for_s, _LEAST_RACING_S):
                    raise CommandFailed(f"{self._url}: other writers were faster for {raced_s:.0f} s")

    async def _attempt(self, bodies: list[bytes], *, is_in_doubt: bool) -> bool:
        """Send an append; return False if another writer was faster.  Raises Transient and CommandFailed.

        `is_in_doubt`: an earlier copy of the append may have arrived.
        """
        expected = await self._post(bodies)
        if expected is None:
            return True
        if is_in_doubt and expected > self._seq_num and await self._is_there(bodies):
            self._seq_num += len(bodies)
            return True
        self._seq_num = expected
        return False

    async def _post(self, bodies: list[bytes]) -> int | None:
        """Send an append; return None if it is acknowledged, or the number of the next record if it did not match."""
        records = tuple(map(AppendRecord, bodies))
        data = protobuf.encode_append_input(AppendInput(records, match_seq_num=self._seq_num))
        async with request(self._session, "POST", f"{self._url}/records", _APPEND, data) as response:
            body = await response.read()
            if response.status == 200:
                try:
                    self._seq_num = protobuf.decode_append_ack(body).end.seq_num
                except protobuf.BadProtobuf as error:
                    raise CommandFailed(f"{self._url}: {error}") from None
                return None
            expected = mismatched_seq_num(response.status, body)
            if expected is None:
                raise body_error(response, body)
            return expected

    async def _is_there(self, bodies: list[bytes]) -> bool:
        """Whether the records at the current number have these bodies."""
        target = f"{self._url}/records?seq_num={self._seq_num}&count={len(bodies)}"
        async with request(self._session, "GET", target, _READ) as response:
            body = await response.read()
            if response.status != 200:
                raise body_error(response, body)
        try:
            records = protobuf.decode_read_batch(body).records
        except protobuf.BadProtobuf as error:
            raise CommandFailed(f"{self._url}: {error}") from None
        if not records or records[0].seq_num != self._seq_num:
            raise CommandFailed(f"{self._url}: trimmed before it was known whether the last append had arrived")
        return [(record.body, record.headers) for record in records] == [(one, ()) for one in bodies]
