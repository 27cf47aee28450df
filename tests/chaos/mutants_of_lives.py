"""Mutants of what is in flight, of credentials, of lives and of writes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from gateway.engine import fetch_table, live_start, reply_recorder, reply_taker
from gateway.engine.fetch_table import FetchTable
from gateway.engine.long_poll_waiter import Waiter
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.read import Read
from gateway.engine.relay import Relay, RelayedCall
from gateway.engine.relayed_request import SentRequest
from gateway.engine.response_heads import failure_answer, timed_out
from gateway.engine.route import MEANINGLESS, HeaderRules, Route
from gateway.engine.writes import Writes
from gateway.errors import GatewayError, UpstreamUnavailable
from gateway.live.topics import LiveTopics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.header_forwarding import Headers
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Ground, Partition, SharingRules
from gateway.server import header_meanings
from gateway.server.client_connections import Clients
from gateway.server.header_meanings import Sections
from gateway.server.remembered import RememberedAnswers
from gateway.tape.stream import End, Stream
from gateway.upstream.collapse import Collapse
from gateway.upstream.flight import Flight, FlightReader
from gateway.upstream.origin_call import OriginCall
from gateway.upstream.reply import Reply
from tests.chaos.mutant import Mutant, Patches, always, never, nothing, registrar

LIVES: Final[list[Mutant]] = []
mutant = registrar(LIVES)

NAMELESS: Final[Patches] = [(Stream, "learn_identity", lambda *_: True)]
"""With these a gateway does not see that an origin's tags name another life, as those of real origins do not."""


# -- what is in flight


@mutant("a fetch that a purge or a write has overtaken teaches nothing")
def overtaken_flight_is_laid() -> Patches:
    return [(module, "is_overtaken", never) for module in (reply_taker, fetch_table)] + [
        (reply_recorder, "is_overtaken", never),
        *NAMELESS,
    ]


@mutant("a refusal of before a write ends nothing")
def late_404_is_believed() -> Patches:
    return [(module, "is_outdated", never) for module in (reply_taker, reply_recorder, live_start)]


@mutant("a read joins no fetch that was sent before it came")
def flight_is_joined_after_it_was_sent() -> Patches:
    unsent = Collapse.unsent

    def under_way(self: Collapse[Any, Any], key: Any, client: str) -> Any:
        fetch = self.pending(key)
        if fetch is not None and not getattr(fetch, "base", 0):
            return fetch
        return unsent(self, key, client)

    # Nor does it wait for the earlier one to be over.
    return [(Collapse, "unsent", under_way), (FetchTable, "pending", nothing)]


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
    leave = Flight.detach

    def left(self: Flight, reader: FlightReader) -> None:
        leave(self, reader)
        if not self.is_over and (cancel := self.on_unused) is not None:
            self.give_up()
            cancel()

    return [(Flight, "detach", left)]


# -- credentials


@mutant("nothing fetched with credentials reaches a client with others")
def credentials_share_a_tape() -> Patches:
    def partition(self: Route, *_: Any) -> Partition:
        return self.public

    return [(Route, "partition", partition)]


@mutant("nothing fetched with credentials reaches a client with others")
def remembered_answer_ignores_authorization() -> Patches:
    reset = Sections.reset

    def taken(self: Sections, rules: Iterable[HeaderRules], *more: Any) -> None:
        reset(self, rules, *more)
        self._kinds = [header_meanings._Kind(HeaderRules())] * len(self._kinds)

    return [
        (header_meanings, "MEANINGLESS", (*MEANINGLESS, "authorization")),
        (Sections, "reset", taken),
    ]


# -- answers for one reader alone


@mutant("an answer that varies on a header of its requester is not shared")
def vary_is_ignored() -> Patches:
    return [(SharingRules, "varies", never)]


@mutant("an answer that says private, or sets a cookie, is not shared")
def private_is_shared() -> Patches:
    def why_alone(self: SharingRules, headers: Headers, **_: Any) -> Ground | None:
        return Ground.VARY if self.varies(headers) else None

    return [(SharingRules, "why_alone", why_alone)]


@mutant("an answer to a request without Origin is none for a browser where the origin varies on it")
def absent_allowance_is_taken_for_any() -> Patches:
    return [(SharingRules, "varies_by_origin", never), (Read, "is_origin_met", always)]


@mutant("a long-poll that waits where live answers may not be shared goes on at the origin")
def waiting_long_poll_is_refused() -> Patches:
    def relay(self: Waiter) -> None:
        self._finish(failure_answer(self._waiting.read.route.node, UpstreamUnavailable()))

    return [(Waiter, "_relay", relay)]


@mutant("a long-poll that waits where live answers may not be shared goes on at the origin")
def waiting_long_poll_is_answered_empty() -> Patches:
    def relay(self: Waiter) -> None:
        waiting = self._waiting
        cursor = str(int(waiting.read.cursor or 0) + 10**6)
        self._finish(timed_out(waiting.read, waiting.stream, self.at, False, cursor, Outcome.FOLLOWED))

    return [(Waiter, "_relay", relay)]


# -- lives


_end_group: Final = Writes._end_group


def _end_recreated(self: Writes, write: SentRequest, why: End) -> None:
    if why is not End.DELETED:
        _end_group(self, write, why)
        return
    self._pending.overtake(write.request.group)


@mutant("a DELETE drops the tape")
def delete_purges_nothing() -> Patches:
    return [(Writes, "_end_group", _end_recreated)]


@mutant("a DELETE drops the tapes of all parties")
def delete_purges_only_the_writers_tape() -> Patches:
    def end_group(self: Writes, write: SentRequest, why: End) -> None:
        if write.stream is not None:
            self._live.drop_stream(write.stream, why)

    return [(Writes, "_end_group", end_group)]


@mutant("a DELETE that finds nothing raises doubts: an earlier one may have done it")
def delete_404_raises_no_doubt() -> Patches:
    record = Writes._record

    def recorded(self: Writes, write: SentRequest, reply: Reply) -> None:
        if write.request.mode is Mode.DELETE and reply.status == 404:
            self.missing(write, reply)
        else:
            record(self, write, reply)

    return [(Writes, "_record", recorded)]


@mutant("a write of unknown outcome raises doubts")
def lost_write_raises_no_doubt() -> Patches:
    return [(Stream, "mark_stale", nothing), (Stream, "may_be_another", nothing), *NAMELESS]


@mutant("live readers of a deleted stream are ended at once")
def live_readers_outlive_their_stream() -> Patches:
    return [(LiveTopics, "end_readers", nothing)]


@mutant("TTL and Stream-Expires-At bound a tape's life")
def expiry_is_ignored() -> Patches:
    return [(Stream, "has_expired", never), (LiveTopics, "watch_expiry", nothing)]


@mutant("a 404 is not repeated over a write")
def absence_outlives_a_write() -> Patches:
    return [(NegativeCache, "forget_path", nothing)]


@mutant("a remembered answer ends with its stream")
def remembered_answer_outlives_its_stream() -> Patches:
    return [
        (RememberedAnswers, "forget_stream", nothing),
        (RememberedAnswers, "is_current", lambda _, answer, __: answer.until > -math.inf),
    ]


# -- drains


@mutant("a drain that is undone leaves nothing behind")
def undone_drain_goes_on() -> Patches:
    return [(Clients, "undo_drain", nothing)]


# -- writes


@mutant("a write happens at most once")
def append_is_sent_twice() -> Patches:
    send = Relay.send

    class Nobody:
        sent = answered = failed = staticmethod(nothing)

    def twice(self: Relay, relayed: RelayedCall) -> Any:
        passed = relayed.request
        if passed.mode is Mode.APPEND and isinstance(relayed.body, bytes):
            url, bounds = passed.route.url + passed.group.path, passed.route.bounds
            upstream: Any = self.__dict__["_upstream"]
            upstream.ask(Nobody(), OriginCall(passed.method, url, passed.headers, bounds, relayed.body))
        return send(self, relayed)

    return [(Relay, "send", twice)]
