"""The guard of a route: judges each request by the route's rules, in order; the first rule that knows the request's
credential decides.

A token is verified once and then known by a digest, because a signature takes as long to verify as several hits to
answer.  Bad tokens are counted by the network of their client, through `may_verify` and `failed`, so that they cannot
take the process's time.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.auth.asked import Asked
from gateway.auth.concealment import Concealment
from gateway.auth.forward import ForwardRule, ForwardVerdict, Inquiry, inquire, is_by_cookie
from gateway.auth.grounds import Grounds
from gateway.auth.permissions import Action
from gateway.auth.questions import Heard, KeySource, Undecided
from gateway.auth.rules import JwtRule, PublicRule, Rules, SignedRule
from gateway.auth.signatures import (
    EXPIRED_CODE,
    INVALID_CODE,
    PARAMETERS,
    SIGNATURE,
    Presented,
    parameters_of,
    verify_signature,
)
from gateway.auth.tokens import Keys, TokenRule, Unverified, read_token, verify
from gateway.auth.verdict import PUBLIC, AuthRefused, BadCredential, Concealed, Forbidden, Principal, Unauthenticated
from gateway.auth.verdicts import Allowed, Renewal, Verdicts
from gateway.config.routes import RouteConfig

if TYPE_CHECKING:
    from gateway.auth.keys import KeyRing

MOST_KNOWN: Final = 1 << 14
"""Verified tokens that are known by their digests: some 15 MB."""
MOST_PATTERNS: Final = 1 << 16
"""Bound on the patterns in the permissions of known tokens, 110 MB at most.  A pattern counts once, and once more for
each 64 of its characters."""
_BEARER: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*) *")
_SCHEME: Final = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr](?: |$)")


class Credential(NamedTuple):
    """The credential of a request, and the rule that it belongs to."""

    rule: JwtRule | SignedRule | ForwardRule
    value: Unverified | Presented | Inquiry
    is_cookie: bool = False


class KnownToken(NamedTuple):
    """A verified token."""

    rule: TokenRule
    """The rule that it is valid for."""
    principal: Principal
    patterns: int
    version: int
    """The version of its issuer's key set."""


class Guard:
    """Owner of the known tokens of one route."""

    def __init__(self, config: RouteConfig, rules: Rules, verdicts: Verdicts) -> None:
        self.realm = config.name
        self._use(rules)
        self.verdicts = verdicts
        self.concealment = Concealment() if config.conceal else None
        """Makes refusals look like the 404 of an absent stream; None on a route that does not conceal its streams."""
        tokens = {rule.parameter for rule in rules if isinstance(rule, JwtRule | ForwardRule) and rule.parameter}
        self.asks_services = any(isinstance(rule, ForwardRule) for rule in rules)
        """Whether a rule lets a service decide.  Any header may be configured to be sent to a service."""
        self._has_signatures = any(isinstance(rule, SignedRule) for rule in rules)
        self._parameters = frozenset(tokens)
        """Query parameters that carry tokens."""
        self.drops_credentials = config.client_credentials == "drop"
        """Whether the clients' credentials are removed before a request goes to the origin."""
        self._known: OrderedDict[bytes, KnownToken] = OrderedDict()
        """Verified tokens by their digests."""
        self._patterns = 0
        """The patterns of the known tokens, counted as for `MOST_PATTERNS`."""
        has_cookies = any(rule.cookie for rule in rules if isinstance(rule, JwtRule | SignedRule))
        sent = [name.title() for rule in rules if isinstance(rule, ForwardRule) for name in rule.headers]
        self.vary = tuple(dict.fromkeys(("Authorization", *(("Cookie",) if has_cookies else ()), *sent)))
        """The header fields that a verdict may depend on, for Vary."""

    def __repr__(self) -> str:
        return f"<Guard {len(self._rules)} rules, {len(self._known)} known tokens>"

    @property
    def rules(self) -> Rules:
        """The rules in effect."""
        return self._rules

    def replace(self, rules: Rules) -> None:
        """From now on, judge by the same rules with other keys."""
        if rules != self._rules:
            self._use(rules)
            self._known.clear()
            self._patterns = 0
            self.verdicts.begin_edition()

    def _use(self, rules: Rules) -> None:
        self._rules = rules
        self._grounds = [Grounds(self.realm, rules[: number + 1]) for number in range(len(rules))]
        """The grounds of verdicts by the index of the deciding rule."""
        self._public_grounds = Grounds(self.realm, rules, is_public=True)

    def is_public(self, path: str) -> bool:
        """Whether every client may read the stream with this canonical path."""
        return any(isinstance(rule, PublicRule) and rule.matches(path) for rule in self._rules)

    def credential_parameters(self, query: str) -> frozenset[str]:
        """The names of the parameters in a canonical query that are credentials."""
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
        """The verdict that allows the request.  Raises an AuthRefused, or Undecided.

        `may_verify` is called before an unknown token is verified and before a service is asked.  It raises a
        GatewayError if the client has sent too many bad credentials.  `failed` is called for each bad credential.
        `heard` is a service's answer, if the request has waited for one.
        """
        try:
            credential, has_one = self.find_credential(asked)
            if credential is None:
                if asked.is_read and self.is_public(asked.path):
                    return self.verdicts.allow(PUBLIC, grounds=self._public_grounds)
                if has_one:
                    raise BadCredential("No rule accepts the credential")
                raise Unauthenticated(None, self._challenge())
            principal = self.identify(credential, asked, may_verify, heard)
        except BadCredential as error:
            failed()
            raise Unauthenticated(*self._explained(error)) from None
        try:
            if self.verdicts.is_revoked(principal):
                text = "The credential is revoked"
                raise Unauthenticated(text, self._challenge("invalid_token", text))
            self._check(principal, asked, is_cookie=credential.is_cookie)
        except AuthRefused as error:
            error.principal = principal
            raise
        renewal = Renewal(credential.value, asked.path) if isinstance(credential.value, Inquiry) else None
        number = next(number for number, one in enumerate(self._rules) if one is credential.rule)
        return self.verdicts.allow(principal, renewal, self._grounds[number])

    def _explained(self, error: BadCredential) -> tuple[str, str]:
        """The text of a refusal, and its challenge."""
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
        if asked.forked is not None and not principal.allows(Action.READ, asked.forked):
            raise self._forbidden("The credential does not allow this")

    def _forbidden(self, text: str) -> Forbidden | Concealed:
        if self.concealment is not None:
            return Concealed()
        return Forbidden(text, self._challenge("insufficient_scope", text))

    def find_credential(self, asked: Asked) -> tuple[Credential | None, bool]:
        """The request's credential with its rule, and whether the request has a credential at all.

        The credential is None if no rule knows it.  Raises BadCredential.
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
                        # The service of a later rule may accept the token.
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
        """The token in the Authorization field: empty for a malformed one, None for another scheme or no field."""
        lines = asked.authorization
        if not lines:
            return None
        if len(lines) > 1:
            raise BadCredential("There is more than one Authorization field", "invalid_request")
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
        """The principal of a credential, once it is verified.  Raises BadCredential, Undecided, or the AuthRefused of a
        service."""
        wall = self.verdicts.wall()
        rule, value = credential.rule, credential.value
        if isinstance(rule, ForwardRule):
            assert isinstance(value, Inquiry)
            return self._decided(self._verdict(value, wall, may_verify, heard))
        if isinstance(rule, SignedRule):
            assert isinstance(value, Presented)
            # Without `may_verify`, because that would take as long as the HMAC itself.
            return verify_signature(value, rule.keys, asked.client, wall)
        assert isinstance(value, Unverified)
        digest = hashlib.blake2b(value.text.encode(), digest_size=32).digest()
        keys, version = self._keys(rule.tokens.keys)
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
        """The service's verdict.  Raises Undecided if the service has to be asked, or was asked and has given no
        verdict."""
        if heard is not None and heard.inquiry == inquiry:
            if heard.verdict is None:
                raise Undecided
            return heard.verdict
        verdict = self.verdicts.forwarded.find_verdict(inquiry, wall)
        if verdict is None:
            may_verify()
            raise Undecided(inquiry)
        return verdict

    def _decided(self, verdict: ForwardVerdict) -> Principal:
        """The principal of a verdict.  Raises the AuthRefused of a refusal."""
        if verdict.principal is not None:
            return verdict.principal
        if verdict.is_known:
            refusal = self._forbidden("The credential does not allow this")
            if isinstance(refusal, Forbidden) and verdict.challenge is not None:
                refusal.challenge = verdict.challenge
            raise refusal
        raise Unauthenticated(None, verdict.challenge or self._challenge())

    def _keys(self, keys: KeyRing | KeySource) -> tuple[Keys, int]:
        """The keys of a rule's issuer, and their version.  Raises Undecided if the rule has just been removed."""
        if not isinstance(keys, KeySource):
            return keys, 0
        found = self.verdicts.key_sets.find_set(keys)
        if found is None:
            raise Undecided
        return found, found.version

    def _keep(self, digest: bytes, rule: TokenRule, principal: Principal, version: int) -> None:
        """Remember the token with this digest; the oldest tokens make room for it."""
        # The permissions of the rule itself come first, and all its tokens share them.
        own = principal.permissions[len(rule.permissions) :]
        patterns = sum(1 + len(one.pattern.text) // 64 for one in own)
        if (before := self._known.pop(digest, None)) is not None:
            self._patterns -= before.patterns
        self._known[digest] = KnownToken(rule, principal, patterns, version)
        self._patterns += patterns
        while len(self._known) > MOST_KNOWN or self._patterns > MOST_PATTERNS:
            self._patterns -= self._known.popitem(last=False)[1].patterns


def _cookie(lines: Sequence[str], name: str) -> str | None:
    """The value of a cookie; None if there is none.  Raises BadCredential if two have the name, because the second may
    be another party's."""
    found = [
        value.strip(' "')
        for line in lines
        for pair in line.split(";")
        for key, mark, value in [pair.strip().partition("=")]
        if mark and key == name
    ]
    if len(found) > 1:
        raise BadCredential("There are two cookies of one name", "invalid_request")
    return found[0] if found else None
