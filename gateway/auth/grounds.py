"""The rules that have led to a verdict.  After a reload, they show whether the new rules lead to the same verdict.

The gateway does not keep the credential of a live read, so it cannot authorise the read again after a reload.  Instead,
the read's verdict stays valid while two kinds of rules are unchanged: the rule that decided, and the rules before it,
which did not apply to the credential.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gateway.auth.forward_auth import ForwardRule
from gateway.auth.permissions import Pattern
from gateway.auth.questions import KeySource
from gateway.auth.rules import JwtRule, PublicRule, Rule, Rules, SignedRule

if TYPE_CHECKING:
    from gateway.auth.keys import KeyRing


class Grounds(NamedTuple):
    """The rules that have led to a verdict."""

    route: str
    rules: Rules
    """All rules up to and including the rule that decided.  For a public stream: all rules of the route."""
    is_public: bool = False

    @property
    def key_source(self) -> KeySource | None:
        """The source of the deciding rule's keys; None if the issuer does not publish its keys."""
        last = self.rules[-1]
        keys = last.tokens.keys if isinstance(last, JwtRule) and not self.is_public else None
        return keys if isinstance(keys, KeySource) else None

    def stand_in(self, rules: Rules, key_id: str) -> bool:
        """Return whether the new `rules` allow the same reads.  `key_id` is the id of the key that signed the
        credential.

        Public rules can be skipped, because they refuse nothing.
        """
        earlier = self.rules if self.is_public else self.rules[:-1]
        did_not_know = {_known_by(one) for one in earlier if not isinstance(one, PublicRule)}
        for rule in rules:
            if isinstance(rule, PublicRule):
                continue
            if not self.is_public and _accepts(self.rules[-1], rule, key_id):
                return True
            if _known_by(rule) not in did_not_know:
                return False
        return self.is_public and _patterns(self.rules) <= _patterns(rules)


def _known_by(rule: Rule) -> object:
    """Return the part of a rule that determines to which credentials the rule applies."""
    match rule:
        case JwtRule():
            return JwtRule, rule.tokens.issuer, rule.cookie, rule.parameter
        case SignedRule():
            return SignedRule, rule.cookie
        case ForwardRule() | PublicRule():
            return rule


def _patterns(rules: Rules) -> frozenset[Pattern]:
    return frozenset(one for rule in rules if isinstance(rule, PublicRule) for one in rule.patterns)


def _accepts(before: Rule, after: Rule, key_id: str) -> bool:
    """Return whether the rule `after` accepts all credentials with this key that the rule `before` accepted."""
    match before, after:
        case JwtRule(), JwtRule():
            same = before._replace(tokens=before.tokens._replace(keys=after.tokens.keys)) == after
            return same and _has_key(before.tokens.keys, after.tokens.keys, key_id)
        case SignedRule(), SignedRule():
            used = [one for one in before.keys if one.id == key_id]
            return before.cookie == after.cookie and all(one in after.keys for one in used)
        case _:
            return before == after


def _has_key(before: KeyRing | KeySource, after: KeyRing | KeySource, key_id: str) -> bool:
    if isinstance(before, KeySource) or isinstance(after, KeySource):
        # Compare only the sources.  If an issuer withdraws a published key, the next fetch of the key set ends the
        # reads whose tokens were signed with this key.
        return before == after
    return after.names() >= before.names_of(key_id)
