"""Forward-auth: an operator's service allows or refuses each request.

An `Inquiry` has everything that the gateway sends to the service about a request.  Only requests with equal inquiries
share a verdict.  A 2xx allows the request.  A 401 or 403 refuses it, with the service's challenge.  After any other
answer the request is undecided.  The service may state the principal (the authenticated party), the tenant and
permissions in headers of its answer.  Without permissions, a 2xx allows only the requested actions.

A verdict is kept for its `Cache-Control: max-age`, within the bounds of the rule.  When the verdict of a live read
expires, the service is asked again.  The read continues only if the service allows it again.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.auth.asked import Asked
from gateway.auth.permissions import MOST_PERMISSIONS, Action, BadPermission, Exact, Permission, parse_permission
from gateway.auth.verdict import BadCredential, Principal
from gateway.protocol.freshness_headers import age_from_headers, parse_cache_control, stated_lifetime

MOST_VERDICTS: Final = 1 << 14
MOST_VERDICT_BYTES: Final = 1 << 24
"""The most bytes charged for all kept verdicts.  `MOST_VERDICTS` bounds their number."""
_COST: Final = 1_000
"""The bytes charged for a verdict in addition to its inquiry."""
LEAST_LIVE_S: Final = 1.0
"""The least seconds after which the service is asked again about a live read, even if its verdict must not be kept."""
_MOST_NAME_CHARS: Final = 256
_MOST_CHALLENGE_CHARS: Final = 1_024
_LIKE_ASCII: Final = re.compile(r"[\t\x20-\x7e]*")
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")
_OF_BROWSERS: Final = frozenset(
    {
        *("accept", "accept-language", "content-language", "content-type", "cookie", "dnt", "origin", "priority"),
        *("range", "referer", "user-agent"),
    }
)
"""Header fields that a web page can send to another site without the site's consent (Fetch standard, section 2.2.2).
Fields that begin with `sec-` are also of this kind."""
_SCHEME_OF_BROWSERS: Final = re.compile(r"(?i:basic|digest|negotiate|ntlm)\b")
"""Authorization schemes that a browser may send to another site on its own, with credentials from a URL or from its
store.
"""


class ForwardRule(NamedTuple):
    """How a service is asked, and how its answers are interpreted."""

    route: str
    url: str
    method: str
    headers: tuple[str, ...]
    """The request headers that are sent to the service, in lower case.  A request without any of these headers has no
    credential for the service.
    """
    own_credentials: frozenset[str]
    """The headers among them that the operator has named as credentials, besides Authorization and Cookie."""
    parameter: str
    """The query parameter that is sent to the service as a bearer token; empty for none."""
    sends_target: bool
    """Whether the target of the request is sent to the service.  If it is not sent, a verdict applies to all streams
    that match its permissions.
    """
    sends_client: bool
    """Whether the client's address is sent to the service."""
    anonymous: bool
    """Whether the service is also asked about requests without credentials."""
    principal_from: str
    tenant_from: str
    permissions_from: str
    """`principal_from`, `tenant_from` and `permissions_from` are names of headers in the service's answers; empty for
    none.
    """
    keep_s: float
    """The seconds for which an allowing answer without `max-age` is kept."""
    keep_refusal_s: float
    """The seconds for which a refusing answer without `max-age` is kept."""
    most_keep_s: float
    timeout_s: float

    @property
    def shown_url(self) -> str:
        """The URL as logs and probes show it: without its query, which may contain a secret."""
        return self.url.partition("?")[0]


class Inquiry(NamedTuple):
    """A question to a service: may this request pass?"""

    rule: ForwardRule
    fields: tuple[tuple[str, str], ...]
    """The header fields that are sent to the service."""
    path: str
    """The path of the request.  If the target is not sent to the service, `path`, `actions` and `forked` are empty."""
    actions: tuple[Action, ...]
    forked: str | None
    client: str
    """The client's address, if it is sent to the service."""

    def __repr__(self) -> str:
        return f"<Inquiry of {self.rule.shown_url}>"

    @property
    def size(self) -> int:
        """The number of characters of the fields."""
        return sum(len(name) + len(value) for name, value in self.fields)


def inquire(rule: ForwardRule, asked: Asked) -> Inquiry | None:
    """Make the inquiry about a request.  Return None if the request has no credential for the service.

    Raises BadCredential if the token in the query is malformed.
    """
    fields: list[tuple[str, str]] = []
    for name in rule.headers:
        match name:
            case "authorization":
                values = asked.authorization
            case "cookie":
                values = asked.cookies
            case _:
                values = asked.headers.getall(name, ())
        fields += [(name, value) for value in values]
    parameter = asked.parameters.get(rule.parameter) if rule.parameter else None
    if parameter is not None and not asked.authorization:
        if not _TOKEN.fullmatch(parameter):
            # A decoded parameter may contain a line break, and would then become more than one header field.
            raise BadCredential("The token in the query has characters that no token has")
        fields.append(("authorization", f"Bearer {parameter}"))
    if not fields and not rule.anonymous:
        return None
    client = (asked.client or "") if rule.sends_client else ""
    if client:
        fields.append(("x-forwarded-for", client))
    if not rule.sends_target:
        return Inquiry(rule, tuple(fields), "", (), None, client)
    fields += [
        ("x-forwarded-method", asked.method),
        ("x-forwarded-proto", asked.scheme),
        ("x-forwarded-host", asked.host),
        ("x-forwarded-uri", f"{asked.path}?{asked.others}" if asked.others else asked.path),
        ("stream-actions", ",".join(asked.actions)),
    ]
    if asked.forked is not None:
        fields.append(("stream-forked-from", asked.forked))
    return Inquiry(rule, tuple(fields), asked.path, asked.actions, asked.forked, client)


def is_by_cookie(rule: ForwardRule, asked: Asked) -> bool:
    """Return whether a page of another site may have caused the request, so that the browser added the user's cookies.

    A credential in a header field that a page may send only with the site's consent (CORS) rules this out.  Any other
    field does not rule it out, because a browser or a proxy may have added the field.  A token in the query does not
    rule it out either, because the page may have invented the token.
    """
    if "cookie" not in rule.headers or not asked.cookies:
        return False
    if "authorization" in rule.headers and any(not _SCHEME_OF_BROWSERS.match(line) for line in asked.authorization):
        return False
    return not any(asked.headers.get(name) for name in rule.own_credentials)


def own_credentials(sent: Iterable[str], credentials: Iterable[str]) -> frozenset[str]:
    """Return the headers among `sent` that are credentials for `ForwardRule.own_credentials`.  `credentials` are the
    headers that the operator has named as credentials.  All names are in lower case.
    """
    found = set(sent) & set(credentials) - _OF_BROWSERS - {"authorization"}
    return frozenset(name for name in found if not name.startswith("sec-"))


class ForwardVerdict(NamedTuple):
    """A service's answer to an inquiry."""

    principal: Principal | None
    """The principal; None for a refusal."""
    until: float
    """The time at which the verdict expires (Unix seconds)."""
    live_until: float
    """The time at which the verdict on a live read expires (Unix seconds)."""
    refused: Principal | None = None
    """The principal that a 403 refuses, without permissions; None after a 401, because the credential is not valid."""
    challenge: str | None = None


class BadVerdict(ValueError):
    """The answer of a service is not a verdict.  The message is a few words for the operator."""


def read_verdict(
    inquiry: Inquiry, status: int, headers: CIMultiDict[str] | CIMultiDictProxy[str], wall: float
) -> ForwardVerdict:
    """Read the verdict from a service's answer that arrived at `wall` (Unix seconds).  Raises BadVerdict."""
    rule = inquiry.rule
    if status in (401, 403):
        kept_s = _lifetime(headers, rule.keep_refusal_s, rule.most_keep_s)
        challenge = ", ".join(headers.getall("WWW-Authenticate", ()))
        is_plain = len(challenge) <= _MOST_CHALLENGE_CHARS and _LIKE_ASCII.fullmatch(challenge)
        until = wall + kept_s
        refused = _principal(inquiry, headers, (), until) if status == 403 else None
        return ForwardVerdict(None, until, until, refused, challenge if challenge and is_plain else None)
    if not 200 <= status < 300:
        raise BadVerdict(f"answered {status}")
    kept_s = _lifetime(headers, rule.keep_s, rule.most_keep_s)
    until = wall + kept_s
    principal = _principal(inquiry, headers, _permissions(inquiry, headers), until)
    return ForwardVerdict(principal, until, wall + max(kept_s, LEAST_LIVE_S))


def _principal(
    inquiry: Inquiry,
    headers: CIMultiDict[str] | CIMultiDictProxy[str],
    permissions: tuple[Permission, ...],
    until: float,
) -> Principal:
    rule = inquiry.rule
    name = headers.get(rule.principal_from, "") if rule.principal_from else ""
    tenant = headers.get(rule.tenant_from, "") if rule.tenant_from else ""
    for text in (name, tenant):
        if len(text) > _MOST_NAME_CHARS or not text.isprintable():
            raise BadVerdict("answered with a name that is too long, or not printable")
    return Principal(name, permissions, until, tenant, network=inquiry.client, issuer=rule.shown_url)


def _permissions(inquiry: Inquiry, headers: CIMultiDict[str] | CIMultiDictProxy[str]) -> tuple[Permission, ...]:
    name = inquiry.rule.permissions_from
    lines = headers.getall(name, ()) if name else ()
    if lines:
        texts = [text for line in lines for text in line.split(";") if text.strip()]
        try:
            if len(texts) > MOST_PERMISSIONS:
                raise BadPermission
            return tuple(map(parse_permission, texts))
        except BadPermission:
            raise BadVerdict("answered with permissions that are not understood") from None
    if not inquiry.actions:
        return ()
    own = Permission(frozenset(inquiry.actions), Exact(inquiry.path))
    if inquiry.forked is None:
        return (own,)
    return own, Permission(frozenset({Action.READ}), Exact(inquiry.forked))


def _lifetime(headers: CIMultiDict[str] | CIMultiDictProxy[str], default_s: float, most_s: float) -> float:
    """Return the seconds for which an answer may be kept.  `private` has no effect, because an answer is kept only for
    equal inquiries.
    """
    directives = parse_cache_control(", ".join(headers.getall("Cache-Control", ())))
    if "no-store" in directives or "no-cache" in directives:
        return 0.0
    if "max-age" not in directives:
        return min(default_s, most_s)
    stated_s = stated_lifetime({"max-age": directives["max-age"]}) - age_from_headers(headers)
    return min(max(stated_s, 0.0), most_s)


class ForwardVerdicts:
    """The kept verdicts, by inquiry.  The oldest are evicted first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Inquiry, ForwardVerdict] = OrderedDict()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<ForwardVerdicts {len(self._kept)} kept>"

    def find_verdict(self, inquiry: Inquiry, wall: float) -> ForwardVerdict | None:
        """Return the kept verdict on an equal inquiry.  Return None if no verdict is kept, or if it has expired."""
        found = self._kept.get(inquiry)
        return found if found is not None and wall < found.until else None

    def keep_verdict(self, inquiry: Inquiry, verdict: ForwardVerdict, wall: float) -> None:
        """Keep the verdict in place of an earlier verdict.  If the new verdict has already expired, only remove the
        earlier verdict."""
        if self._kept.pop(inquiry, None) is not None:
            self._bytes -= inquiry.size + _COST
        if wall >= verdict.until:
            return
        self._kept[inquiry] = verdict
        self._bytes += inquiry.size + _COST
        while len(self._kept) > MOST_VERDICTS or self._bytes > MOST_VERDICT_BYTES:
            self._bytes -= self._kept.popitem(last=False)[0].size + _COST
