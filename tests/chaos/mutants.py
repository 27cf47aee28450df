"""Gateways with one fault each: what a harness is worth is how many of these it sees.

A mutant replaces named functions for as long as a run lasts.  Each breaks one promise of the design, and says which.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from unittest.mock import patch
from weakref import WeakKeyDictionary

from gateway.engine import catchup, classifier, core, fetch_table, live_read, relay, response_heads
from gateway.engine.absences import Absences
from gateway.engine.answer import Answer, Parts
from gateway.engine.coder import Coder
from gateway.engine.fetch_table import FetchTable
from gateway.engine.relay import Relay, RelayExchange
from gateway.engine.route import Route
from gateway.errors import GatewayError
from gateway.live.subscriber import Subscriber
from gateway.live.topic import Topic
from gateway.live.topics import LiveTopics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.cursor import interval
from gateway.protocol.etag import mint
from gateway.protocol.mode import Mode
from gateway.protocol.stream_key import Partition
from gateway.server import remembered
from gateway.server.remembered import RememberedAnswer, RememberedAnswers
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Reading, Tape
from gateway.upstream.flight import Flight, FlightReader
from gateway.upstream.reply import Reply

Patches = list[tuple[object, str, Any]]


@dataclass(frozen=True)
class Mutant:
    """A fault, the promise that it breaks, and what it replaces."""

    name: str
    breaks: str
    patches: Callable[[], Patches]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have the gateway be this one inside the block."""
        with ExitStack() as stack:
            for owner, name, value in self.patches():
                stack.enter_context(patch.object(owner, name, value))
            yield


MUTANTS: Final[list[Mutant]] = []


def mutant(breaks: str) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
    def add(patches: Callable[[], Patches]) -> Callable[[], Patches]:
        MUTANTS.append(Mutant(patches.__name__.replace("_", "-"), breaks, patches))
        return patches

    return add


def _nothing(*_: Any, **__: Any) -> None:
    return None


# -- what is in flight


@mutant("a fetch that a purge or a write has overtaken teaches nothing")
def overtaken_flight_is_laid() -> Patches:
    never = lambda *_: False  # noqa: E731
    return [(fetch_table, "is_overtaken", never), (classifier, "is_overtaken", never)]


@mutant("a refusal of before a write ends nothing")
def late_404_is_believed() -> Patches:
    never = lambda *_: False  # noqa: E731
    return [(module, "is_outdated", never) for module in (fetch_table, classifier, live_read)]


@mutant("a read joins no fetch that was sent before it came")
def flight_is_joined_after_it_was_sent() -> Patches:
    join = FetchTable.join

    def joined(self: FetchTable, stream: Stream, start: str, *rest: Any) -> tuple[Flight, bool]:
        flight = self._pending.get((stream, start))
        if flight is not None and not flight.is_over and not flight.base:
            return flight, False
        return join(self, stream, start, *rest)

    # Nor does it wait for the earlier one to be over.
    return [(FetchTable, "join", joined), (FetchTable, "pending", _nothing)]


@mutant("a body that is cut short is never ended cleanly")
def cut_body_ends_cleanly() -> Patches:
    chunks = Reply.chunks

    async def cut(self: Reply) -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks(self):
                yield chunk
        except GatewayError:
            return

    return [(Reply, "chunks", cut)]


@mutant("the leader of a shared fetch is a reader like any other")
def first_to_leave_ends_the_flight() -> Patches:
    leave = Flight.leave

    def left(self: Flight, reader: FlightReader) -> None:
        leave(self, reader)
        if not self.is_over and self.task is not None:
            self.give_up()
            self.task.cancel()

    return [(Flight, "leave", left)]


# -- credentials


@mutant("nothing fetched with credentials reaches a client with others")
def credentials_share_a_tape() -> Patches:
    def partition(self: Route, *_: Any) -> Partition:
        return self.public

    return [(Route, "partition", partition)]


@mutant("nothing fetched with credentials reaches a client with others")
def remembered_answer_ignores_authorization() -> Patches:
    take = RememberedAnswers.take

    def taken(self: RememberedAnswers, _: Any) -> None:
        take(self, [()])

    return [
        (remembered, "_MEANINGLESS", (*remembered._MEANINGLESS, "authorization")),
        (RememberedAnswers, "take", taken),
    ]


# -- lives


def _end_group(self: Relay, passed: Any, why: End, spared: End | None) -> None:
    for write in self._writes[passed.group]:
        write.is_overtaken = True
    if why is not spared:
        for stream in self._store.purge(passed.group, why):
            self._live.end(stream, why)


@mutant("a DELETE drops the tape")
def delete_purges_nothing() -> Patches:
    return [(Relay, "_end_group", lambda self, passed, why: _end_group(self, passed, why, End.DELETED))]


@mutant("a PUT that creates drops the tape")
def put_purges_nothing() -> Patches:
    return [(Relay, "_end_group", lambda self, passed, why: _end_group(self, passed, why, End.RECREATED))]


@mutant("a DELETE drops the tapes of all parties")
def delete_purges_only_the_writers_tape() -> Patches:
    def end_group(self: Relay, passed: Any, why: End) -> None:
        own = self._store.find(passed.own) if passed.own is not None else None
        if own is not None:
            self._live.drop(own, why)

    return [(Relay, "_end_group", end_group)]


@mutant("a DELETE that finds nothing raises doubts: an earlier one may have done it")
def delete_404_raises_no_doubt() -> Patches:
    record = Relay._record

    def recorded(self: Relay, passed: Any, reply: Reply, write: RelayExchange) -> None:
        if passed.mode is Mode.DELETE and reply.status == 404:
            self._lost(write, 404)
        else:
            record(self, passed, reply, write)

    return [(Relay, "_record", recorded)]


@mutant("a write of unknown outcome raises doubts")
def lost_write_raises_no_doubt() -> Patches:
    return [(Stream, "mark_stale", _nothing)]


@mutant("live readers of a deleted stream are ended at once")
def live_readers_outlive_their_stream() -> Patches:
    return [(LiveTopics, "end", _nothing)]


@mutant("TTL and Stream-Expires-At bound a tape's life")
def expiry_is_ignored() -> Patches:
    never = lambda *_: False  # noqa: E731
    return [(Stream, "has_expired", never), (LiveTopics, "_watch_expiry", _nothing)]


@mutant("a 404 is not repeated over a write")
def absence_outlives_a_write() -> Patches:
    def write_begins(self: Absences, group: Any) -> None:
        self.write_turns += 1
        self._writes[group] = self._writes.get(group, 0) + 1

    return [(Absences, "write_begins", write_begins)]


@mutant("a remembered answer ends with its stream")
def remembered_answer_outlives_its_stream() -> Patches:
    return [(RememberedAnswers, "forget", _nothing), (RememberedAnswer, "is_good", lambda *_: True)]


# -- the tail


@mutant("up to date is said only when it is true now")
def up_to_date_from_memory() -> Patches:
    def tail_now(self: Any) -> str | None:
        tape = self._stream.tape
        return tape.resolve(tape.tail) if tape.tail is not None else None

    return [
        (catchup._Attempt, "_tail_now", tail_now),
        (Tape, "reached", _reached_once),
    ]


_reached = Tape.reached


def _reached_once(self: Tape, token: str, *, is_short: bool = False, is_closed: bool = False) -> None:
    """As if writes and looks named no tail further on than the follower."""
    if self.tail is None or is_closed or not self._blocks:
        _reached(self, token, is_short=is_short, is_closed=is_closed)


@mutant("up to date is said only when it is true now")
def remembered_tail_is_repeated() -> Patches:
    def is_good(self: RememberedAnswer, now: float) -> bool:
        return now < self.until + 5 and self.stream.stale_marks == self.stale_marks

    return [(RememberedAnswer, "is_good", is_good)]


@mutant("an acknowledged write is seen by every read that starts after it")
def acknowledgement_is_not_recorded() -> Patches:
    return [(Relay, "_acknowledge", _nothing)]


@mutant("an acknowledged write is seen by every party")
def acknowledgement_is_recorded_for_the_writer_alone() -> Patches:
    def acknowledge(self: Relay, passed: Any, reply: Reply, write: RelayExchange) -> None:
        tail = relay._offset(reply)
        if write.own is not None and write.own.ended is None and tail is not None:
            write.own.acknowledged(tail, is_closed="Stream-Closed" in reply.headers, query=passed.query)
            self._live.expect(write.own)
            self._reached(write.own, reply)

    return [(Relay, "_acknowledge", acknowledge)]


@mutant("an answer that stops short of the tail does not call itself up to date")
def short_answer_is_up_to_date() -> Patches:
    def answer_here(self: Any, outcome: Outcome) -> Answer:
        answer: Answer = self._answer(outcome, up_to_date=True, is_closed=self._stream.tape.is_closed_at(self._at))
        return answer

    return [(catchup._Attempt, "_answer_here", answer_here)]


@mutant("what is given for want of the origin says nothing of the tail")
def stale_answer_is_up_to_date() -> Patches:
    answer = catchup._Attempt._answer

    def answered(self: Any, outcome: Outcome, **said: Any) -> Answer:
        if outcome is Outcome.STALE_IF_ERROR:
            said["up_to_date"] = True
        return answer(self, outcome, **said)

    return [(catchup._Attempt, "_answer", answered), (Stream, "holds_acknowledged", lambda *_: True)]


@mutant("SSE says up to date only when it is true")
def live_reader_is_always_up_to_date() -> Patches:
    return [(Topic, "is_current", lambda self, _: self.is_confirmed), (Topic, "is_missing", lambda *_: False)]


@mutant("a closed stream is said to be closed")
def closure_is_forgotten() -> Patches:
    def reached(self: Tape, token: str, *, is_short: bool = False, is_closed: bool = False) -> None:
        _reached(self, token, is_short=is_short, is_closed=False)

    return [(Tape, "reached", reached), (response_heads, "STREAM_CLOSED", "X-Closed")]


@mutant("a stream is said to be closed only when it is")
def tail_is_taken_for_the_end() -> Patches:
    def is_closed_at(self: Tape, token: str) -> bool:
        return token == self.tail

    return [(Tape, "is_closed_at", is_closed_at)]


# -- bytes and offsets


@mutant("Stream-Next-Offset never runs ahead of the bytes")
def offset_runs_ahead() -> Patches:
    read = Tape.read

    def ahead(self: Tape, start: str, limit: int) -> Reading:
        reading = read(self, start, limit)
        return replace(reading, end=self.tail or reading.end) if reading.size else reading

    return [(Tape, "read", ahead)]


@mutant("eviction forgets bytes and never skips any")
def evicted_bytes_are_skipped() -> Patches:
    drop_oldest, drop_all = Tape.drop_oldest, Tape.drop_all

    def skipping(drop: Callable[[Tape], int]) -> Callable[[Tape], int]:
        def dropped(self: Tape) -> int:
            first = next(iter(self._blocks.values()), None)
            freed = drop(self)
            if first is not None:
                self._hops[first.start] = first.end
            return freed

        return dropped

    return [(Tape, "drop_oldest", skipping(drop_oldest)), (Tape, "drop_all", skipping(drop_all))]


@mutant("an answer has every byte that it was begun with")
def eviction_in_mid_answer() -> Patches:
    held = Parts.held

    def without_last(self: Parts, is_json: bool) -> list[bytes] | None:
        pieces = held(self, is_json)
        return pieces[:-2] + pieces[-1:] if pieces and len(pieces) > 3 else pieces

    return [(Parts, "held", without_last)]


@mutant("JSON arrays are joined as arrays")
def joined_without_a_comma() -> Patches:
    held = Parts.held

    def without_commas(self: Parts, is_json: bool) -> list[bytes] | None:
        pieces = held(self, is_json)
        return [piece for piece in pieces if piece != b","] if pieces is not None else None

    return [(Parts, "held", without_commas)]


@mutant("a frame is for readers at one place")
def frame_is_shared_by_where_it_ends() -> Patches:
    frame = Topic._frame

    def shared(self: Topic, start: str, reading: Reading, **said: Any) -> Any:
        return frame(self, "", reading, **said)

    return [(Topic, "_frame", shared)]


@mutant("a live reader's offset is where its bytes end")
def live_reader_skips_to_the_tail() -> Patches:
    pump = Subscriber.pump

    def skipping(self: Subscriber) -> None:
        position = self.topic.position
        if position is not None and self.at != "-1" and not self._is_over:
            self.at = position
        pump(self)

    return [(Subscriber, "pump", skipping)]


@mutant("a data event has a control event behind it")
def control_event_is_lost() -> Patches:
    frame = Topic._frame

    def without_control(self: Topic, start: str, reading: Reading, **said: Any) -> Any:
        found = frame(self, start, reading, **said)
        return self._data_event(reading) if isinstance(found, bytes) else found

    return [(Topic, "_frame", without_control)]


# -- tags, codings, cursors


@mutant("closing changes the tag")
def tag_ignores_closure() -> Patches:
    return [(response_heads, "mint", lambda incarnation, start, end, _: mint(incarnation, start, end, False))]


@mutant("a life has tags of its own")
def tag_ignores_the_life() -> Patches:
    return [(response_heads, "mint", lambda _, start, end, is_closed: mint("x", start, end, is_closed))]


@mutant("a 304 is for a representation that the client takes")
def not_modified_for_another_coding() -> Patches:
    def without(if_none_match: str | None, _: Any) -> str | None:
        return re.sub(r':(gzip|br|zstd)"', '"', if_none_match) if if_none_match is not None else None

    return [(core, "without_codings", without)]


@mutant("a coded body is of the run that the answer shows")
def coded_body_of_a_shorter_run() -> Patches:
    def find(self: Coder, job: Any) -> Any:
        return self._kept.get(job.shown.stream, {}).get((job.shown.start, job.coding))

    return [(Coder, "_find", find)]


@mutant("the cursor of a long-poll is above the client's")
def cursor_is_not_advanced() -> Patches:
    def cursor_for(self: Topic, client: str | None, wall: float, _: Any) -> str:
        return client or str(interval(wall))

    return [(Topic, "cursor_for", cursor_for)]


@mutant("the cursor of an SSE connection never goes back")
def cursor_goes_back() -> Patches:
    drawn: WeakKeyDictionary[Topic, int] = WeakKeyDictionary()

    def shared_cursor(self: Topic) -> int:
        drawn[self] = drawn.get(self, 0) + 1
        return max(0, interval(self._wall()) - drawn[self])

    return [
        (Topic, "shared_cursor", shared_cursor),
        (Topic, "cursor_for", lambda *_: "0"),
    ]


# -- writes


@mutant("a write happens at most once")
def append_is_sent_twice() -> Patches:
    begin = RelayExchange.begin

    class Nobody:
        sent = answered = failed = staticmethod(_nothing)

    def twice(self: RelayExchange, upstream: Any, url: str, bounds: Any) -> None:
        passed = self.passed
        if passed.mode is Mode.APPEND and isinstance(passed.body, bytes):
            upstream.ask(Nobody(), passed.method, url, passed.headers, bounds, passed.body)
        begin(self, upstream, url, bounds)

    return [(RelayExchange, "begin", twice)]
