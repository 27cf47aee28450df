"""Mutants of the tail, of bytes and offsets, of tags, codings and cursors."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final

from gateway.engine import catchup, core, response_heads
from gateway.engine.answer import Answer, Parts
from gateway.engine.compression import Coder
from gateway.engine.flight_bodies import Comparison
from gateway.engine.relayed_request import SentRequest
from gateway.engine.response_heads import origin_error_answer
from gateway.engine.writes import Writes
from gateway.live import follower
from gateway.live.frames import Frames
from gateway.live.subscriber import Subscriber
from gateway.live.topic import Topic
from gateway.protocol import etag
from gateway.protocol.cache_status import Outcome
from gateway.protocol.cursor import Cursors, interval
from gateway.protocol.etag import mint
from gateway.protocol.names import stated_position
from gateway.server.remembered import RememberedAnswer
from gateway.tape import decide
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape, TapeReading
from gateway.upstream.flight import OriginError
from gateway.upstream.reply import Reply
from tests.chaos.mutant import Mutant, Patches, never, nothing, registrar

BYTES: Final[list[Mutant]] = []
mutant = registrar(BYTES)


# -- the tail


@mutant("up to date is said only when it is true now")
def up_to_date_from_memory() -> Patches:
    def known_tail(stream: Stream, *_: object) -> str | None:
        tape = stream.tape
        return tape.resolve(tape.tail) if tape.tail is not None else None

    return [
        (decide, "known_tail", known_tail),
        (Tape, "reached", _reached_once),
    ]


_reached = Tape.reached


def _reached_once(self: Tape, token: str, *, is_short: bool = False, is_closed: bool = False) -> None:
    """As if writes and looks named no tail further on than the follower."""
    if self.tail is None or is_closed or not self._blocks:
        _reached(self, token, is_short=is_short, is_closed=is_closed)


@mutant("up to date is said only when it is true now")
def remembered_tail_is_repeated() -> Patches:
    def is_unchanged(self: RememberedAnswer) -> bool:
        return self.version.same_doubts_as(self.stream.version)

    return [(RememberedAnswer, "is_unchanged", is_unchanged)]


@mutant("an acknowledged write is seen by every read that starts after it")
def acknowledgement_is_not_recorded() -> Patches:
    return [(Writes, "_acknowledge", nothing)]


@mutant("an acknowledged write is seen by every party")
def acknowledgement_is_recorded_for_the_writer_alone() -> Patches:
    def acknowledge(self: Writes, write: SentRequest, reply: Reply) -> None:
        tail = stated_position(reply.headers)
        if write.stream is not None and write.stream.ended is None and tail is not None:
            closes = "Stream-Closed" in reply.headers
            write.stream.acknowledged(tail, is_closed=closes, query=write.request.query)
            self._live.expect(write.stream)
            self._reached(write.stream, tail, is_closed=closes)

    return [(Writes, "_acknowledge", acknowledge)]


def _up_to_date(decided: Callable[..., decide.Decision]) -> Callable[..., decide.Decision]:
    """The same decision; whatever is sent is called up to date."""

    def with_tail(*about: Any) -> decide.Decision:
        step = decided(*about)
        return step._replace(up_to_date=True) if isinstance(step, decide.Send) else step

    return with_tail


@mutant("an answer that stops short of the tail does not call itself up to date")
def short_answer_is_up_to_date() -> Patches:
    return [(decide, "_catch_up", _up_to_date(decide._catch_up))]


@mutant("what is given for want of the origin says nothing of the tail")
def stale_answer_is_up_to_date() -> Patches:
    after = _up_to_date(decide._after_failure)
    return [(decide, "_after_failure", after), (Stream, "holds_acknowledged", lambda *_: True)]


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

    def ahead(self: Tape, start: str, limit: int) -> TapeReading:
        reading = read(self, start, limit)
        return reading._replace(end=self.tail or reading.end) if reading.size else reading

    return [(Tape, "read", ahead)]


@mutant("eviction forgets bytes and never skips any")
def evicted_bytes_are_skipped() -> Patches:
    drop_oldest, drop_all = Tape.drop_oldest, Tape.drop_all

    def skipping(drop: Callable[[Tape], int]) -> Callable[[Tape], int]:
        def dropped(self: Tape) -> int:
            first = next(iter(self._blocks.values()), None)
            freed = drop(self)
            if first is not None:
                self._synonyms[first.start] = first.end
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


@mutant("no bytes are stored before the type is known")
def bytes_arrive_before_the_type() -> Patches:
    return [(follower, "_suits_sse", lambda content_type: content_type is None or _suits_sse(content_type))]


_suits_sse = follower._suits_sse


@mutant("a frame is for readers at one place")
def frame_is_shared_by_where_it_ends() -> Patches:
    frame = Frames.frame

    def shared(self: Frames, start: str, reading: TapeReading, **said: Any) -> Any:
        return frame(self, "", reading, **said)

    return [(Frames, "frame", shared)]


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
    frame = Frames.frame

    def without_control(self: Frames, start: str, reading: TapeReading, **said: Any) -> Any:
        found = frame(self, start, reading, **said)
        return self.data(reading) if isinstance(found, bytes) else found

    return [(Frames, "frame", without_control)]


# -- what the origin has trimmed


@mutant("bytes that the origin has trimmed are served for trust_s at most")
def bytes_are_never_confirmed() -> Patches:
    return [(Stream, "is_confirmation_due", never), (Stream, "bytes_until", lambda *_: math.inf)]


@mutant("bytes that the origin has trimmed are served for trust_s at most")
def confirmation_looks_at_no_bytes() -> Patches:
    return [(Comparison, "agrees", True)]


@mutant("an offset is refused only if the origin has trimmed it")
def refused_middle_of_a_tape_is_kept() -> Patches:
    failed = catchup._Attempt._failed

    def answered(self: Any, head: Any) -> Answer:
        if isinstance(head, OriginError) and head.status == 410:
            return origin_error_answer(self._read.route, head, Outcome.MISS)
        return failed(self, head)

    return [(TapeStore, "forget_through", nothing), (catchup._Attempt, "_failed", answered)]


# -- tags, codings, cursors


def _minted(mint_wrongly: Callable[[str, str, str, bool], str]) -> Patches:
    return [(module, "mint", mint_wrongly) for module in (etag, response_heads)]


@mutant("closing changes the tag")
def tag_ignores_closure() -> Patches:
    return _minted(lambda incarnation, start, end, _: mint(incarnation, start, end, False))


@mutant("a life has tags of its own")
def tag_ignores_the_life() -> Patches:
    return _minted(lambda _, start, end, is_closed: mint("x", start, end, is_closed))


@mutant("a trimmed stream has other tags for a read from its start")
def tag_ignores_a_trim() -> Patches:
    return [(response_heads, "_tagged_start", lambda start, _: start)]


@mutant("a 304 is for a representation that the client takes")
def not_modified_for_another_coding() -> Patches:
    def without(if_none_match: str | None, _: Any) -> str | None:
        return re.sub(r':(gzip|br|zstd)"', '"', if_none_match) if if_none_match is not None else None

    return [(module, "without_codings", without) for module in (etag, core)]


@mutant("a coded body is of the run that the answer shows")
def coded_body_of_a_shorter_run() -> Patches:
    def find(self: Coder, job: Any) -> Any:
        return self._kept.get(job.run.stream, {}).get((job.run.start, job.coding))

    return [(Coder, "_find", find)]


@mutant("the cursor of a long-poll is above the client's")
def cursor_is_not_advanced() -> Patches:
    def next_for(self: Cursors, client: str | None) -> str:
        return client or str(interval(self._wall()))

    return [(Cursors, "next_for", next_for)]


@mutant("the cursor of an SSE connection never goes back")
def cursor_goes_back() -> Patches:
    drawn: dict[int, int] = {}

    def shared(self: Cursors) -> int:
        drawn[id(self)] = drawn.get(id(self), 0) + 1
        return max(0, interval(self._wall()) - drawn[id(self)])

    return [
        (Cursors, "shared", shared),
        (Cursors, "next_for", lambda *_: "0"),
    ]
