"""The S2 requests of the bridge.  Each reply is compared with the known state of the stream.

The requests go to the same origin as the engine's request, with its credentials, its time limits and its client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import orjson

from gateway.bridge.streams import KnownSighting, S2Sighting, StreamName
from gateway.errors import UpstreamBroken
from gateway.s2 import protobuf
from gateway.s2.json_format import CONTENT_TYPE
from gateway.s2.read_query import FromSeqNum, ReadQuery
from gateway.s2.records import (
    MAX_BATCH_METERED_BYTES,
    MAX_BATCH_RECORDS,
    AppendAck,
    AppendInput,
    Record,
    StreamPosition,
    metered_bytes,
    total_metered_bytes,
)
from gateway.upstream.reply import Reply
from gateway.upstream.s2_client import (
    MOST_ERROR_BYTES,
    MOST_OVERLAP_BYTES,
    AtTail,
    FoundRecords,
    S2Client,
    S2Outcome,
    S2Refused,
)

_MOST_INCARNATIONS: Final = 3
"""How many times the stream may be re-created during one read.  After one more re-creation, the read fails."""

_MOST_COMMAND_BYTES: Final = 64
"""The metered size limit of a command.  The largest command is a fence with a token of 36 bytes: it has 51 bytes."""


@dataclass(frozen=True, slots=True)
class Call:
    """The common parameters of all S2 requests made for one request of the engine."""

    client: S2Client
    base: str
    """The URL of the route, including the path of the origin."""
    name: StreamName
    sighting: S2Sighting

    async def read(self, query: ReadQuery) -> S2Outcome:
        """Make a unary read.  Raises a GatewayError."""
        known = self.sighting.known()
        outcome = await self._read(query)
        self._saw(known, outcome)
        return outcome

    async def tail(self) -> StreamPosition | S2Refused:
        """Return the tail, found by a read that returns no record.  Raises a GatewayError."""
        known = self.sighting.known()
        outcome = await self.client.tail()
        self._saw(known, outcome)
        return outcome.tail if isinstance(outcome, AtTail) else outcome

    async def command_at(self, seq_num: int) -> Record | S2Refused | None:
        """Return the record `seq_num` if it is small enough for a command; None if it is larger or was trimmed.

        Raises a GatewayError.
        """
        known = self.sighting.known()
        outcome = await self._ask(ReadQuery(FromSeqNum(seq_num), count=1, bytes=_MOST_COMMAND_BYTES))
        if isinstance(outcome, S2Refused):
            return outcome
        if not isinstance(outcome, FoundRecords) or outcome.records[0].seq_num != seq_num:
            return None
        self._saw(known, outcome)
        return outcome.records[0]

    async def read_from(self, seq_num: int, wait_s: int | None = None) -> S2Outcome:
        """Read from `seq_num` on, from the same stream as earlier reads, waiting up to `wait_s` seconds at the tail.

        If the reply does not prove that the stream is the same, the last known record is read again.  After a page as
        long as S2 allows, more records are likely.  The last known record is then read by the same request.  Raises a
        GatewayError.
        """
        for _ in range(_MOST_INCARNATIONS):
            known = self.sighting.known()
            joined = await self._read_joined(known, seq_num)
            outcome = joined or await self._read(ReadQuery(FromSeqNum(seq_num), wait_s=wait_s))
            if self._is_doubtful(known, outcome, joined) and (refused := await self.recognise(known)) is not None:
                return refused
            if self.sighting.known().incarnation == known.incarnation:
                if isinstance(outcome, FoundRecords):
                    self.sighting.saw_records(known, outcome.records, is_proof=True)
                    # A full page has one record fewer if the last known record was read in the same request.
                    is_full = len(outcome.records) >= MAX_BATCH_RECORDS - 1 or (
                        2 * total_metered_bytes(outcome.records) >= MAX_BATCH_METERED_BYTES
                    )
                    is_full &= metered_bytes(outcome.records[-1]) <= MOST_OVERLAP_BYTES
                    self.sighting.full_to = outcome.records[-1].seq_num + 1 if is_full else 0
                else:
                    self._saw(known, outcome)
                return outcome
            # Another reply has shown that the stream was re-created, so this reply may belong to either stream.
            wait_s = None
        raise UpstreamBroken("Stream changes faster than it can be read")

    async def _read_joined(self, known: KnownSighting, seq_num: int) -> FoundRecords | None:
        """Read from the last known record on, and return the records from `seq_num` on.

        Returns None, without a request, if `seq_num` does not follow the last known record or if more records are
        unlikely.  Returns None after the request if the reply has no new record.  Raises a GatewayError.
        """
        position = known.position
        if position is None or seq_num != position.seq_num or seq_num != self.sighting.full_to:
            return None
        outcome = await self._read(ReadQuery(FromSeqNum(seq_num - 1)))
        if not isinstance(outcome, FoundRecords):
            return None
        self.sighting.saw_records(known, outcome.records)
        left = tuple(record for record in outcome.records if record.seq_num >= seq_num)
        return FoundRecords(left, outcome.tail) if left else None

    async def recognise(self, known: KnownSighting | None = None) -> S2Refused | None:
        """Read the last known record again, to check whether the stream was re-created.  Returns the origin's error if
        the origin refuses.  Raises a GatewayError.
        """
        known = known or self.sighting.known()
        if known.position is None or not known.position.seq_num:
            return None
        seq_num = known.position.seq_num - 1
        outcome = await self._read(ReadQuery(FromSeqNum(seq_num), count=1))
        # If the record has been trimmed, no known record is left that could be compared.
        if not isinstance(outcome, FoundRecords) or outcome.records[0].seq_num == seq_num:
            self._saw(known, outcome)
        return outcome if isinstance(outcome, S2Refused) else None

    async def session(self, seq_num: int, lifetime_s: float) -> Reply | AtTail | S2Refused:
        """Open a read session from `seq_num` on, which waits for records; the caller must close the reply.

        Raises a GatewayError.
        """
        known = self.sighting.known()
        opened = await self.client.session(seq_num, min(lifetime_s, self.client.bounds.total_s or inf))
        if not isinstance(opened, Reply):
            self._saw(known, opened)
        return opened

    async def append(self, appended: AppendInput) -> AppendAck | S2Refused:
        """Append.  Raises a GatewayError.  The append may then have been executed, unless the error has `is_unsent`."""
        known = self.sighting.known()
        body = protobuf.encode_append_input(appended)
        headers = {"Content-Type": protobuf.CONTENT_TYPE, "Accept": protobuf.CONTENT_TYPE}
        answer = await self.client.write("POST", f"{self.client.url}/records", headers, body, MOST_ERROR_BYTES)
        if isinstance(answer, S2Refused):
            return answer
        try:
            ack = protobuf.decode_append_ack(answer)
        except protobuf.BadProtobuf as error:
            raise UpstreamBroken from error
        if ack.end.seq_num - ack.start.seq_num != len(appended.records):
            # Bytes that are not an acknowledgement of S2 may decode too: an empty body is a message of zeros.
            raise UpstreamBroken("Origin acknowledged more or fewer records than it was sent")
        self.sighting.saw_append(known, ack)
        return ack

    async def create(self) -> S2Refused | None:
        """Create the stream.  Raises a GatewayError."""
        known = self.sighting.known()
        body = orjson.dumps({"stream": self.name.stream})
        answer = await self.client.write("POST", f"{self.base}/v1/streams", {"Content-Type": CONTENT_TYPE}, body)
        if isinstance(answer, S2Refused):
            return answer
        self.sighting.gone(known)
        return None

    async def delete(self) -> S2Refused | None:
        """Delete the stream.  Raises a GatewayError."""
        known = self.sighting.known()
        answer = await self.client.write("DELETE", self.client.url, {})
        refused = answer if isinstance(answer, S2Refused) else None
        if refused is None or refused.is_absent:
            self.sighting.gone(known)
        return refused

    def _is_doubtful(self, known: KnownSighting, outcome: S2Outcome, joined: FoundRecords | None) -> bool:
        """Return whether the stream must be checked before the outcome is joined with earlier records.

        `joined` is the outcome if its reply also contained the last known record, else None.
        """
        closed_at = self.sighting.closed_at
        match outcome:
            case FoundRecords(records):
                # Either the records are after the end of the closed stream, or the stream was re-created and is open.
                is_behind = closed_at is not None and closed_at < records[0].seq_num
                return is_behind or (joined is None and not known.is_shown_by(records))
            case AtTail(tail):
                return closed_at is not None and not self.sighting.has_read_to(tail)
            case _:
                return False

    async def _read(self, query: ReadQuery) -> S2Outcome:
        if (outcome := await self._ask(query)) is not None:
            return outcome
        # All records between the start and the tail have been trimmed.
        tail = await self.client.tail()
        # Records appended since the first read are before this tail, so read again.
        return await self._ask(replace(query, wait_s=None)) or tail

    async def _ask(self, query: ReadQuery) -> S2Outcome | None:
        """Make one unary read; return None if the reply has neither records nor the tail."""
        outcome = await self.client.read(query)
        if not isinstance(outcome, FoundRecords):
            return outcome
        if outcome.records:
            check_run(outcome.records, query.start.seq_num if isinstance(query.start, FromSeqNum) else 0)
            return outcome
        return None if outcome.tail is None else AtTail(outcome.tail)

    def _saw(self, known: KnownSighting, outcome: S2Outcome) -> None:
        match outcome:
            case FoundRecords(records):
                self.sighting.saw_records(known, records)
            case AtTail(tail):
                self.sighting.saw_tail(known, tail)
            case S2Refused(is_absent=True):
                self.sighting.gone(known)
            case _:
                pass


def check_run(records: Sequence[Record], start: int) -> None:
    """Raise UpstreamBroken unless these records are consecutive and none is before `start`."""
    if records and (
        records[0].seq_num < start or any(record.seq_num != at for at, record in enumerate(records, records[0].seq_num))
    ):
        raise UpstreamBroken("Origin sent records that do not follow each other")
