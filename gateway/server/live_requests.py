"""Live requests: the beginning of answers to SSE and long-poll reads.

A live request joins readers that wait for the same answer, or gets an answer of its own.  A late long-poll gets an
answer that other clients have had (`gateway.server.joins`).  If the origin need not be asked, the answer begins at
once.  Otherwise the answer begins when the engine has found the stream's tail (its end).
"""

from __future__ import annotations

from gateway.auth.verdict import Caller
from gateway.engine.answer import Answer
from gateway.engine.core import Engine
from gateway.engine.long_poll_waiter import WaitingPoll
from gateway.engine.read import Read
from gateway.engine.sse import Subscription
from gateway.errors import GatewayError
from gateway.limits.accounts import NO_PARTIES, UNKNOWN
from gateway.protocol.mode import Mode
from gateway.server.authorising import Authoriser
from gateway.server.context import RequestContext, Stage
from gateway.server.cors import named_origin
from gateway.server.guarded_live_reads import MOST_EARLY_S
from gateway.server.header_meanings import Presented, Section
from gateway.server.joins import Join, Joins, LatePolls
from gateway.server.live import Client, LiveAnswers, LiveRequest
from gateway.server.remembered import RememberedAnswer
from gateway.server.request import Channel
from gateway.server.request_admission import Admission
from gateway.server.request_records import Observers
from gateway.telemetry.access_record import CommonFacts

# Module names are faster to look up than enum members, and every live request needs these members.
_SSE, _LIVE = Mode.SSE, Stage.LIVE


class LiveRequests:
    """Begins the answers to live requests.  The engine and `joins` own the state."""

    def __init__(
        self,
        engine: Engine,
        live: LiveAnswers,
        joins: Joins,
        observers: Observers,
        admission: Admission,
        authoriser: Authoriser,
    ) -> None:
        self._engine = engine
        self._others = engine.others
        self._live = live
        self._joins = joins
        self._observers = observers
        self._admission = admission
        self._reads = authoriser.reads
        self._remembered = authoriser.remembered
        self._verdicts = authoriser.verdicts
        self._accounts = admission.accounts
        self._now = engine.clock.now
        self._sse = engine.sse
        self._negative_cache = engine.negative_cache
        self._refusals = engine.negative_cache.groups
        """Streams for which the origin has recently refused a reader.  Usually empty."""

    async def begin_answer(self, context: RequestContext, read: Read) -> Answer | None:
        """Begin a live answer to the request, and return None.  If the answer is not live, return it, so that the
        caller sends it.

        Raises Uncacheable if the read has to be relayed, or another GatewayError.
        """
        if context.mode is _SSE:
            opened = await self._engine.open_sse(read)
            if not isinstance(opened, Subscription):
                return opened
            request = self._request(context, read)
            alias = request.channel.alias
            self._live.subscribe(request, opened)
        else:
            polled = await self._engine.long_poll(read)
            if not isinstance(polled, WaitingPoll):
                return polled
            request = self._request(context, read)
            alias = request.channel.alias
            request.join.group = self._live.wait(request, polled)
        context.stage = _LIVE
        self._remember(alias, request)
        return None

    def begins_at_once(self, context: RequestContext, read: Read) -> bool:
        """Begin a live answer if the origin need not be asked.  Returns whether the answer has begun."""
        request = self._request(context, read)
        # Read the alias (the request's bytes) now.  The answer may be over when `_begins` returns, and the channel (the
        # HTTP/1.1 connection or HTTP/2 stream) then no longer has the alias.
        alias = request.channel.alias
        if not self._begins(request):
            return False
        context.stage = _LIVE
        self._remember(alias, request)
        return True

    def _request(self, context: RequestContext, read: Read) -> LiveRequest:
        request, observed = context.request, context.observed
        record = observed.record if observed is not None else None
        facts = CommonFacts(record.common()) if record is not None else None
        join = Join(read, context.mode, named_origin(read.route.cors, request.headers.get("Origin")), facts)
        join.verdict_key = context.stream or b""
        config, allowed = read.route.config, context.allowed
        join.most_s = config.sse_lifetime_s if context.mode is _SSE else config.long_poll_timeout_s
        return LiveRequest(
            request.channel,
            join,
            context.began,
            observed,
            keeps=request.keeps_alive,
            is_chunked=request.version != "1.0",
            ends_in_s=(
                self._reads.ends_in_s(allowed, join.most_s) if allowed is not None else read.route.ends_live_in_s
            ),
        )

    def _remember(self, alias: bytes | None, request: LiveRequest) -> None:
        join = request.join
        # Do not remember an answer that ends when this client's credential expires, because other clients must not join
        # it.
        if alias is None or request.ends_in_s is not None or not self._engine.is_repeatable(join.read):
            return
        section = self._joins.remember(alias, join, join.read.route.header_rules)
        if section is not None and join.group is not None and join.line is not None:
            join.group.remembered(join.line, section)

    def join(self, channel: Channel, join: Join, section: Section, presented: Presented | None = None) -> bool:
        """Begin a live answer to a GET that was not parsed.

        `join` is the remembered equal request, and `section` is the header section of this request.  `presented` has
        this request's line and credentials if they differ from the remembered request's.

        Returns False, without any effect, if the request has to be parsed.
        """
        admission, observers, read = self._admission, self._observers, join.read
        if self._others is not None:
            self._others.look(read.key.group)
        # The origin has recently refused a reader of the stream.  This client may be that reader, so the origin has to
        # decide.
        if (self._refusals and self._negative_cache.has_any(read.key)) or (
            observers.is_traced and observers.tracer.chooses(section.text)
        ):
            return False
        allowed, parties, line, key = None, NO_PARTIES, None, join.verdict_key
        if presented is not None:
            _, line, key, allowed = presented
        if read.route.guard is not None:
            # This repeats the code of `Verdicts.holds` and `GuardedReads.ends_in_s`, because every authorised live read
            # passes here, and calls cost time.
            verdicts = self._verdicts
            if allowed is None:
                allowed = section.allowed.get(key)
            if allowed is None or allowed.edition != verdicts.edition:
                return False
            if (scheme := allowed.scheme) is not None:
                own, behind = channel.scheme, channel.proxies
                if scheme != (own if behind is None else section.client_scheme(behind, channel.client, own)):
                    return False
            # The verdict must outlast the longest possible read, unless it is renewed during the read.
            if allowed.until - verdicts.wall() <= (join.most_s + MOST_EARLY_S if allowed.renewal is None else 0):
                return False
            if (renewing := allowed.renewing) is not None and renewing.verdict is not None:
                # Use the renewal's verdict, because the service may have named another principal since this verdict was
                # remembered.
                allowed = renewing.verdict
            parties = allowed.parties
        account, address, proxies = channel.use, channel.client, channel.proxies
        if proxies is not None:
            address = section.client_address(proxies, address)
        if account is None:
            account = self._accounts.open_account(self._accounts.net_of(address))
        route = read.route.name
        # Count the request before it joins, because its answer may be sent within the join.
        if not admission.begin_join(channel, account, route, parties):
            return False
        began = self._now()
        who: str | Caller | None = address
        if allowed is not None:
            channel.live_began = began
            if allowed.renewal is not None and (renewing is None or renewing is not channel.renewing):
                renewing = renewing or self._reads.make_renewal(allowed)
                renewing.stay(channel, allowed, account.net if account is not None else UNKNOWN)
            else:
                channel.verdict = allowed
            if join.facts is not None:
                who = allowed.caller(address)
        if join.mode is _SSE:
            has_joined = self._reopens(channel, join, began, (who, section))
        else:
            has_joined = (group := join.group) is not None and group.join(channel, (began, who, section, line))
        if not has_joined and not self._must_parse(join, section):
            has_joined = self._begins(LiveRequest(channel, join, began, client=(who, section), line=line))
        if has_joined:
            if admission.rates.limits:
                admission.joined(account, route, parties)
            return True
        channel.end_live_use(has_begun=False)
        return False

    def _must_parse(self, join: Join, section: Section) -> bool:
        """Return whether a late long-poll (one whose bytes are in memory) has to be parsed, so that its answer is
        remembered for other clients."""
        if join.mode is _SSE or (version := self._engine.version_if_late(join.read)) is None:
            return False
        origin = section.origin if join.origin is not None else None
        if join.late is None or join.late.version is not version:
            join.late = LatePolls(version, set())
        elif origin in join.late.parsed:
            # Another late long-poll has been parsed already, but its answer could not be remembered.
            return False
        join.late.parsed.add(origin)
        return True

    def answer_late(self, read: Read, alias: bytes | None) -> Answer | None:
        """Return the answer to a late long-poll if other clients have sent the same request; otherwise return None.
        `alias` has the request's bytes.  The caller must call `Answer.close`."""
        known = self._joins.find(alias) if alias is not None else None
        if isinstance(known, Join):
            return self._engine.answer_late_poll(read) if known.late is not None else None
        if not isinstance(known, RememberedAnswer):
            return None
        # The answer is out of date, or no verdict on this client is kept.
        answer = self._engine.answer_late_poll(read)
        if answer is None and self._remembered is not None:
            # This request will become a join, which takes the place of the remembered answer.
            self._remembered.forget(known)
        return answer

    def _reopens(self, channel: Channel, join: Join, began: float, client: Client) -> bool:
        """Answer an SSE request in the same way as the latest equal request.  Returns False if the earlier readers can
        no longer be joined.
        """
        if (opening := join.sse_opening) is None:
            return False
        subscriber = self._sse.reopen(join.read, opening, channel, began)
        if subscriber is None:
            join.sse_opening = None
            return False
        self._live.reopen(channel, join, opening, subscriber, began, client)
        return True

    def _begins(self, request: LiveRequest) -> bool:
        """Begin a live answer if the origin need not be asked.  Returns whether the answer has begun."""
        join = request.join
        if join.mode is not _SSE:
            waiting = self._engine.wait_at_once(join.read)
            if waiting is not None:
                join.group = self._live.wait(request, waiting)
            return waiting is not None
        subscription = self._engine.subscribe_at_once(join.read)
        if subscription is None:
            return False
        try:
            self._live.subscribe(request, subscription)
        except GatewayError:
            return False
        return True
