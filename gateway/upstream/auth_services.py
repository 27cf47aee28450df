"""The gateway's own requests for authorisation.

There are two kinds.  The gateway fetches the key sets of token issuers (`gateway.auth.key_sets`).  It also asks
operators' authorisation services to allow or refuse a client's request (`gateway.auth.forward_auth`).

A client's request that depends on such an answer waits here.  All client requests with the same question share one
request to the service.  When the request to the service has ended, successfully or not, the client requests are
authorised again.

There are bounds on the waiting client requests, in total and per client network.  There are also bounds on the time of
a request to a service, and on the bytes of its reply.  The connections to services are bounded too, separately from the
connections to origins.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.aio.clock import DETACHED, Clock, Timer, wait_until
from gateway.aio.tasks import Tasks
from gateway.aio.timers import Wheel
from gateway.auth.forward_auth import BadVerdict, ForwardRule, ForwardVerdict, Inquiry, read_verdict
from gateway.auth.key_sets import DEFAULT_LIFETIME_S, KeySet
from gateway.auth.questions import Heard, KeySource, Question, Undecided
from gateway.auth.remembered_verdicts import Verdicts
from gateway.auth.rules import Rules, key_sources
from gateway.config.origin_tls import OriginTls
from gateway.errors import GatewayError, UpstreamBroken
from gateway.protocol.freshness_headers import age_from_headers, parse_cache_control, stated_lifetime
from gateway.upstream.client import Exchanges
from gateway.upstream.failures import reason_of
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.slots import SlotLimits

if TYPE_CHECKING:
    from gateway.auth.keys import KeyRing

FETCH_S: Final = 5.0
"""The seconds that a fetch of a key set may take, including discovery."""
MOST_KEY_SET_BYTES: Final = 1 << 18
_MOST_S: Final = 60.0
"""The most seconds that a request to a service may wait for a connection."""
_MOST_UNREAD_BYTES: Final = 1 << 14
"""If the body of a service's answer is longer than this, the connection is closed instead of reused."""
_LEAST_REPORT_S: Final = 10.0
"""The least seconds between two log lines about one service."""
RESULTS: Final = ("allowed", "refused", "undecided")
MOST_WAITING: Final = 4_096
"""The most client requests that wait for authorisation.  One client network may have a quarter of this number."""

_log = logging.getLogger("gateway.auth")


class _Unusable(Exception):
    """The reply of a service cannot be used.  The message is a few words for the operator."""


class _Fetched(NamedTuple):
    ring: KeyRing
    lifetime_s: float


class Service:
    """The state of one operator's service."""

    def __init__(self, rule: ForwardRule) -> None:
        self.rule = rule
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        """The number of the service's answers, by result."""
        self.problem = ""
        """The problem with the service's latest answer; empty if the answer allowed or refused the request."""
        self.answered_at = -math.inf
        """When the service last allowed or refused a request (monotonic seconds)."""
        self.is_reported = False
        """Whether the latest log line about the service reports a problem."""
        self.reported_at = -math.inf


class WaitingRequest:
    """A client request that waits for the answer to a question."""

    __slots__ = ("_asking", "_began", "_services", "heard", "net", "ready")

    def __init__(
        self, services: AuthServices, asking: _Asking, net: str, ready: Callable[[], None], *, began: bool
    ) -> None:
        """`began` states that the question is asked because of this request."""
        self._services = services
        self._asking: _Asking | None = asking
        self.net = net
        self.ready = ready
        self._began = began
        self.heard: Heard | None = None
        """The answer of a service, or the key set that was fetched because of this request."""
        asking.waiting[self] = None

    def leave_queue(self) -> None:
        """Stop waiting, because the client has left."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.waiting.pop(self, None)
            self._services.release(self.net)

    def answered(self) -> None:
        """Have the request authorised again, because its question has been answered or has failed."""
        if self._asking is not None:
            heard = self._asking.heard
            # A fetch of keys that began before the request came may have been too early to find the token's key.
            is_too_early = heard is not None and isinstance(heard.question, KeySource) and not self._began
            self.heard = None if is_too_early else heard
            self.leave_queue()
            self.ready()


class _Asking:
    """A question that is being asked, and the client requests that wait for its answer."""

    __slots__ = ("heard", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[WaitingRequest, None] = {}
        self.heard: Heard | None = None

    def end_question(self) -> None:
        """Have the waiting requests authorised again, each in its own callback of the loop."""
        loop = asyncio.get_running_loop()
        for one in tuple(self.waiting):
            loop.call_soon(one.answered, context=DETACHED.copy())


class AuthServices:
    """Owner of the questions in progress, and of the connections to services.  `close` ends both."""

    def __init__(self, verdicts: Verdicts, clock: Clock, rng: random.Random, most_requests: int = 64) -> None:
        """`most_requests` bounds the concurrent requests to services."""
        self.verdicts = verdicts
        self.key_sets = verdicts.key_sets
        self.clock = clock
        self._rng = rng
        # Reads get three quarters of the connection slots (`gateway.upstream.slots`), so this number of slots leaves
        # room for `most_requests` reads.
        slots = -(-4 * most_requests // 3)
        self._exchanges = Exchanges(SlotLimits(slots, slots, MOST_WAITING, _MOST_S))
        self._tasks = Tasks()
        self.wheel = Wheel(clock)
        """Ends live reads when the permission that a service gave them expires."""
        self._asking: dict[Question, _Asking] = {}
        self._waiting: Counter[str] = Counter()
        """The number of waiting requests, by client network."""
        self._waiting_total = 0
        self._timers: dict[KeySource, Timer] = {}
        """The timer for the next fetch of each key set."""
        self._services: dict[ForwardRule, Service] = {}
        self.undecided: Counter[str] = Counter()
        """The number of client requests answered with a 503, by route."""

    def __repr__(self) -> str:
        return f"<AuthServices {len(self._asking)} questions, {self._waiting_total} waiting>"

    def configure(self, every: Iterable[Rules]) -> None:
        """Fetch the key sets that these rules name, now and periodically.  Stop fetching all other key sets."""
        every = tuple(every)
        self.key_sets.keep_sources(key_sources(every))
        rules = (one for rules in every for one in rules if isinstance(one, ForwardRule))
        self._services = {one: self._services.get(one) or Service(one) for one in rules}
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for one in self.key_sets.look():
            if one.begin_due_fetch():
                self._fetch(one)
            elif not one.is_fetching:
                self._schedule(one)

    def configure_tls(self, tls: Mapping[str, OriginTls]) -> None:
        """Use these TLS settings for new connections.  The keys are `scheme://host:port`."""
        self._exchanges.configure_tls(tls)

    async def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        await self._tasks.close()
        await self._exchanges.close()

    def find_verdict(self, inquiry: Inquiry) -> ForwardVerdict | None:
        """Return the remembered verdict of a service, which allows or refuses the request; None without a valid
        verdict."""
        return self.verdicts.forwarded.find_verdict(inquiry, self.clock.wall())

    def look(self) -> tuple[Service, ...]:
        """Return the services that the rules name."""
        return tuple(self._services.values())

    def await_answer(
        self, question: Question, net: str, ready: Callable[[], None], refused: Callable[[], None] = no_op
    ) -> WaitingRequest:
        """Ask the question unless it is being asked, and call `ready` when the answer has arrived or failed.

        `net` is the network of the client whose request waits.  If the service refuses, `refused` is called for the
        first client request with the question, even if its client has left.  Raises Undecided if too many requests wait
        or the question may not be asked now.
        """
        count = self._waiting[net]
        if self._waiting_total >= MOST_WAITING or count >= MOST_WAITING // 4:
            raise Undecided
        asked = self._asking.get(question)
        asking = asked or self._begin(question, net, refused)
        self._waiting[net] = count + 1
        self._waiting_total += 1
        return WaitingRequest(self, asking, net, ready, began=asked is None)

    def waiting_of(self, net: str) -> int:
        """Return the number of waiting requests of a client network."""
        return self._waiting[net]

    def release(self, net: str) -> None:
        """Subtract a waiting request of this client network from the counts."""
        self._waiting_total -= 1
        self._waiting[net] -= 1
        if not self._waiting[net]:
            del self._waiting[net]

    def _begin(self, question: Question, net: str, refused: Callable[[], None]) -> _Asking:
        """Ask the question.  Raises Undecided if the question may not be asked now."""
        if isinstance(question, Inquiry):
            asking = self._asking[question] = _Asking()
            self._tasks.start(self._inquire_in_time(question, net, refused), f"ask {question.rule.shown_url}")
            return asking
        keys = self.key_sets.find_set(question)
        if keys is None or not keys.begin_fetch():
            raise Undecided
        return self._fetch(keys)

    # -- services

    async def _inquire_in_time(self, inquiry: Inquiry, net: str, refused: Callable[[], None]) -> None:
        rule = inquiry.rule
        asking_it = self._tasks.start(self._inquire(inquiry, net), f"send to {rule.shown_url}")
        found: ForwardVerdict | str = "timed out"
        if await wait_until(asking_it, self.clock, rule.timeout_s):
            found = asking_it.result()
        else:
            asking_it.cancel()
        verdict = None if isinstance(found, str) else found
        if verdict is not None:
            self.verdicts.forwarded.keep_verdict(inquiry, verdict, self.clock.wall())
            if verdict.principal is None and verdict.refused is None:
                refused()
        self._note(rule, verdict, found if isinstance(found, str) else "")
        asking = self._asking.pop(inquiry)
        asking.heard = Heard(inquiry, verdict)
        asking.end_question()

    async def _inquire(self, inquiry: Inquiry, net: str) -> ForwardVerdict | str:
        """Return the service's verdict, or a description of the problem in a few words."""
        rule = inquiry.rule
        headers = CIMultiDict([*inquiry.fields, ("Accept-Encoding", "identity")])
        bounds = Bounds(rule.timeout_s, rule.timeout_s, rule.timeout_s, rule.timeout_s)
        body = b"" if rule.method == "POST" else None
        try:
            async with await self._exchanges.send(
                OriginCall(rule.method, rule.url, headers, bounds, body, client=net)
            ) as reply:
                verdict = read_verdict(inquiry, reply.status, reply.headers, self.clock.wall())
                with suppress(GatewayError):
                    # Read the body so that the connection can be reused.
                    await reply.read(_MOST_UNREAD_BYTES)
                return verdict
        except BadVerdict as error:
            return str(error)
        except GatewayError as error:
            return reason_of(error.__cause__) if error.__cause__ is not None else str(error).lower()
        except Exception:
            _log.exception("unhandled error")
            return "unhandled error"

    def _note(self, rule: ForwardRule, verdict: ForwardVerdict | None, problem: str) -> None:
        """Count an answer, and log when the service begins to fail and when it has recovered."""
        service = self._services.get(rule)
        if service is None:
            return
        now = self.clock.now()
        service.problem = problem
        if verdict is None:
            service.results["undecided"] += 1
        else:
            service.results["refused" if verdict.principal is None else "allowed"] += 1
            service.answered_at = now
        if service.is_reported is not bool(problem) and now - service.reported_at >= _LEAST_REPORT_S:
            service.is_reported, service.reported_at = bool(problem), now
            if problem:
                _log.warning("route %s: %s: %s; its requests get a 503", rule.route, rule.shown_url, problem)
            else:
                _log.warning("route %s: %s decides again", rule.route, rule.shown_url)

    # -- key sets

    def _schedule(self, keys: KeySet) -> None:
        """Set the timer for the next fetch of the key set."""
        source = keys.source
        if self.key_sets.find_set(source) is not keys:
            return
        if (timer := self._timers.pop(source, None)) is not None:
            timer.cancel()
        self._timers[source] = self.clock.call_later(keys.due_at - self.clock.now(), lambda: self._is_due(keys))

    def _is_due(self, keys: KeySet) -> None:
        del self._timers[keys.source]
        if keys.begin_due_fetch():
            self._fetch(keys)

    def _fetch(self, keys: KeySet) -> _Asking:
        asking = self._asking[keys.source] = _Asking()
        self._tasks.start(self._fetch_in_time(keys, asking), f"keys of {keys.source.issuer}")
        return asking

    async def _fetch_in_time(self, keys: KeySet, asking: _Asking) -> None:
        source = keys.source
        fetching = self._tasks.start(self._fetch_keys(source), f"fetch {source.shown_url}")
        found: _Fetched | str = "timed out"
        if await wait_until(fetching, self.clock, FETCH_S):
            found = fetching.result()
        else:
            fetching.cancel()
        was_failing = keys.failed_in_a_row
        if isinstance(found, str):
            keys.fetch_failed(found, self._rng.random())
            if not was_failing:
                then = "its tokens get a 503" if keys.ring is None else "the keys in use stay"
                _log.warning("keys of %s: %s: %s; %s", source.issuer, source.shown_url, found, then)
        else:
            if withdrawn := keys.fetched(found.ring, found.lifetime_s, self._rng.random()):
                # Forget remembered verdicts on tokens, some of which may be signed with a withdrawn key.
                self.verdicts.begin_edition()
                self.verdicts.end_reads_of_keys(source, withdrawn)
            asking.heard = Heard(source)
            if was_failing:
                _log.warning("keys of %s: fetched again from %s", source.issuer, source.shown_url)
        self._schedule(keys)
        if self._asking.get(source) is asking:
            # The check matters if reloads have removed the source and added it again: another fetch of the source is
            # then in progress.
            del self._asking[source]
        asking.end_question()

    async def _fetch_keys(self, source: KeySource) -> _Fetched | str:
        """Return the keys of a source, or a description of the problem in a few words."""
        # Imported here, so that a gateway without such rules does not load the cryptography library.
        from gateway.auth.keys import BadKeys, parse_published_keys

        try:
            url = await self._discover(source) if source.is_discovered else source.url
            text, headers = await self._get(url)
            return _Fetched(parse_published_keys(text), _lifetime(headers))
        except (_Unusable, BadKeys) as error:
            return str(error)
        except GatewayError as error:
            return reason_of(error.__cause__ or error)
        except Exception:
            _log.exception("unhandled error")
            return "unhandled error"

    async def _discover(self, source: KeySource) -> str:
        """Return the URL of an issuer's key set from its metadata.  Raises _Unusable."""
        text, _ = await self._get(source.url)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise _Unusable("its metadata is no JSON") from None
        if not isinstance(found, dict) or found.get("issuer") != source.issuer:
            # OpenID Connect Discovery 1.0 section 4.3.
            raise _Unusable("its metadata is of another issuer")
        url = found.get("jwks_uri")
        schemes = ("https",) if source.url.startswith("https:") else ("https", "http")
        if not isinstance(url, str) or not _is_url(url, schemes):
            raise _Unusable("its metadata names no usable jwks_uri")
        return url

    async def _get(self, url: str) -> tuple[bytes, CIMultiDictProxy[str]]:
        """Send a GET; return the body and the headers of a 200.  Raises _Unusable or a GatewayError."""
        headers = CIMultiDict({"Accept": "application/json, application/jwk-set+json", "Accept-Encoding": "identity"})
        # Use the pool for live requests, where this request does not queue behind many questions to services.
        call = OriginCall("GET", url, headers, Bounds(FETCH_S, FETCH_S, FETCH_S, FETCH_S), is_live=True)
        async with await self._exchanges.send(call) as reply:
            if reply.status != 200:
                raise _Unusable(f"answered {reply.status}")
            try:
                return await reply.read(MOST_KEY_SET_BYTES), reply.headers
            except UpstreamBroken as error:
                if error.__cause__ is None:
                    raise _Unusable(f"answered more than {MOST_KEY_SET_BYTES} bytes") from None
                raise


def _lifetime(headers: CIMultiDictProxy[str]) -> float:
    """Return the seconds for which a key set is fresh, by its HTTP headers."""
    directives = parse_cache_control(", ".join(headers.getall("Cache-Control", ())))
    if not {"no-store", "no-cache", "max-age"} & set(directives):
        return DEFAULT_LIFETIME_S
    if "no-store" in directives:
        return 0.0
    stated_s = stated_lifetime({name: value for name, value in directives.items() if name != "s-maxage"})
    return stated_s - age_from_headers(headers)


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in schemes
        and bool(parts.hostname)
        and not (parts.username or parts.fragment)
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )
