"""Explanations for the operator: which rule of a route decides a request, for whom, and why.

The verdict is the guard's own, so an explanation cannot differ from the answer that a client gets.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.auth.asked import Asked
from gateway.auth.forward import ForwardRule
from gateway.auth.guard import Guard
from gateway.auth.questions import Undecided
from gateway.auth.rules import JwtRule, PublicRule, Rule, SignedRule
from gateway.auth.verdict import AuthRefused, BadCredential, Concealed, Principal


class Explanation(NamedTuple):
    """A verdict, and the reasons for it."""

    status: int
    """200 if the request is allowed, else the status of the refusal."""
    text: str
    """Why, in one line."""
    rule: int | None
    """The index of the deciding rule; None if no rule knows the request's credential."""
    passed: tuple[str, ...]
    """Why each earlier rule does not decide."""
    principal: Principal | None
    """The principal; None for public streams, and if the credential is not valid."""
    granted_by: str
    """The permission that allows the request; empty if none does."""


def explain(guard: Guard, asked: Asked) -> Explanation:
    """Judge the request, and explain the verdict."""
    principal: Principal | None = None
    decides: Rule | None = None
    try:
        credential, _ = guard.find_credential(asked)
        if credential is not None:
            decides = credential.rule
            principal = guard.identify(credential, asked)
    except (AuthRefused, BadCredential, Undecided):
        # `judge` gives the reason.
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
        guard.judge(asked)
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
        text = "A running gateway asks for it by URL: this cannot be decided here"
        return Explanation(error.status, text, rule, tuple(passed), principal, "")
    except AuthRefused as error:
        return Explanation(error.status, str(error), rule, tuple(passed), principal, "")
    text = "The stream is public" if principal is None else "A permission allows it"
    return Explanation(200, text, rule, tuple(passed), principal, _granted_by(principal, asked))


def _is_public(rule: Rule, asked: Asked) -> bool:
    return isinstance(rule, PublicRule) and asked.is_read and rule.matches(asked.path)


def _granted_by(principal: Principal | None, asked: Asked) -> str:
    """The permissions that allow the actions, each once."""
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
            return "the request has no credential that its service is sent"
