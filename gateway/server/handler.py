"""The request handler, which answers every request that has no remembered answer.

The handler lets `gateway.server.interpreting` interpret the request, calls the engine and delivers the answer.
Writes, and reads whose answers must not be shared, go to a relay.  `ResponseRecorder.refuse` turns each `GatewayError`
into a response, also in relays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from multidict import CIMultiDict

from gateway.auth.guard import Guard
from gateway.auth.remembered_verdicts import parties_of
from gateway.auth.verdict import Concealed
from gateway.config.gateway import GatewayConfig
from gateway.engine.answer import Answer, BodyRun
from gateway.engine.cold_reads import FirstRead
from gateway.engine.core import Engine
from gateway.engine.hit_for_miss import HEAD
from gateway.engine.live_start import TOO_LARGE
from gateway.engine.passed_read import PassedRead
from gateway.engine.read import Read, Uncacheable
from gateway.engine.route import Route
from gateway.engine.s2.request import S2Request
from gateway.engine.s2.unary_read import S2RefusedToAnother
from gateway.errors import (
    BadRequest,
    GatewayError,
    TooManyRequests,
)
from gateway.protocol.cache_status import Outcome, cache_status
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Ground
from gateway.protocol.target import BadTarget
from gateway.server import cors
from gateway.server.authorising import WELL_KNOWN, Authoriser, metadata
from gateway.server.concealing import absence_times_of, conceal_absence, refuse_concealed
from gateway.server.context import RequestContext, ResponseRecorder, Stage, learn_hit
from gateway.server.delivery import Delivery
from gateway.server.handling import INTERNAL_ERROR, DeferredRequest, UndecidedRequest, WaitingPassedRead, WaitingRead
from gateway.server.interpreting import LIVE, RequestInterpreter, RequestMeaning
from gateway.server.joins import Joins
from gateway.server.live import LiveAnswers
from gateway.server.live_requests import LiveRequests
from gateway.server.poll_group import Rendering
from gateway.server.relayed_messages import pass_on
from gateway.server.relaying import Relays
from gateway.server.remembered import Repeatable
from gateway.server.request import Answered, Request, Work
from gateway.server.request_admission import Admission
from gateway.server.request_records import Observed, Observers
from gateway.server.s2 import S2Answers
from gateway.telemetry.access_record import CloseReason, note_close_reason, note_principal, note_request

# Module names are faster to look up than enum members, and every request needs these members.
_CATCHUP, _HEAD, _LONGPOLL, _SSE = Mode.CATCHUP, Mode.HEAD, Mode.LONGPOLL, Mode.SSE
_HANDLED, _LIVE = Stage.HANDLED, Stage.LIVE
_ABORTED, _FAILED, _HIT, _REFUSED = Outcome.ABORTED, Outcome.FAILED, Outcome.HIT, Outcome.REFUSED


class RequestHandler:
    """Answers requests.  The engine owns the state of streams, and the handler has no state."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: Engine,
        routes: Sequence[Route],
        observers: Observers,
        joins: Joins,
        admission: Admission,
        authoriser: Authoriser,
    ) -> None:
        node, now, metrics = config.server.node_name, engine.clock.now, engine.surroundings.metrics
        self._node = node
        self._admission = admission
        self._authoriser = authoriser
        self._engine = engine
        self._others = engine.others
        self._now = now
        self._is_guarded = any(route.guard is not None for route in routes)
        self._interpreter = RequestInterpreter(node, routes, admission.accounts.net_of)
        self._metrics = metrics
        self._observers = observers
        self._recorder = recorder = ResponseRecorder(node, metrics, now, admission, observers)
        self._relays = Relays(recorder, engine, observers.access_log, config.limits, authoriser.reads)
        rendering = Rendering(node, recorder.dress, engine.clock, engine.drain, metrics, observers.access_log)
        live = LiveAnswers(rendering, observers.access_log)
        self.live_requests = LiveRequests(engine, live, joins, observers, admission, authoriser)
        self._s2 = S2Answers(engine.s2, recorder, live)

    def handle(self, request: Request) -> Work | None:
        """Answer a request as far as possible without waiting.

        Returns the work that is left and needs a task.  Returns None if the answer has been sent or needs no task.
        """
        observers, now = self._observers, self._engine.clock.now
        began, observed = now(), observers.request_arrived(request) if observers.is_on else None
        if self._is_guarded and observed is not None and (record := observed.record) is not None:
            # Until the request is parsed, record its target without the query, which may hold a signature or a token.
            record.stream = (record.stream or "").partition("?")[0]
        context = RequestContext(request, Delivery(request, self._metrics, now), began, observed)
        return self._recorded(context) if observed is None else self._observed(context, observed)

    def _observed(
        self, context: RequestContext, observed: Observed, waiting: DeferredRequest | None = None
    ) -> Work | None:
        tokens = observed.enter()
        try:
            return self._recorded(context, waiting)
        finally:
            observed.exit(tokens)

    def _recorded(self, context: RequestContext, waiting: DeferredRequest | None = None) -> Work | None:
        """Begin the answer to a request, or resume a request that waited.  Record the end if the whole answer was
        sent."""
        try:
            found = self._begin(context) if waiting is None else self._resume(context, waiting)
        except Exception:
            self._give_up(context, _FAILED)
            raise
        if isinstance(found, Answered):
            self._recorder.record_end(context, found)
            return None
        return self._finish_in_task(context, found) if found is not None else None

    async def _finish_in_task(self, context: RequestContext, rest: Work) -> None:
        """Do the remaining work in a new task."""
        if context.observed is not None:
            context.observed.enter()
        try:
            try:
                answered = await rest
            except GatewayError as error:
                answered = self._recorder.refuse(context, error)
        except (asyncio.CancelledError, ConnectionError):
            self._give_up(context, _ABORTED)
            raise
        except Exception:
            self._give_up(context, _FAILED)
            raise
        if answered is not None:
            self._recorder.record_end(context, answered)

    def _give_up(self, context: RequestContext, outcome: Outcome) -> None:
        """Record that the handler has failed to answer.  Afterwards, the channel (the HTTP/1.1 connection or HTTP/2
        stream) answers with a 500, or is aborted."""
        if context.stage is _HANDLED:
            context.outcome, request = outcome, context.request
            if outcome is _FAILED and not request.has_begun and request.method != "HEAD":
                context.delivery.count_sent(len(INTERNAL_ERROR))
            self._recorder.record_end(context, None)

    def _begin(self, context: RequestContext, undecided: UndecidedRequest | None = None) -> Answered | Work | None:
        """Begin the answer.  Return the answer's head if the answer has been sent.  Return the remaining work if it
        needs a task.  Return None if the answer needs no task.

        `undecided` is the request's earlier state if the request had to wait for its authorisation.
        """
        try:
            request = context.request
            if undecided is not None:
                context.undecided_s = self._now() - context.began
            if self._is_guarded and request.target.startswith(WELL_KNOWN):
                found = metadata(self._interpreter.routes, request)
                if found is not None:
                    context.outcome = _HIT
                    return context.delivery.text(200, *found)
            meaning = self._interpreter.interpret(context) if undecided is None else undecided.meaning
            if request.method == "OPTIONS" and (preflight := self._preflight(context, meaning.route)) is not None:
                return preflight
            if (guard := meaning.route.guard) is not None:
                if context.observed is not None and context.observed.record is not None:
                    note_request(context.mode, meaning.recorded, meaning.start)
                try:
                    if not self._authoriser.authorise(context, meaning, guard, self, undecided):
                        return None
                except Concealed as error:
                    if error.principal is not None:
                        context.parties = parties_of(error.principal)
                    return self._conceal(context, meaning, guard)
                if context.allowed is not None:
                    context.parties = context.allowed.parties
                    if context.observed is not None:
                        note_principal(context.allowed.caller(request.client))
            if context.mode in LIVE or self._admission.rates.limits:
                self._admit(context, meaning)
            if context.allowed is not None:
                context.usage = context.allowed.usage
            if context.observed is not None and context.observed.record is not None:
                note_request(context.mode, meaning.recorded, meaning.start)
            if self._others is not None:
                if meaning.s2 is not None:
                    self._others.look_at_s2(meaning.s2.read.key.group)
                self._others.look(meaning.key.group)
            if meaning.s2 is not None:
                return self._answer_s2(context, meaning, meaning.s2)
            read = meaning.read
            if read is not None and request.is_alone:
                context.why_alone = self._why_alone(read)
            elif read is not None:
                if context.mode is _LONGPOLL:
                    late = self.live_requests.answer_late(read, request.channel.alias)
                    if late is not None:
                        note_close_reason(CloseReason.ANSWERED)
                        return self._begin_delivery(context, read, late)
                if context.mode in LIVE and self.live_requests.begins_at_once(context, read):
                    return None
                if context.mode is _CATCHUP and self._waits(context, meaning, read):
                    return None
                if context.mode is not _HEAD or self._engine.knows(read):
                    return self._answer_shared(context, meaning, read)
            if request.body is not None and not request.body.is_whole:
                return self._relays.until_begun(context, meaning)
            self._relays.relay_request(context, meaning)
            return None
        except BadTarget as error:
            return self._recorder.refuse(context, BadRequest(str(error)))
        except GatewayError as error:
            return self._recorder.refuse(context, error)

    def _waits(self, context: RequestContext, meaning: RequestMeaning, read: Read) -> bool:
        """Wait, without a task, for the fetch of a first read, or for the answer of the stream's owner (another
        worker).  Returns False if the read is not a first read."""
        if (first := self._engine.begin_catch_up(read)) is None:
            return False
        waiting: DeferredRequest
        if isinstance(first, PassedRead):
            waiting = WaitingPassedRead(context, meaning, self, first)
        else:
            waiting = WaitingRead(context, meaning, self, read, first, self._engine.store)
        context.request.channel.hand_over(waiting)
        first.wait(waiting.ready)
        return True

    def _conceal(self, context: RequestContext, meaning: RequestMeaning, guard: Guard) -> Work:
        """Answer a forbidden request in the same way as a request for a missing stream."""
        assert guard.absence_times is not None
        if context.mode in LIVE or self._admission.rates.limits:
            self._admit(context, meaning)
        return refuse_concealed(self._engine, self._relays.limits, guard.absence_times, context, meaning)

    def _admit(self, context: RequestContext, meaning: RequestMeaning) -> None:
        """Count the request against its client's limits.  Raises TooManyRequests."""
        is_live, admission = context.mode in LIVE, self._admission
        if context.request.is_alone:
            # Do not count the request again: it was counted before it waited for a shared answer.
            context.client = meaning.client
            return
        context.client = meaning.client
        try:
            context.fields = admission.admit_request(
                context.request.channel,
                admission.accounts.open_account(meaning.client),
                meaning.route.name,
                context.parties,
                is_live=is_live,
            )
        except TooManyRequests as error:
            context.fields = error.fields
            raise
        if is_live and context.allowed is not None:
            self._authoriser.reads.guard_read(context.request.channel, context.allowed, meaning.client, context.began)

    def _preflight(self, context: RequestContext, route: Route) -> Answered | None:
        request = context.request
        if route.cors is None:
            return None
        origin = request.headers.get("Origin")
        wanted = request.headers.get("Access-Control-Request-Method")
        if not cors.is_preflight(request.method, origin, wanted):
            return None
        answer = cors.preflight_headers(
            route.cors,
            origin,
            wanted,
            request.headers.get("Access-Control-Request-Headers"),
            is_s2=route.is_s2,
        )
        context.outcome = _HIT if answer is not None else _REFUSED
        headers = CIMultiDict(answer or {"Vary": "Origin"})
        headers["Cache-Status"] = cache_status(self._node, context.outcome)
        return context.delivery.text(204 if answer is not None else 403, headers, b"")

    # -- reads

    async def _answer_shared(
        self, context: RequestContext, meaning: RequestMeaning, read: Read, first: FirstRead | None = None
    ) -> Answered | None:
        """Answer a read whose answer may be shared.  Relay the read if the origin has to answer it separately.  `first`
        is the fetch that the read has begun; None without a fetch.
        """
        if context.mode is _HEAD:
            answer = await self._engine.head(read)
            if answer is not None:
                return await self._deliver(context, read, answer)
            context.why_alone = read.route.unshared.reason(read.key, HEAD)
        elif first is None and (why := read.route.unshared.reason(read.key, read.shape)) is not None:
            context.why_alone = why
        else:
            try:
                if context.mode is _CATCHUP:
                    return await self._deliver(context, read, await self._engine.catch_up(read, first))
                answer = await self.live_requests.begin_answer(context, read)
                return await self._deliver(context, read, answer) if answer is not None else None
            except Uncacheable as error:
                context.why_alone = error.why.reason
                context.is_replay = context.mode is _SSE and error.why is TOO_LARGE
        await self._relays.until_begun(context, meaning)
        return None

    @staticmethod
    def _why_alone(read: Read) -> str | None:
        """Return the reason why a live read is relayed after it has waited for a shared answer."""
        return read.route.unshared.reason(read.key, read.shape) or (
            Ground.ORIGIN if read.web_origin is not None else None
        )

    def _answer_s2(self, context: RequestContext, meaning: RequestMeaning, request: S2Request) -> Answered | Work:
        answered = self._s2.answer_read(context, meaning.route, request)
        return answered if isinstance(answered, Answered) else self._await_or_relay(context, meaning, answered)

    async def _await_or_relay(self, context: RequestContext, meaning: RequestMeaning, work: Work) -> Answered | None:
        """Await the work that is left of a shared answer.  Relay the read if the origin has refused the same request of
        another reader.
        """
        try:
            return await work
        except S2RefusedToAnother:
            await self._relays.until_begun(context, meaning)
            return None

    def go_on(self, waiting: DeferredRequest) -> Work | None:
        """Resume a request that waited, and answer it as far as possible without waiting.  Returns the work that is
        left."""
        context = waiting.context
        observed = context.observed
        return self._recorded(context, waiting) if observed is None else self._observed(context, observed, waiting)

    def _resume(self, context: RequestContext, waiting: DeferredRequest) -> Answered | Work | None:
        # Test for `WaitingRead`, the most frequent class, first.  isinstance is fast for an exact match, and slow for
        # an abstract class.
        if not isinstance(waiting, WaitingRead):
            if isinstance(waiting, WaitingPassedRead):
                return self._pass_on(context, waiting.meaning, waiting.passed)
            assert isinstance(waiting, UndecidedRequest)
            return self._begin(context, waiting)
        read, first = waiting.read, waiting.first
        try:
            answer = self._engine.caught_up(read, first)
            if answer is None:
                return self._answer_shared(context, waiting.meaning, read, first)
            if not isinstance(answer, Answer):
                return self._deliver_coded(context, read, answer)
            return self._begin_delivery(context, read, answer)
        except GatewayError as error:
            return self._recorder.refuse(context, error)

    def _pass_on(self, context: RequestContext, meaning: RequestMeaning, passed: PassedRead) -> Answered | Work | None:
        """Pass the answer of the stream's owner on to the client."""
        try:
            try:
                reply = passed.take_reply()
            except Uncacheable as error:
                passed.read.remember_unshared(error.why)
                context.why_alone = error.why.reason
                self._relays.relay_request(context, meaning)
                return None
            if reply is None:
                return self._answer_shared(context, meaning, passed.read)
            if reply.status == 404:
                self._engine.negative_cache.count(meaning.route, meaning.client)
            return pass_on(self._recorder, context, reply)
        except GatewayError as error:
            return self._recorder.refuse(context, error)

    async def _deliver_coded(
        self, context: RequestContext, read: Read, answer: Coroutine[Any, Any, Answer]
    ) -> Answered | None:
        return await self._deliver(context, read, await answer)

    def abandon(self, context: RequestContext) -> None:
        """Record that the client left while its request waited."""
        self._give_up(context, _ABORTED)

    async def _deliver(self, context: RequestContext, read: Read, answer: Answer) -> Answered | None:
        begun = self._begin_delivery(context, read, answer)
        return begun if isinstance(begun, Answered) else await begun

    def _begin_delivery(self, context: RequestContext, read: Read, answer: Answer) -> Answered | Work:
        """Send and close the answer if neither step has to wait.  Otherwise return the work that sends and closes the
        answer.
        """
        context.outcome, context.saved_bytes = answer.outcome, answer.saved_bytes
        if read.route.guard is not None and (absence_times := absence_times_of(context)) is not None:
            is_from_origin = answer.outcome is not _HIT
            if answer.status == 404:
                answer.close()
                return conceal_absence(self._recorder, context, absence_times, is_from_origin=is_from_origin)
            if is_from_origin and context.mode not in LIVE:
                absence_times.note(context.mode, self._now() - context.began - context.undecided_s, is_absent=False)
        answered: Answered | None = None
        try:
            self._recorder.finish(context, answer.headers)
            if answer.stream is not None and answer.run is not None and self._engine.is_repeatable(read):
                self._remember_hit(context, read, answer, answer.run)
            answered = context.delivery.whole_answer(answer)
        except BaseException:
            answer.close()
            raise
        if answered is None:
            return self._deliver_rest(context, answer)
        answer.close()
        return answered

    @staticmethod
    async def _deliver_rest(context: RequestContext, answer: Answer) -> Answered | None:
        try:
            return await context.delivery.send_answer(answer)
        finally:
            answer.close()

    def _remember_hit(self, context: RequestContext, read: Read, answer: Answer, run: BodyRun) -> None:
        """Remember the answer if its body is held in memory."""
        parts = answer.parts
        body = parts.held(answer.is_json) if parts is not None else [answer.body] if answer.body else []
        if body is not None:
            copied, shared = (parts.copied, parts.shared) if parts is not None else (0, None)
            repeatable = Repeatable(
                run, answer.outcome, answer.status, answer.headers, body, answer.saved_bytes, copied, shared
            )
            learn_hit(context, read.route, repeatable, read.route.trust_s, answer.tail)
