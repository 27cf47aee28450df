"""Authorisation of each request on a route with rules (`[[route.auth]]`).

`gateway.server.interpreting` takes the credentials out of the query, so that they reach neither the cache's keys, nor
the log, nor the origin.  The route's guard then decides whether the request is allowed.  This decision is called a
verdict.

The credential is usually in the header section, so verdicts on reads are kept with the section, one for each stream.
Later reads of the stream with the same section need only a look-up.  If the query holds a credential, such as a
signature, the verdict is kept for this credential and the stream.  There are two exceptions: the credential's
parameters have unusual spellings, or the request line contains a host.  The verdict is then kept under the whole
request line.

A challenge of a route with token rules contains the URL of the protected resource metadata (RFC 9728), from which
clients learn where to get a token.  Every URL below the route is a resource.  The URL of its metadata is its own URL
with `/.well-known/oauth-protected-resource` inserted between host and path (section 3.1).  The `resource` in the
metadata is the URL that the client has requested, as section 3.3 demands.  The metadata does not depend on whether the
stream exists.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote_plus

from multidict import CIMultiDict

from gateway.auth.asked import Asked
from gateway.auth.guard import Guard
from gateway.auth.permissions import DETAIL_TYPE, Action
from gateway.auth.questions import Question, Undecided
from gateway.auth.remembered_verdicts import Allowed
from gateway.auth.rules import JwtRule
from gateway.auth.verdict import PUBLIC, AuthRefused, Concealed
from gateway.config.routes import RouteConfig
from gateway.engine.route import Route, route_for
from gateway.errors import TooManyRequests
from gateway.limits.accounts import Account
from gateway.limits.rate_limits import Rate, retry_after_s
from gateway.protocol.mode import Mode
from gateway.protocol.names import STREAM_CLOSED, is_true
from gateway.protocol.target import BadHost, BadTarget, host_of, is_reserved, parse_target
from gateway.server import cors
from gateway.server.context import RequestContext
from gateway.server.guarded_live_reads import GuardedReads
from gateway.server.handling import Answerer, UndecidedRequest
from gateway.server.header_meanings import Sections
from gateway.server.interpreting import RequestMeaning
from gateway.server.query_credentials import NamedStream
from gateway.server.remembered import RememberedAnswers
from gateway.server.request import Request
from gateway.server.request_admission import Admission
from gateway.telemetry.audit import AUDIT, RefusalLines, shortened
from gateway.upstream.auth_services import AuthServices

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_FRESH_S: Final = 300
"""Seconds for which clients may keep the metadata of a resource."""
_BAD_PER_S: Final = 5.0
BAD_AT_ONCE: Final = 50
"""Bad credentials that one client network may present: a burst of `BAD_AT_ONCE`, then `_BAD_PER_S` a second."""
_OF_THE_ORIGIN: Final = {
    "GET": re.compile(r"(?:/v1/stream)?/__ds/jwks\.json"),
    "POST": re.compile(r"(?:/v1/stream)?/__ds/subscriptions/[^/%\\]+/(?:callback|ack|release)"),
}
"""For each method, the paths for which only the origin authorises requests.  A POST concerns a subscription, and
carries a token of the origin in Authorization.  A GET fetches the origin's public keys.

The protocol reserves `__ds` below the root of the streams.  The root is the path of the route, or `/v1/stream`, the
root at the reference servers.  Below any other path, an origin may have a stream of such a name.
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
    """Authorises requests, and remembers verdicts.  `reads` keeps the verdicts of live reads in progress."""

    def __init__(
        self,
        reads: GuardedReads,
        sections: Sections,
        remembered: RememberedAnswers | None,
        admission: Admission,
        rng: random.Random,
        services: AuthServices,
        masked: Callable[[str | None], str],
    ) -> None:
        self.reads = reads
        self.verdicts = reads.verdicts
        self.services = services
        self._masked = masked
        """Returns a client's address in the form that logs may show."""
        self._refusals = RefusalLines(AUDIT, admission.now)
        self._sections = sections
        self.remembered = remembered
        self._admission = admission
        self._rng = rng
        self._bad = Rate(_BAD_PER_S, BAD_AT_ONCE, "bad credentials")

    def authorise(
        self,
        context: RequestContext,
        meaning: RequestMeaning,
        guard: Guard,
        answerer: Answerer,
        waited: UndecidedRequest | None = None,
    ) -> bool:
        """Authorise the request.  Returns False if the verdict has to wait for a key set or a service.

        After a result of False, `answerer` later resumes the request and calls `authorise` again, with the waiting
        request as `waited`.  No request waits twice.  Raises a GatewayError if the request is refused.
        """
        request = context.request
        if is_of_the_origin(request.method, meaning.target.path, meaning.route):
            return True
        if is_preflight(request, guard):
            # Let the preflight pass to the origin, which answers preflights on this route.  Browsers send a preflight
            # without credentials (Fetch standard, section 4.8).
            context.allowed = self.verdicts.allow(PUBLIC)
            return True
        asked = self._asked(request, meaning, with_headers=guard.asks_services)
        account = self._account(meaning.client)
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
                self._wait_for_answer(UndecidedRequest(context, meaning, answerer), error.question, count_bad)
                return False
        except Undecided:
            self.services.undecided[meaning.route.name] += 1
            raise
        except AuthRefused as error:
            self._note_refusal(request, meaning, error)
            if error.challenge is not None and error.has_own_challenge and names_metadata(guard):
                error.challenge += f', resource_metadata="{metadata_url(request, asked.path)}"'
            raise
        alias, allowed = request.channel.alias, context.allowed
        stream = _named_stream(meaning, self._credentials(meaning, alias))
        context.stream = self._sections.stream_names.shared_name(stream) if stream is not None else None
        # Limit the use of a verdict that depends on the scheme or on the client's address, because the request's bytes
        # show neither.
        if allowed.renewal is not None:
            allowed.scheme = request.scheme
        # Keep no verdict under a credential if the stream is public.  Clients can invent any number of such
        # credentials.
        is_needless = bool(meaning.parameters) and context.is_public
        if alias is not None and not is_needless and not _depends_on_client(allowed) and self.verdicts.holds(allowed):
            self._remember(alias, context.stream, allowed)
        return True

    def _credentials(self, meaning: RequestMeaning, alias: bytes | None) -> bytes | None:
        """Return the credentials in the request's query, as the client has spelled them in `alias` (the request's
        bytes).  Returns None if no verdict may be kept under these credentials."""
        if not meaning.parameters:
            return b""
        lines = self._sections.credential_lines
        if alias is None or lines is None:
            return None
        return lines.credentials_of(alias[: alias.find(b"\r\n")], meaning.parameters)

    def _wait_for_answer(self, waiting: UndecidedRequest, question: Question, refused: Callable[[], None]) -> None:
        """Let the request wait for the answer to a question."""
        waiting.waiting = self.services.await_answer(question, waiting.meaning.client, waiting.ready, refused)
        waiting.context.request.channel.hand_over(waiting)

    def _remember(self, alias: bytes, stream: NamedStream | None, allowed: Allowed) -> None:
        """Remember the verdict for reads of the stream with this header section.  Without a stream, remember the
        verdict for the same request line.
        """
        line = alias[: alias.find(b"\r\n")]
        if self.remembered is not None and (exact := self.remembered.exact.get(alias)) is not None:
            # A remembered answer for the same bytes refers to a section object.  If `Sections` has evicted this object
            # since, `split` returns another object for the same section.  Store the verdict in both.
            self._sections.allow(exact[1], stream or line, allowed)
        if (split := self._sections.split(alias)) is not None:
            self._sections.allow(split[1], stream or line, allowed)

    def _note_refusal(self, request: Request, meaning: RequestMeaning, error: AuthRefused) -> None:
        """Write an audit line about a refused request, at a bounded rate."""
        if not self._refusals.has_room():
            return
        principal, status = error.principal, error.status
        AUDIT.warning(
            "%s %s by %s on route %s: %d: %s%s",
            shortened(request.method),
            shortened(meaning.target.path),
            self._masked(request.client) or "-",
            meaning.route.name,
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
    def _asked(request: Request, meaning: RequestMeaning, *, with_headers: bool) -> Asked:
        headers, target = request.headers, meaning.target
        asked = Asked(
            target.path,
            _actions(request, meaning),
            meaning.forked,
            headers.getall("Authorization", ()),
            headers.getall("Cookie", ()),
            meaning.parameters or {},
            target.query,
            request.client,
            _is_from_site(request, meaning.route.config),
        )
        if not with_headers:
            return asked
        return asked._replace(method=request.method, scheme=request.scheme, host=request.host, headers=headers)


def _named_stream(meaning: RequestMeaning, credentials: bytes | None) -> NamedStream | None:
    """Return the stream of a GET whose verdict depends only on the stream, the header section and these credentials in
    the query.  None for other requests.
    """
    target = meaning.target
    if meaning.read is None or meaning.mode is Mode.HEAD or credentials is None or target.authority is not None:
        return None
    return NamedStream(meaning.route, target.path, target.query, credentials)


def _depends_on_client(allowed: Allowed) -> bool:
    """Return whether the verdict depends on the client's address."""
    renewal = allowed.renewal
    return bool(allowed.principal.network) or (renewal is not None and renewal.inquiry.rule.sends_client)


def headers_for_origin(
    headers: CIMultiDict[str], config: RouteConfig, guard: Guard, allowed: Allowed | None
) -> CIMultiDict[str]:
    """Return a relayed request's headers.  The checked credentials are removed, and the names of the principal (the
    authenticated party) and its tenant are added.

    `allowed` is None for a request that only the origin authorises.  Such a request keeps its credentials.
    """
    headers = headers.copy()
    # Remove headers that replace the method, because the origin must carry out exactly the request that was authorised.
    _remove(headers, _OVERRIDES)
    if guard.drops_credentials and allowed is not None:
        _remove(headers, {name.lower().replace("_", "-") for name in (*config.credential_headers, *guard.vary)})
    principal = allowed.principal if allowed is not None else PUBLIC
    for name, value in (
        (config.principal_header, principal.name),
        (config.issuer_header, principal.issuer),
        (config.tenant_header, principal.tenant),
    ):
        if name:
            _remove(headers, {name.lower().replace("_", "-")})
            if value:
                # Percent-encode the name: names in tokens may have any characters, but a header value must be ASCII.
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
    if request.method != "OPTIONS" or request.body is not None or guard.absence_times is not None:
        return False
    headers = request.headers
    return cors.is_preflight(request.method, headers.get("Origin"), headers.get("Access-Control-Request-Method"))


def is_of_the_origin(method: str, path: str, route: Route) -> bool:
    """Return whether only the origin authorises the request.  Such a request carries a token of the origin, or fetches
    the origin's public keys.  S2 has no such requests.
    """
    calls = _OF_THE_ORIGIN.get(method)
    if calls is None or "/__ds/" not in path or route.config.protocol == "s2":
        return False
    return any(calls.fullmatch(one) is not None for one in (path, route.below_prefix(path)))


def action_of(mode: Mode, path: str) -> Action:
    """Return the action that a request with this mode and canonical path needs permission for.  Forks and closures need
    further permissions (`_actions`)."""
    if (action := _ACTIONS.get(mode)) is not None:
        return action
    # A path that ends with the reserved name is not below it, unless the name occurs before.
    is_below = is_reserved(path.removesuffix("/__ds"))
    return Action.SUBSCRIBE if is_below else Action.OTHER


def _actions(request: Request, meaning: RequestMeaning) -> tuple[Action, ...]:
    action = action_of(meaning.mode, meaning.target.path)
    if meaning.mode not in _CHANGES:
        return (action,)
    # If the header has several values, the origin may use any of them.  One true value therefore counts as a closure.
    lines = request.headers.getall(STREAM_CLOSED, ())
    closes = any(is_true(value) for line in lines for value in line.split(","))
    if action is Action.APPEND and closes and request.body is None:
        return (Action.CLOSE,)
    found = [action]
    if action is Action.CREATE and meaning.forked is not None:
        found.append(Action.FORK)
    if closes and action is not Action.DELETE:
        found.append(Action.CLOSE)
    return tuple(found)


def _is_from_site(request: Request, config: RouteConfig) -> bool:
    """Return whether the request comes from a web origin that the route allows."""
    allowed = config.cors.allow_origins if config.cors is not None else ()
    origins = request.headers.getall("Origin", ())
    return len(origins) == 1 and origins[0].lower() in allowed and "*" not in allowed


# -- protected resource metadata


def metadata_url(request: Request, path: str) -> str:
    """Return the URL of the metadata for the stream with this canonical path."""
    return f"{request.scheme}://{request.host}{WELL_KNOWN}{path if path != '/' else ''}"


def metadata(routes: Sequence[Route], request: Request) -> tuple[CIMultiDict[str], bytes] | None:
    """Return the headers and the body of the requested metadata.  None for any other request.

    `routes` are in descending order of precedence.
    """
    if request.method not in ("GET", "HEAD"):
        return None
    hosts = request.headers.getall("Host", ())
    try:
        target = parse_target(request.target)
        host = host_of(hosts[0]) if len(hosts) == 1 and target.authority is None else None
    except (BadHost, BadTarget):
        return None
    below = target.path.removeprefix(WELL_KNOWN)
    if host is None or target.query or below == target.path or (below and not below.startswith("/")):
        return None
    route = route_for(routes, host, below or "/")
    if route is None or route.guard is None or (found := _of_guard(route.guard)) is None:
        return None
    tree = {"resource": f"{request.scheme}://{request.host}{below}", **found, "resource_name": route.name}
    headers = CIMultiDict({"Content-Type": "application/json", "Cache-Control": f"max-age={_FRESH_S}"})
    headers["X-Content-Type-Options"] = "nosniff"
    # Allow all web origins, because the metadata is public and clients in browsers need it.
    headers["Access-Control-Allow-Origin"] = "*"
    return headers, json.dumps(tree, separators=(",", ":")).encode()


def _of_guard(guard: Guard) -> dict[str, Any] | None:
    """Return the part of the metadata that all resources of a route share; None without token rules."""
    rules = [rule for rule in guard.rules if isinstance(rule, JwtRule)]
    if not rules:
        return None
    methods = ["header", *(["query"] if any(rule.parameter for rule in rules) else [])]
    return {
        "authorization_servers": list(dict.fromkeys(rule.tokens.issuer for rule in rules)),
        "bearer_methods_supported": methods,
        "authorization_details_types_supported": [DETAIL_TYPE],
    }


def names_metadata(guard: Guard) -> bool:
    """Return whether challenges of the route contain the URL of its metadata."""
    return any(isinstance(rule, JwtRule) for rule in guard.rules)
