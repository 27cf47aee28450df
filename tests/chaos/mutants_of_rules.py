"""Mutants that break one rule of `docs/rules.md` each and that the tests of the rule are to tell.

Chaos may meet them or not: what tells them for certain is `python -m tests.chaos --rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.auth.remembered_verdicts import Allowed
from gateway.engine import catchup, reply_recorder, route
from gateway.engine.catchup import _Attempt
from gateway.engine.confirming import Patience
from gateway.engine.live_start import LiveReads, _Opening
from gateway.engine.long_poll_waiter import Waiter
from gateway.engine.relayed_request import SentRequest
from gateway.engine.reply_classifier import TapeFacts
from gateway.engine.sse import SseOpening, Subscription
from gateway.engine.writes import Writes
from gateway.errors import GatewayError, UpstreamBroken
from gateway.live.topic import Topic
from gateway.ops.access_log.live_reads import JoinedRead
from gateway.protocol import target
from gateway.protocol.cache_status import Outcome
from gateway.protocol.stream_version import Version
from gateway.server import header_meanings
from gateway.server.header_meanings import Known, Section
from gateway.server.live_requests import LiveRequests
from gateway.server.poll_group import PollGroup
from gateway.server.query_credentials import NamedStream, VerdictKey
from gateway.server.remembered import RememberedAnswer, RememberedAnswers
from gateway.tape import acknowledged_writes, decide
from gateway.tape.decide_records import RecordProgress
from gateway.tape.origin_statements import Expiry
from gateway.tape.record_stream import RecordStream
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Tape
from gateway.telemetry.access_record import CloseReason
from gateway.upstream.flight import Beyond, Flight, Head
from tests.chaos.mutant import Mutant, Patches, always, never, nothing, registrar

RULED: Final[list[Mutant]] = []
mutant = registrar(RULED)


# -- which stream a request is for


@mutant("no path is passed on that an origin may take for another")
def path_may_begin_with_a_host() -> Patches:
    return [(target, "check_path", nothing), (route, "check_path", nothing)]


# -- the stream may be answered from memory


@mutant("the first answer from memory waits for the lifetime")
def lifetime_is_not_waited_for() -> Patches:
    return [(Stream, "may_answer_alone", Stream.is_trusted)]


@mutant("a stream is trusted for trust_s")
def stream_is_trusted_for_ever() -> Patches:
    return [(Stream, "is_trusted", lambda self, *_: not self.needs_revalidation)]


@mutant("a sliding TTL is trusted for half its length")
def sliding_ttl_is_trusted_whole() -> Patches:
    return [(Stream, "_trusted_s", lambda _, trust_s: trust_s)]


@mutant("a stream that may have ended is not shown even if the origin fails")
def doubted_stream_outlasts_a_failure() -> Patches:
    return [(Stream, "outlasts_failure", lambda self, *_: self.ended is None)]


@mutant("an append of unknown outcome ends nothing")
def lost_append_is_taken_for_an_end() -> Patches:
    mark_stale = Stream.mark_stale
    return [(Stream, "mark_stale", lambda self, **_: mark_stale(self, may_have_ended=True))]


@mutant("a stream that may be another has a lifetime of its own")
def earlier_lifetime_is_kept() -> Patches:
    return [(Expiry, "lose", nothing)]


@mutant("a HEAD sent before the stream may have been replaced says nothing of the lifetime")
def early_head_tells_the_lifetime() -> Patches:
    return [(reply_recorder, "_may_be_of_predecessor", never)]


@mutant("bytes in memory do not wait for a silent origin")
def held_bytes_wait_for_a_silent_origin() -> Patches:
    async def answer(
        self: Patience, read: Any, stream: Stream, asking: Callable[[], Coroutine[Any, Any, Any]], held: Any
    ) -> Any:
        return await asking()

    return [(Patience, "answer_or_held", answer)]


@mutant("an SSE answer says that the origin has not confirmed its beginning")
def unconfirmed_sse_answer_is_followed() -> Patches:
    return [(Subscription, "outcome", Outcome.FOLLOWED)]


@mutant("bytes that an owner had in memory are not taken for new")
def overdue_bytes_are_a_miss() -> Patches:
    return [(LiveReads, "are_overdue", never)]


@mutant("bytes that lack an acknowledged write are not given for want of the origin")
def held_bytes_lack_a_write() -> Patches:
    return [(Stream, "holds_acknowledged", always)]


@mutant("bytes that may lack an acknowledged write of unknown end are not given for want of the origin")
def held_bytes_lack_a_write_of_unknown_end() -> Patches:
    return [(Stream, "may_lack_acknowledged", lambda self, token: not self.holds_acknowledged(token))]


@mutant("an origin that has answered nobody since it fell silent is silent")
def earlier_answer_ends_a_silence() -> Patches:
    return [(route.Route, "heard_elsewhere", lambda self, _: setattr(self, "silent_at", None))]


@mutant("a live answer to another process states the record of its bytes")
def wait_of_another_process_starts_again() -> Patches:
    return [(Waiter, "is_handed", property(never))]


@mutant("where parties share, the 404 of one is verified by the others")
def one_partys_404_is_everybodys() -> Patches:
    return [(Stream, "is_hidden_from", never)]


# -- the tail and the end


@mutant("a request says nothing of writes that were acknowledged after it was sent")
def early_request_confirms_later_writes() -> Patches:
    return [(Version, "same_acks_as", always)]


@mutant("a query whose writes end beyond the tail names another stream")
def every_query_names_one_stream() -> Patches:
    return [(acknowledged_writes, "MAX_OTHER_QUERIES", 0)]


@mutant("an acknowledged append without an offset ends what is known of the tail")
def append_without_an_offset_is_not_recorded() -> Patches:
    return [(Stream, "acknowledged_without_offset", nothing)]


@mutant("an append that is acknowledged late does not make its end the tail")
def late_append_names_the_tail() -> Patches:
    return [(decide, "is_furthest", always)]


@mutant("an earlier read's request does not show that an offset is beyond the tail")
def offset_stays_beyond_the_tail() -> Patches:
    real = _Attempt._fetch_tail

    async def from_earlier(attempt: _Attempt) -> tuple[Flight, bool] | None:
        flight = attempt._fetches.pending(attempt.stream, attempt._progress.at)
        if flight is None:
            return await real(attempt)
        attempt.parts.attach(flight)
        return flight, False

    return [(_Attempt, "_fetch_tail", from_earlier)]


@mutant("an earlier read's request does not show a live read that its offset is beyond the tail")
def live_offset_stays_beyond_the_tail() -> Patches:
    real = _Opening._fresh

    async def from_earlier(opening: _Opening, start: str) -> Head:
        flight = opening._reads.fetches.pending(opening._stream, start)
        if flight is None or not flight.is_sent:
            return await real(opening, start)
        await flight.until_known()
        assert flight.head is not None
        return flight.head

    async def no_earlier(opening: _Opening, start: str) -> None:
        return None

    return [(_Opening, "_fresh", from_earlier), (_Opening, "_joined", no_earlier)]


@mutant("a live read may repeat the tail that its fetch was told, until a write")
def first_tail_outlives_a_write() -> Patches:
    return [(Stream, "is_still", lambda self, first, at: self.tape.resolve(first.at) == at)]


@mutant("a follower that is lost confirms no tail")
def lost_follower_confirms_the_tail() -> Patches:
    def lost(self: Topic, now: float, failure: GatewayError | None) -> None:
        self.stream.unfollowed(now)
        self.failure = failure
        self.wake()

    return [(Topic, "lost", lost)]


# -- S2 streams


@mutant("records in doubt are confirmed before they are read")
def doubted_records_are_read() -> Patches:
    return [(RecordStream, "is_doubted", property(never))]


@mutant("a tail says nothing of a read that has passed it")
def passed_tail_ends_a_read() -> Patches:
    return [(RecordProgress, "trust", lambda self, tail: setattr(self, "tail", tail))]


@mutant("only a read that its limits have stopped ends without the origin")
def every_read_is_complete() -> Patches:
    return [(RecordProgress, "is_complete", property(always, nothing))]


@mutant("a session waits only once it has been sent what the topic has")
def joined_read_waits_behind_the_topic() -> Patches:
    return [(RecordProgress, "at", property(lambda self: 1 << 40, nothing))]


# -- fetches under way


@mutant("a read whose bytes were forgotten in its middle joins no bytes of another stream")
def walk_goes_on_over_forgotten_bytes() -> Patches:
    return [(decide, "is_another", never), (catchup, "is_another", never)]


@mutant("a tail that moved back is another stream's")
def tail_may_move_back() -> Patches:
    return [(Tape, "check", nothing)]


@mutant("a closed stream that is open again is another stream")
def closed_stream_may_open_again() -> Patches:
    of = TapeFacts.of
    return [(TapeFacts, "of", lambda *known: of(*known)._replace(closed_at=None))]


@mutant("another identity is another stream's")
def identity_is_ignored() -> Patches:
    return [(Stream, "learn_identity", always)]


@mutant("a record that learned its identity after a fetch was sent may be the later stream")
def late_fetch_ends_the_later_stream() -> Patches:
    return [(reply_recorder, "is_outdated", never)]


@mutant("a 410 for an offset that the gateway chose is not the client's answer")
def refusal_of_a_chosen_offset_is_passed_on() -> Patches:
    async def fill_for(self: LiveReads, read: Any, topic: Topic, at: str) -> bool:
        return await self.fill(read.route, read.source, topic, at)

    failed = _Attempt._failed

    def passed_on(self: _Attempt, head: Any) -> Any:
        self._progress.at = self._read.start
        return failed(self, head)

    return [(LiveReads, "fill_for", fill_for), (_Attempt, "_failed", passed_on)]


@mutant("an offset of a stream that was made anew is no fault of the origin")
def offset_of_the_former_stream_is_a_fault() -> Patches:
    expect_stream = LiveReads.expect_stream

    def expect(self: LiveReads, head: Any) -> Any:
        if isinstance(head, Beyond):
            raise UpstreamBroken
        return expect_stream(self, head)

    return [(LiveReads, "expect_stream", expect)]


# -- lives


@mutant("a PUT that made a stream ends the earlier one")
def creation_ends_nothing() -> Patches:
    end_group = Writes._end_group

    def ended(self: Writes, write: SentRequest, why: End) -> None:
        if why is not End.RECREATED:
            end_group(self, write, why)

    return [(Writes, "_end_group", ended)]


@mutant("a write that another write has overtaken ends what is known of the tail")
def overtaken_write_is_not_recorded() -> Patches:
    return [(Writes, "_record_overtaken", nothing)]


@mutant("an append acknowledged while a PUT or a DELETE is under way may be of another stream")
def pending_writes_remake_nothing() -> Patches:
    return [(Writes, "_may_be_remade", staticmethod(never))]


# -- answers found by the bytes of their request


@mutant("an answer that was read before bytes were dropped is not remembered after it")
def answer_of_dropped_bytes_is_remembered() -> Patches:
    remember = RememberedAnswers.remember

    def remembered(self: RememberedAnswers, request: bytes, answer: RememberedAnswer, names: Any) -> None:
        answer.edition = answer.stream.version.edition
        remember(self, request, answer, names)

    return [(RememberedAnswers, "remember", remembered)]


@mutant("the first part of an SSE answer is repeated only until the stream changes")
def sse_opening_outlives_a_change() -> Patches:
    return [(SseOpening, "topic_at", lambda self, _: self._topic())]


# -- what the access log says


@mutant("a live read that joined others, and that its client leaves, has a line")
def joined_read_that_was_left_has_no_line() -> Patches:
    end = JoinedRead.record_end

    def ended(self: JoinedRead, outcome: Outcome, reason: CloseReason) -> None:
        if reason is CloseReason.LEFT:
            self.discard()
        else:
            end(self, outcome, reason)

    return [(JoinedRead, "record_end", ended)]


@mutant("a long-poll that leaves its group has a line")
def poll_that_leaves_its_group_has_no_line() -> Patches:
    return [(PollGroup, "_record", nothing)]


# -- who shares


@mutant("a verdict is on one stream and one credential")
def join_takes_any_verdict_of_its_section() -> Patches:
    return [(LiveRequests, "join", joins_by_any_verdict())]


@mutant("a verdict is on one stream and one credential")
def request_is_judged_by_the_first_credentials_in_a_query() -> Patches:
    return [(header_meanings, "_named", named_by_the_first)]


def named_by_the_first(known: Known, _: NamedStream | None, credentials: bytes) -> NamedStream:
    """A request that differs in its credentials gets the verdict on the first request."""
    assert isinstance(known.verdict_key, NamedStream)
    return known.verdict_key


@mutant("a verdict is void once another edition has begun")
def join_ignores_the_edition_of_a_verdict() -> Patches:
    join = LiveRequests.join

    def joins(self: LiveRequests, channel: Any, known: Any, section: Section, presented: Any = None) -> bool:
        kept = [presented.allowed] if presented is not None and presented.allowed is not None else []
        for allowed in (*section.allowed.values(), *kept):
            allowed.edition = self._verdicts.edition
        return join(self, channel, known, section, presented)

    return [(LiveRequests, "join", joins)]


class _AnyVerdict(dict[VerdictKey, Allowed]):
    """Has the latest verdict under every key."""

    def get(self, key: object, default: Any = None) -> Any:
        return next(reversed(self.values()), default)


def joins_by_any_verdict() -> Callable[..., bool]:
    """A live request joins if its header section has a verdict, of whatever stream and credentials."""
    join = LiveRequests.join

    def joins(self: LiveRequests, channel: Any, known: Any, section: Section, *presented: Any) -> bool:
        kept, section.allowed = section.allowed, _AnyVerdict(section.allowed)
        try:
            return join(self, channel, known, section, *presented)
        finally:
            section.allowed = kept

    return joins
