"""The guard of a route: authorises each request by the first rule that applies to the request's credential.

Verifying a signature takes as long as answering several requests from memory.  A verified token is therefore remembered
by its digest.  The callbacks `may_verify` and `failed` count invalid tokens per client network, so that a client cannot
use up processor time by sending such tokens.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.auth.absence_times import AbsenceTimes
from gateway.auth.asked import Asked
from gateway.auth.forward_auth import ForwardRule, ForwardVerdict, Inquiry, inquire, is_by_cookie
from gateway.auth.grounds import Grounds
from gateway.auth.permissions import Action
from gateway.auth.questions import Heard, KeySource, Undecided, UnknownKey
from gateway.auth.remembered_verdicts import Allowed, Renewal, Verdicts
from gateway.auth.rules import JwtRule, PublicRule, Rules, SignedRule
from gateway.auth.signed_urls import (
    EXPIRED_CODE,
    INVALID_CODE,
    PARAMETERS,
    SIGNATURE,
    Presented,
    parameters_of,
    verify_signature,
)
from gateway.auth.tokens import Keys, TokenRule, Unverified, read_token, verify
from gateway.auth.verdict import (
    PUBLIC,
    AuthRefused,
    BadCredential,
    Concealed,
    Forbidden,
    Malformed,
    Principal,
    Unauthenticated,
)
from gateway.config.routes import RouteConfig

if TYPE_CHECKING:
    from gateway.auth.keys import KeyRing

MOST_KNOWN: Final = 1 << 14
"""The bound on the number of remembered tokens.  This number of tokens takes about 15 MB."""
MOST_PATTERNS: Final = 1 << 16
"""The bound on the number of patterns in the permissions of remembered tokens.  This number of patterns takes up to 110
MB.  A pattern counts as one, plus one for each 64 of its characters.
"""
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*) *")
_MALFORMED: Final = "invalid_request"
_SCHEME: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr](?: |$)")


class Credential(NamedTuple):
    """The credential of a request, and the rule that applies to it."""

    rule: JwtRule | SignedRule | ForwardRule
    value: Unverified | Presented | Inquiry
    is_cookie: bool = False


class KnownToken(NamedTuple):
    """A verified token."""

    rule: TokenRule
    """The rule by which the token was verified."""
    principal: Principal
    patterns: int
    version: int
    """The version of its issuer's key set."""


class Guard:
    """Authorises the requests of one route.  Owner of the route's remembered tokens."""

    def __init__(self, config: RouteConfig, rules: Rules, verdicts: Verdicts) -> None:
        self.realm = config.name
        self._use(rules)
        self.verdicts = verdicts
        self.absence_times = AbsenceTimes() if config.conceal else None
        """The state for concealing streams; None if the route does not conceal its streams."""
        tokens = {rule.parameter for rule in rules if isinstance(rule, JwtRule | ForwardRule) and rule.parameter}
        self.asks_services = any(isinstance(rule, ForwardRule) for rule in rules)
        """Whether a rule asks a service.  Verdicts may then depend on other header fields than the credentials."""
        self._has_signatures = any(isinstance(rule, SignedRule) for rule in rules)
        self._parameters = frozenset(tokens)
        """The names of query parameters with tokens."""
        self.drops_credentials = config.client_credentials == "drop"
        """Whether the client's credentials are removed from requests to the origin."""
        self._known: OrderedDict[bytes, KnownToken] = OrderedDict()
        """Remembered tokens by their digests."""
        self._patterns = 0
        """The number of patterns of the remembered tokens, counted as for `MOST_PATTERNS`."""
        has_cookies = any(rule.cookie for rule in rules if isinstance(rule, JwtRule | SignedRule))
        sent = [name.title() for rule in rules if isinstance(rule, ForwardRule) for name in rule.headers]
        self.vary = tuple(dict.fromkeys(("Authorization", *(("Cookie",) if has_cookies else ()), *sent)))
        """The header fields on which a verdict may depend, for Vary."""

    def __repr__(self) -> str:
        return f"<Guard {len(self._rules)} rules, {len(self._known)} known tokens>"

    @property
    def rules(self) -> Rules:
        """The current rules."""
        return self._rules

    def replace(self, rules: Rules) -> None:
        """Replace the rules by the rules of a reloaded configuration."""
        if rules != self._rules:
            self._use(rules)
            self._known.clear()
            self._patterns = 0
            self.verdicts.begin_edition()

    def follow(self, successor: Guard | None) -> None:
        """Use the rules of `successor`, the guard that has replaced this one, for the requests that still wait here.

        `successor` is None if no guard has replaced this one.  The waiting requests were parsed under the earlier
        rules.  If the new rules look for credentials in other places, `judge` raises Undecided for these requests, also
        after further reloads.
        """
        if self._rules:
            self.replace(successor.rules if successor is not None and successor._reads_like(self) else ())

    def _reads_like(self, earlier: Guard) -> bool:
        """Return whether this guard can judge requests that were parsed for the guard `earlier`."""
        return (
            (self._parameters, self._has_signatures) == (earlier._parameters, earlier._has_signatures)
            and set(self.vary) <= set(earlier.vary)
            and self.asks_services <= earlier.asks_services
        )

    def _use(self, rules: Rules) -> None:
        self._rules = rules
        self._grounds = [Grounds(self.realm, rules[: number + 1]) for number in range(len(rules))]
        """`_grounds[i]` holds the rules 0 to i.  A verdict of rule i is valid while these rules are unchanged."""
        self._public_grounds = Grounds(self.realm, rules, is_public=True)

    def is_public(self, path: str) -> bool:
        """Return whether all clients may read the stream with this canonical path."""
        return any(isinstance(rule, PublicRule) and rule.matches(path) for rule in self._rules)

    @property
    def parameters(self) -> frozenset[str]:
        """The names of query parameters that may be credentials."""
        return self._parameters | (frozenset(PARAMETERS) if self._has_signatures else frozenset())

    def credential_parameters(self, query: str) -> frozenset[str]:
        """Return the names of the parameters of a canonical query that are credentials."""
        if not query:
            return frozenset()
        names = frozenset(pair.partition("=")[0] for pair in query.split("&"))
        signed = frozenset(PARAMETERS) if self._has_signatures and SIGNATURE in names else frozenset()
        return names & (self._parameters | signed)

    def judge(
        self,
        asked: Asked,
        may_verify: Callable[[], None] = lambda: None,
        failed: Callable[[], None] = lambda: None,
        heard: Heard | None = None,
    ) -> Allowed:
        """Authorise the request, and return the verdict that allows it.

        Raises an AuthRefused if the request is refused, and Undecided if a service or key set must be asked first.
        `may_verify` is called before a token is verified or a service is asked.  It may raise a GatewayError, if the
        client has sent too many invalid credentials.  `failed` is called for an invalid credential, and for a token of
        an unknown key.  `heard` is the answer that the request has waited for.
        """
        if not self._rules:
            # No rules are left: `follow` found that the reloaded rules cannot judge this request.  Answer 503, so that
            # the client repeats the request under the new rules.
            raise Undecided
        try:
            credential, has_one = self.find_credential(asked)
            if credential is None:
                if asked.is_read and self.is_public(asked.path):
                    return self.verdicts.allow(PUBLIC, grounds=self._public_grounds)
                if has_one:
                    raise BadCredential("No rule accepts the credential")
                raise Unauthenticated(None, self._challenge())
            principal = self.identify(credential, asked, may_verify, heard)
        except UnknownKey:
            # Clients can invent such tokens, so their number is limited like that of bad ones.
            failed()
            raise
        except BadCredential as error:
            failed()
            refusal = Malformed if error.error == _MALFORMED else Unauthenticated
            raise refusal(*self._explained(error)) from None
        try:
            self._check_revoked(principal)
            self._check(principal, asked, is_cookie=credential.is_cookie)
        except AuthRefused as error:
            error.principal = principal
            raise
        renewal = Renewal(credential.value, asked.path) if isinstance(credential.value, Inquiry) else None
        number = next(number for number, one in enumerate(self._rules) if one is credential.rule)
        return self.verdicts.allow(principal, renewal, self._grounds[number])

    def _check_revoked(self, principal: Principal) -> None:
        if self.verdicts.is_revoked(principal):
            text = "The credential is revoked"
            raise Unauthenticated(text, self._challenge("invalid_token", text))

    def _explained(self, error: BadCredential) -> tuple[str, str]:
        """Return the text of a refusal and its challenge."""
        if error.error in (EXPIRED_CODE, INVALID_CODE):
            return f"{error.error}: {error}", self._challenge()
        return str(error), self._challenge(error.error, str(error))

    def _challenge(self, error: str = "", description: str = "", scope: str = "") -> str:
        parts = [f'realm="{self.realm}"']
        if error:
            parts += [f'error="{error}"', f'error_description="{description}"']
        return "Bearer " + ", ".join(parts)

    def _check(self, principal: Principal, asked: Asked, *, is_cookie: bool) -> None:
        if is_cookie and not asked.is_read and not asked.is_from_site:
            raise self._forbidden("A write with a cookie needs an allowed Origin")
        for action in asked.actions:
            if not principal.allows(action, asked.path):
                raise self._forbidden("The credential does not allow this")
        if asked.forked is not None:
            self._check_fork(principal, asked.forked)

    def _check_fork(self, principal: Principal, forked: str) -> None:
        """Refuse a fork of a stream that the client may not read."""
        if not forked:
            raise self._forbidden("The stream to fork is not named by its path, or is not of this route")
        if not self.is_public(forked) and not principal.allows(Action.READ, forked):
            raise self._forbidden("The credential does not allow this")

    def _forbidden(self, text: str) -> Forbidden | Concealed:
        if self.absence_times is not None:
            return Concealed()
        return Forbidden(text, self._challenge("insufficient_scope", text))

    def find_credential(self, asked: Asked) -> tuple[Credential | None, bool]:
        """Find the request's credential and the first rule that applies to it.

        The first result is the credential, or None if no rule applies.  The second result is whether the request has a
        credential of any kind.  If a public rule applies first, credentials do not matter, and the results are None and
        False.  Raises BadCredential if the credential is malformed.
        """
        bearer = self._bearer(asked)
        has_one = bearer is not None
        unread: BadCredential | None = None
        for rule in self._rules:
            match rule:
                case ForwardRule():
                    if (inquiry := inquire(rule, asked)) is not None:
                        return Credential(rule, inquiry, is_by_cookie(rule, asked)), True
                case PublicRule():
                    if asked.is_read and rule.matches(asked.path):
                        return None, False
                case JwtRule():
                    sent = bearer
                    cookie = parameter = None
                    if sent is None and rule.cookie:
                        sent = cookie = _cookie(asked.cookies, rule.cookie)
                    if sent is None and rule.parameter:
                        sent = parameter = asked.parameters.get(rule.parameter)
                    if sent is None:
                        continue
                    has_one = has_one or cookie is not None or parameter is not None
                    try:
                        token = read_token(sent)
                    except BadCredential as error:
                        # Try the later rules, because the token may be for the service of one of them.
                        unread = unread or error
                        continue
                    if token.issuer == rule.tokens.issuer:
                        return Credential(rule, token, cookie is not None), True
                case SignedRule():
                    if SIGNATURE in asked.parameters:
                        return Credential(rule, Presented(asked.parameters, asked.path, asked.others)), True
                    if rule.cookie and (value := _cookie(asked.cookies, rule.cookie)) is not None:
                        if asked.others:
                            raise BadCredential("The signature is not for these parameters", INVALID_CODE)
                        signed = Presented(parameters_of(value), asked.path, is_cookie=True)
                        return Credential(rule, signed, is_cookie=True), True
        if unread is not None:
            raise unread
        return None, has_one

    @staticmethod
    def _bearer(asked: Asked) -> str | None:
        """Return the bearer token of the Authorization field.

        Returns an empty text for a malformed token, and None without a bearer token.  Raises BadCredential if there are
        several fields.
        """
        lines = asked.authorization
        if not lines:
            return None
        if len(lines) > 1:
            raise BadCredential("There is more than one Authorization field", _MALFORMED)
        if not _SCHEME.match(lines[0]):
            return None
        found = _BEARER.fullmatch(lines[0])
        return found[1] if found is not None else ""

    def identify(
        self,
        credential: Credential,
        asked: Asked,
        may_verify: Callable[[], None] = lambda: None,
        heard: Heard | None = None,
    ) -> Principal:
        """Verify a credential, and return its principal (the authenticated party).

        Raises BadCredential, Undecided, or an AuthRefused for a service's refusal.
        """
        wall = self.verdicts.wall()
        rule, value = credential.rule, credential.value
        if isinstance(rule, ForwardRule):
            assert isinstance(value, Inquiry)
            return self._decided(self._verdict(value, wall, may_verify, heard))
        if isinstance(rule, SignedRule):
            assert isinstance(value, Presented)
            # Do not call `may_verify`: the call would cost as much as the HMAC itself.
            return verify_signature(value, rule.keys, asked.client, wall)
        assert isinstance(value, Unverified)
        digest = hashlib.blake2b(value.text.encode(), digest_size=32).digest()
        keys, version = self._keys(rule.tokens.keys, heard)
        known = self._known.get(digest)
        if (
            known is not None
            and known.rule is rule.tokens
            and known.version == version
            and wall < known.principal.expires_at
        ):
            self._known.move_to_end(digest)
            return known.principal
        may_verify()
        principal = verify(value, rule.tokens, keys, wall)
        self._keep(digest, rule.tokens, principal, version)
        return principal

    def _verdict(
        self, inquiry: Inquiry, wall: float, may_verify: Callable[[], None], heard: Heard | None
    ) -> ForwardVerdict:
        """Return the service's verdict.  Raises Undecided if the service must be asked, or has failed to answer."""
        if heard is not None and heard.question == inquiry:
            if heard.verdict is None:
                raise Undecided
            return heard.verdict
        verdict = self.verdicts.forwarded.find_verdict(inquiry, wall)
        if verdict is None:
            may_verify()
            raise Undecided(inquiry)
        return verdict

    def _decided(self, verdict: ForwardVerdict) -> Principal:
        """Return the principal of a verdict, or raise an AuthRefused for a refusal."""
        if verdict.principal is not None:
            return verdict.principal
        if (refused := verdict.refused) is not None:
            self._check_revoked(refused)
            refusal: AuthRefused = self._forbidden("The credential does not allow this")
            refusal.principal = refused if refused.name or refused.tenant else None
        else:
            refusal = Unauthenticated(None, self._challenge())
        if verdict.challenge is not None and not isinstance(refusal, Concealed):
            refusal.challenge, refusal.has_own_challenge = verdict.challenge, False
        raise refusal

    def _keys(self, keys: KeyRing | KeySource, heard: Heard | None) -> tuple[Keys, int]:
        """Return the keys of an issuer, and their version.  Raises Undecided if no rule names the source any more.

        If the keys were fetched for this request, another fetch would find no further key.
        """
        if not isinstance(keys, KeySource):
            return keys, 0
        found = self.verdicts.key_sets.find_set(keys)
        if found is None:
            raise Undecided
        if found.ring is not None and heard is not None and heard.question == keys:
            return found.ring, found.version
        return found, found.version

    def _keep(self, digest: bytes, rule: TokenRule, principal: Principal, version: int) -> None:
        """Remember a verified token, and evict the least recently used tokens."""
        # `permissions` begins with the rule's permissions, which all its tokens share.  Count only the token's own.
        own = principal.permissions[len(rule.permissions) :]
        patterns = sum(1 + len(one.pattern.text) // 64 for one in own)
        if (before := self._known.pop(digest, None)) is not None:
            self._patterns -= before.patterns
        self._known[digest] = KnownToken(rule, principal, patterns, version)
        self._patterns += patterns
        while len(self._known) > MOST_KNOWN or self._patterns > MOST_PATTERNS:
            self._patterns -= self._known.popitem(last=False)[1].patterns


def _cookie(lines: Sequence[str], name: str) -> str | None:
    """Return the value of a cookie; None if there is none.

    Raises BadCredential if there are two cookies with this name, because another site may have set one of them.
    """
    found = [
        value.strip(' "')
        for line in lines
        for pair in line.split(";")
        for key, mark, value in [pair.strip().partition("=")]
        if mark and key == name
    ]
    if len(found) > 1:
        raise BadCredential("There are two cookies of one name", _MALFORMED)
    return found[0] if found else None
