"""Authorisation of each request on a route with rules (`[[route.auth]]`).

The request parser takes the credentials out of the query, so that they reach neither the cache's keys, nor the log, nor
the origin.  The request handler then lets the route's guard decide whether the request is allowed.  This decision is
called a verdict.

The credential is usually in the header section, so verdicts on reads are kept with the section, one for each stream.
Later reads of the stream with the same section need only a look-up.  If the request line holds a credential or a host,
which the section does not show, the verdict is kept under the request line instead.

A live read is registered while it lasts.  The read ends when its credential expires or is revoked.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Collection, Mapping
from typing import Final
from urllib.parse import quote, unquote_plus

from multidict import CIMultiDict

from gateway.aio.timers import NEVER
from gateway.auth.asked import Asked
from gateway.auth.guard import Guard
from gateway.auth.permissions import Action
from gateway.auth.questions import Question, Undecided
from gateway.auth.verdict import PUBLIC, AuthRefused, Concealed, Forbidden
from gateway.auth.verdicts import Allowed, Verdicts
from gateway.config.routes import RouteConfig
from gateway.engine.route import Route
from gateway.errors import TooManyRequests
from gateway.limits.accounts import Account
from gateway.limits.rate_limits import Rate, retry_after_s
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_CLOSED, STREAM_FORKED_FROM, is_true
from gateway.protocol.target import BadTarget, parse_target
from gateway.server import cors
from gateway.server.admission import Admission
from gateway.server.context import RequestContext
from gateway.server.deferred import Answerer, UndecidedRequest
from gateway.server.joins import Join
from gateway.server.parsing import ParsedRequest
from gateway.server.remembered import RememberedAnswers
from gateway.server.request import Channel, LiveUse, Request
from gateway.server.request_keys import NamedStream, Section, Sections
from gateway.server.resource_metadata import metadata_url, names_metadata
from gateway.server.verdict_renewal import VerdictRenewal
from gateway.telemetry.audit import AUDIT, RefusalLines, shortened
from gateway.upstream.auth_services import AuthServices

_BAD_PER_S: Final = 5.0
BAD_AT_ONCE: Final = 50
"""Bad credentials that one client network may present: a burst of `BAD_AT_ONCE`, then `_BAD_PER_S` a second."""
_MOST_EARLY: Final = 0.1
_MOST_EARLY_S: Final = 5.0
"""A live read ends at a random moment shortly before its credential expires, so that readers do not all return at once.
It ends early by at most this fraction of the time left, and by at most this many seconds.
"""
SPREAD_S: Final = 5.0
"""Seconds over which live reads end because of a reload or a withdrawn key, so that readers return one by one."""
_RESERVED: Final = "/__ds/"
_OF_THE_ORIGIN: Final = {
    "GET": re.compile(r"jwks\.json"),
    "POST": re.compile(r"subscriptions/[^/%\\]+/(?:callback|ack|release)"),
}
"""By method, the calls below the protocol's reserved path (`_RESERVED`) that only the origin authorises.  Calls for
subscriptions carry a token of the origin in Authorization.  The other calls fetch the origin's public keys.
"""
_OVERRIDES: Final = frozenset({"x-http-method-override", "x-http-method", "x-method-override"})
"""Headers with which some frameworks replace a request's method."""
_FIELD_SAFE: Final = "!#$&'()*+,/:;=?@[]|^`{}~ "
_ACTIONS: Final = {
    Mode.CATCHUP: Action.READ,
    Mode.LONGPOLL: Action.READ,
    Mode.SSE: Action.READ,
    Mode.HEAD: Action.READ,
    Mode.CREATE: Action.CREATE,
    Mode.APPEND: Action.APPEND,
    Mode.DELETE: Action.DELETE,
}
_CHANGES: Final = frozenset({Mode.CREATE, Mode.APPEND, Mode.DELETE})


def without_credentials(raw_query: str, parameters: Mapping[str, str]) -> str:
    """Return the query as sent, without these parameters."""
    pairs = raw_query.split("&")
    return "&".join(pair for pair in pairs if unquote_plus(pair.partition("=")[0]) not in parameters)


class Authoriser:
    """Authorises requests, and remembers verdicts.  `verdicts` has the register of live reads on routes with rules."""

    def __init__(
        self,
        verdicts: Verdicts,
        sections: Sections,
        remembered: RememberedAnswers | None,
        admission: Admission,
        rng: random.Random,
        services: AuthServices,
        masked: Callable[[str | None], str],
    ) -> None:
        self.verdicts = verdicts
        self.services = services
        self._masked = masked
        """Returns a client's address in the form that logs may show."""
        self._refusals = RefusalLines(AUDIT, admission.now)
        self._sections = sections
        self._remembered = remembered
        self._admission = admission
        self.now = admission.now
        """Monotonic seconds."""
        self._rng = rng
        self._bad = Rate(_BAD_PER_S, BAD_AT_ONCE)

    def authorise(
        self,
        context: RequestContext,
        parsed: ParsedRequest,
        guard: Guard,
        answerer: Answerer,
        waited: UndecidedRequest | None = None,
    ) -> bool:
        """Authorise the request.  Returns False if the verdict has to wait for a key set or a service.

        In that case, `answerer` later resumes the request and calls `authorise` again, with the waiting request as
        `waited`.  No request waits twice.  Raises a GatewayError if the request is refused.
        """
        request = context.request
        if is_of_the_origin(request.method, parsed.target.path):
            return True
        if is_preflight(request, guard):
            # Browsers send a preflight without credentials (Fetch standard, section 4.8).  On this route the origin
            # answers preflights.
            context.allowed = self.verdicts.allow(PUBLIC)
            return True
        asked = self._asked(request, parsed, with_headers=guard.asks_services)
        account = self._account(parsed.client)
        context.is_public = asked.is_read and guard.is_public(asked.path)
        heard = waited.waiting.heard if waited is not None and waited.waiting is not None else None

        def count_bad() -> None:
            self._count_bad(account)

        try:
            try:
                context.allowed = guard.judge(asked, lambda: self._check_rate(account), count_bad, heard)
            except Undecided as error:
                if error.question is None or waited is not None:
                    raise
                self._wait_for_answer(UndecidedRequest(context, parsed, answerer), error.question, count_bad)
                return False
        except Undecided:
            self.services.undecided[parsed.route.name] += 1
            raise
        except AuthRefused as error:
            self._note_refusal(request, parsed, error)
            if error.challenge is not None and names_metadata(guard):
                error.challenge += f', resource_metadata="{metadata_url(request, asked.path)}"'
            raise
        alias, allowed, stream = request.channel.alias, context.allowed, _named_stream(parsed)
        context.stream = self._sections.shared_name(stream) if stream is not None else None
        # The verdict may depend on the client's network or on the scheme, which the request's bytes do not show.
        if allowed.renewal is not None:
            allowed.scheme = request.channel.scheme
        if alias is not None and not _depends_on_client(allowed) and self.verdicts.holds(allowed):
            self._remember(alias, context.stream, allowed)
        return True

    def _wait_for_answer(self, waiting: UndecidedRequest, question: Question, refused: Callable[[], None]) -> None:
        """Let the request wait for the answer to a question."""
        waiting.waiting = self.services.await_answer(question, waiting.parsed.client, waiting.ready, refused)
        waiting.context.request.channel.hand_over(waiting)

    def _remember(self, alias: bytes, stream: NamedStream | None, allowed: Allowed) -> None:
        """Remember the verdict for reads of the stream with this header section.  Without a stream, remember the
        verdict for the same request line.
        """
        if self._remembered is not None and (exact := self._remembered.exact.get(alias)) is not None:
            # A remembered answer for the same bytes refers to a section object.  If `Sections` has evicted this object
            # since, `split` returns another object for the same section.  Store the verdict in both.
            self._sections.allow(exact[1], stream or alias[: alias.find(b"\r\n")], allowed)
        if (split := self._sections.split(alias)) is not None:
            self._sections.allow(split[1], stream or split[0], allowed)

    def allowed_for(self, section: Section, join: Join, channel: Channel) -> Allowed | None:
        """Return the verdict on a live read whose section was recognised without parsing.

        Returns None if the handler has to decide.

        The returned verdict outlasts the longest possible read, or is renewed during the read.
        """
        # This repeats the code of `Verdicts.holds` and `ends_in_s`, because every authorised live read passes here, and
        # calls cost time.
        allowed, verdicts = section.allowed.get(join.verdict_key), self.verdicts
        if allowed is None or allowed.edition != verdicts.edition:
            return None
        if allowed.scheme is not None and allowed.scheme != channel.scheme:
            return None
        left_s = allowed.until - verdicts.wall()
        return allowed if left_s > (join.most_s + _MOST_EARLY_S if allowed.renewal is None else 0) else None

    def ends_in_s(self, allowed: Allowed, most_s: float) -> float | None:
        """Return the seconds until a live read has to end because its credential expires.  None if the read ends
        earlier, after `most_s`.
        """
        if allowed.renewal is not None:
            return None
        left_s = allowed.until - self.verdicts.wall()
        if left_s > most_s + _MOST_EARLY_S:
            return None
        return max(0.0, left_s - self._rng.uniform(0, min(_MOST_EARLY * left_s, _MOST_EARLY_S)))

    def register(self, channel: Channel, allowed: Allowed, net: str, began: float) -> None:
        """Register an admitted live read of this client network, whose request was read at `began`."""
        channel.live_bytes = 0
        channel.live_use = use = GuardedUse(channel, allowed, self, began)
        if allowed.renewal is not None:
            use.renewing = VerdictRenewal(use, allowed.renewal, net, self.services, self._rng)

    @staticmethod
    def withdraw(channel: Channel) -> None:
        """Undo `register` for a live read that has not begun.  Its request is then handled like any other."""
        if isinstance(channel.live_use, GuardedUse):
            channel.live_use.has_begun = False
        channel.end_live_use()

    def end_at_expiry(self) -> None:
        """Make every registered live read end at its credential's expiry.

        Must be called when a drain (the orderly end of all connections) is cancelled.  All live reads then get new
        lifetimes, which may outlast their credentials.
        """
        for one in self.verdicts.live:
            if isinstance(one, GuardedUse):
                one.end_at_expiry()

    def end_within(self, use: GuardedUse, spread_s: float) -> int:
        """End a live read at its credential's expiry, or at a random earlier moment within `spread_s`.  Returns the
        time of the end, as a tick of the timer wheel of `services`.
        """
        left_s = use.allowed.until - self.verdicts.wall() if use.renewing is None else math.inf
        delay_s = self._rng.uniform(0, spread_s) if spread_s < math.inf else spread_s
        return self.services.wheel.add(use, max(0.0, min(delay_s, left_s)))

    def _note_refusal(self, request: Request, parsed: ParsedRequest, error: AuthRefused) -> None:
        """Write an audit line about a refused request, at a bounded rate."""
        if not self._refusals.has_room():
            return
        principal, status = error.principal, error.status
        AUDIT.warning(
            "%s %s by %s on route %s: %d: %s%s",
            shortened(request.method),
            shortened(parsed.target.path),
            self._masked(request.client) or "-",
            parsed.route.name,
            status,
            "The credential does not allow this" if isinstance(error, Concealed) else error,
            f" ({shortened(principal.name)} of {principal.issuer or 'a signature'})" if principal is not None else "",
        )

    def _account(self, net: str) -> Account | None:
        accounts = self._admission.accounts
        return accounts.open_account(net)

    def _check_rate(self, account: Account | None) -> None:
        now = self._admission.now()
        if account is not None and not self._bad.has_one(account, now):
            wait_s = self._bad.wait_s(account, now)
            raise TooManyRequests(retry_after_s(wait_s, self._rng), "Too many bad credentials")

    def _count_bad(self, account: Account | None) -> None:
        if account is not None:
            self._bad.take_one(account, self._admission.now())

    @staticmethod
    def _asked(request: Request, parsed: ParsedRequest, *, with_headers: bool) -> Asked:
        headers, target, route = request.headers, parsed.target, parsed.route
        forked = headers.getall(STREAM_FORKED_FROM, ()) if parsed.mode is Mode.CREATE else ()
        asked = Asked(
            target.path,
            _actions(request, parsed, is_fork=bool(forked)),
            _forked(forked, route) if forked else None,
            headers.getall("Authorization", ()),
            headers.getall("Cookie", ()),
            parsed.parameters or {},
            target.query,
            request.client,
            _is_from_site(request, route.config),
        )
        if not with_headers:
            return asked
        return asked._replace(method=request.method, scheme=request.scheme, host=request.host, headers=headers)


def _named_stream(parsed: ParsedRequest) -> NamedStream | None:
    """Return the stream of a GET whose verdict depends only on the stream and the header section.  None for other
    requests.
    """
    target = parsed.target
    if parsed.read is None or parsed.mode is Mode.HEAD or parsed.parameters or target.authority is not None:
        return None
    return NamedStream(parsed.route, target.path, target.query)


def _depends_on_client(allowed: Allowed) -> bool:
    """Return whether the verdict depends on the client's address."""
    renewal = allowed.renewal
    return bool(allowed.principal.network) or (renewal is not None and renewal.inquiry.rule.sends_client)


def headers_for_origin(
    headers: CIMultiDict[str], config: RouteConfig, guard: Guard, allowed: Allowed | None
) -> CIMultiDict[str]:
    """Return a relayed request's headers, without the checked credentials, and with the names of the principal (the
    authenticated party) and its tenant.

    `allowed` is None for a request that only the origin authorises, which keeps its credentials.
    """
    headers = headers.copy()
    # The origin must carry out exactly the request that was authorised.
    _remove(headers, _OVERRIDES)
    if guard.drops_credentials and allowed is not None:
        for name in (*config.credential_headers, *guard.vary):
            headers.popall(name, None)
    principal = allowed.principal if allowed is not None else PUBLIC
    for name, value in (
        (config.principal_header, principal.name),
        (config.issuer_header, principal.issuer),
        (config.tenant_header, principal.tenant),
    ):
        if name:
            _remove(headers, {name.lower().replace("_", "-")})
            if value:
                # Names in tokens may have any characters, but a header value must be ASCII.
                headers[name] = quote(value, safe=_FIELD_SAFE)
    return headers


def _remove(headers: CIMultiDict[str], names: Collection[str]) -> None:
    """Remove the headers with these names, given in lower case and with hyphens.  CGI and similar interfaces do not
    distinguish underscores from hyphens (RFC 3875 section 4.1.18)."""
    for name in [one for one in headers if one.lower().replace("_", "-") in names]:
        headers.popall(name, None)


def is_preflight(request: Request, guard: Guard) -> bool:
    """Return whether the request is a CORS preflight for the origin.  (The gateway's own answers to preflights are sent
    before authorisation.)

    A route that conceals streams passes no preflight on, because the answer might show whether the stream exists.
    """
    if request.method != "OPTIONS" or request.body is not None or guard.concealment is not None:
        return False
    headers = request.headers
    return cors.is_preflight(request.method, headers.get("Origin"), headers.get("Access-Control-Request-Method"))


def is_of_the_origin(method: str, path: str) -> bool:
    """Return whether only the origin authorises the request.  Such a request carries a token of the origin, or fetches
    the origin's public keys.
    """
    calls = _OF_THE_ORIGIN.get(method)
    before, _, below = path.partition(_RESERVED)
    return calls is not None and calls.fullmatch(below) is not None and "%" not in before


def action_of(mode: Mode, path: str) -> Action:
    """Return the action that a request with this mode and canonical path needs permission for.  Forks and closures need
    further permissions (`_actions`)."""
    return _ACTIONS.get(mode) or (Action.SUBSCRIBE if _RESERVED in path else Action.OTHER)


def _actions(request: Request, parsed: ParsedRequest, *, is_fork: bool) -> tuple[Action, ...]:
    action = action_of(parsed.mode, parsed.target.path)
    if parsed.mode not in _CHANGES:
        return (action,)
    # If the header has several values, the origin may use any of them.  One true value therefore counts as a closure.
    lines = request.headers.getall(STREAM_CLOSED, ())
    closes = any(is_true(value) for line in lines for value in line.split(","))
    if action is Action.APPEND and closes and request.body is None:
        return (Action.CLOSE,)
    found = [action]
    if is_fork:
        found.append(Action.FORK)
    if closes and action is not Action.DELETE:
        found.append(Action.CLOSE)
    return tuple(found)


def _forked(lines: list[str], route: Route) -> str:
    """Return the canonical path of the stream to fork, as clients name it.  Raises Forbidden if the origin might read
    it as the path of another stream.
    """
    try:
        target = parse_target(lines[0].strip()) if len(lines) == 1 and lines[0].lstrip().startswith("/") else None
    except BadTarget:
        target = None
    if target is None or target.query or not route.covers(target.path):
        raise Forbidden("The stream to fork is not named by its path")
    return target.path


def _is_from_site(request: Request, config: RouteConfig) -> bool:
    """Return whether the request comes from a web origin that the route allows."""
    allowed = config.cors.allow_origins if config.cors is not None else ()
    origins = request.headers.getall("Origin", ())
    return len(origins) == 1 and origins[0].lower() in allowed and "*" not in allowed


class GuardedUse:
    """A live read with a verdict.  The read is counted like any other live read, and registered until it ends."""

    __slots__ = ("_authoriser", "_began", "_channel", "_is_ending", "_tick", "_use", "allowed", "has_begun", "renewing")

    def __init__(self, channel: Channel, allowed: Allowed, authoriser: Authoriser, began: float) -> None:
        self._authoriser = authoriser
        self._began = began
        self._channel = channel
        self._use: LiveUse | None = channel.live_use
        self.allowed = allowed
        self._tick = NEVER
        """The tick of the timer wheel at which the read ends; NEVER if no end is set."""
        self._is_ending = False
        self.renewing: VerdictRenewal | None = None
        """Renews a verdict that an authorisation service has given."""
        self.has_begun = True
        """Whether the read counts in its tenant's usage."""
        authoriser.verdicts.live[self] = None

    def end_at_expiry(self) -> None:
        """End the read at its credential's expiry.  Without this, only the origin would end a relayed read."""
        if self._tick == NEVER and self.renewing is None and math.isfinite(self.allowed.until):
            self._tick = self._authoriser.end_within(self, math.inf)

    def due(self) -> None:
        """End the read, because its credential expires or the rules in effect do not allow the read."""
        self._tick = NEVER
        self._channel.end_early()

    def end_live(self, sent_bytes: int) -> None:
        self._authoriser.verdicts.live.pop(self, None)
        if self._tick != NEVER:
            self._authoriser.services.wheel.unlink(self, self._tick)
        if self.renewing is not None:
            self.renewing.stop_asking()
        if self._use is not None:
            self._use.end_live(sent_bytes)
        if self.has_begun and (usage := self.allowed.usage) is not None:
            usage.add(sent_bytes, self._authoriser.now() - self._began)

    def revoke(self) -> None:
        """End the read at once.  An SSE answer ends properly.  For any other read, the connection is dropped."""
        self._channel.end_early()

    def end_soon(self) -> None:
        """End the read like `revoke`, at a random moment within `SPREAD_S`, because many reads may end for the same
        reason.
        """
        if not self._is_ending:  # A second reload must not delay the end.
            self._is_ending = True
            self._authoriser.services.wheel.unlink(self, self._tick)
            self._tick = self._authoriser.end_within(self, SPREAD_S)
