"""Explains to an operator which rule of a route decides a request, and why.

The explanation uses the verdict of the route's `Guard`, so it cannot differ from the answer to a client.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.auth.asked import Asked
from gateway.auth.forward_auth import ForwardRule
from gateway.auth.guard import Guard
from gateway.auth.questions import Heard, Undecided
from gateway.auth.rules import JwtRule, PublicRule, Rule, SignedRule
from gateway.auth.verdict import AuthRefused, BadCredential, Concealed, Principal


class Explanation(NamedTuple):
    """A verdict, and the reasons for it."""

    status: int
    """200 if the request is allowed, otherwise the status of the refusal."""
    text: str
    """The reason in one line."""
    rule: int | None
    """The index of the rule that decides; None if no rule applies to the request's credential."""
    passed: tuple[str, ...]
    """For each earlier rule, the reason why it does not decide."""
    principal: Principal | None
    """The party that the credential identifies; None for public streams and for invalid credentials."""
    granted_by: str
    """The permissions that allow the request; empty if no permission allows it."""


def explain(guard: Guard, asked: Asked, heard: Heard | None = None, *, has_asked: bool = False) -> Explanation:
    """Authorise the request, and explain the verdict.

    `heard` is the answer of a service.  `has_asked` means that the services and key sets of the rules have been asked.
    """
    principal: Principal | None = None
    decides: Rule | None = None
    try:
        credential, _ = guard.find_credential(asked)
        if credential is not None:
            decides = credential.rule
            principal = guard.identify(credential, asked, heard=heard)
    except (AuthRefused, BadCredential, Undecided):
        # The call of `judge` below raises the same exception.
        pass
    if decides is None:
        decides = next((one for one in guard.rules if _is_public(one, asked)), None)
    passed: list[str] = []
    rule = None
    for index, one in enumerate(guard.rules):
        if one is decides:
            rule = index
            break
        passed.append(_why_not(one, asked))
    try:
        guard.judge(asked, heard=heard)
    except Concealed as error:
        return Explanation(
            error.status,
            "The credential does not allow this, and the route conceals it",
            rule,
            tuple(passed),
            principal,
            "",
        )
    except Undecided as error:
        text = str(error) if has_asked else "A rule must ask a URL about this request: --probe does so"
        return Explanation(error.status, text, rule, tuple(passed), principal, "")
    except AuthRefused as error:
        return Explanation(error.status, str(error), rule, tuple(passed), principal, "")
    text = "The stream is public" if principal is None else "A permission allows it"
    return Explanation(200, text, rule, tuple(passed), principal, _granted_by(principal, asked))


def _is_public(rule: Rule, asked: Asked) -> bool:
    return isinstance(rule, PublicRule) and asked.is_read and rule.matches(asked.path)


def _granted_by(principal: Principal | None, asked: Asked) -> str:
    """Return the permissions that allow the requested actions, without duplicates."""
    if principal is None:
        return ""
    found = (
        next((str(one) for one in principal.permissions if one.allows(action, asked.path, principal.claims)), "")
        for action in asked.actions
    )
    return "; ".join(dict.fromkeys(found))


def _why_not(rule: Rule, asked: Asked) -> str:
    match rule:
        case PublicRule():
            return "none of its patterns matches the path" if asked.is_read else "it is for reads alone"
        case JwtRule():
            return "the request has no token of this issuer"
        case SignedRule():
            return "the request has no signature"
        case ForwardRule():
            return "the request has no credential for its service"
