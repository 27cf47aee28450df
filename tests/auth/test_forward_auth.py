"""Verdicts of services: none outlasts its time, and requests that differ in the fields that are sent share none."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.auth import forward_auth
from gateway.auth.asked import Asked
from gateway.auth.forward_auth import (
    LEAST_LIVE_S,
    BadVerdict,
    ForwardRule,
    ForwardVerdict,
    ForwardVerdicts,
    Inquiry,
    inquire,
    is_by_cookie,
    own_credentials,
    read_verdict,
)
from gateway.auth.permissions import Action
from gateway.auth.verdict import BadCredential

RULE = ForwardRule(
    *(
        "default",
        "http://service.test/",
        "GET",
        ("authorization", "cookie", "x-key"),
        frozenset(),
        "token",
        True,
        True,
        False,
    ),
    *("x-user", "x-org", "x-streams", 5.0, 1.0, 60.0, 5.0),
)
READ = Asked("/s", (Action.READ,), authorization=("Bearer a",))


def inquiry(asked: Asked = READ, **more: Any) -> Inquiry:
    found = inquire(RULE._replace(**more), asked)
    assert found is not None
    return found


def verdict(status: int = 200, **headers: Any) -> ForwardVerdict:
    named = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
    return read_verdict(inquiry(), status, named, 100.0)


@pytest.mark.parametrize(
    "other",
    [
        {"authorization": ("Bearer b",)},
        {"authorization": ("Bearer a", "Bearer a")},
        {"cookies": ("a=b",)},
        {"headers": CIMultiDict({"X-Key": "1"})},
        {"path": "/t"},
        {"others": "x=1"},
        {"actions": (Action.APPEND,)},
        {"actions": (Action.READ, Action.FORK), "forked": "/a"},
        {"method": "HEAD"},
        {"host": "other.test"},
        {"scheme": "http"},
        {"client": "192.0.2.1"},
    ],
    ids=str,
)
def test_requests_with_different_inquiries_share_no_verdict(other: dict[str, Any]) -> None:
    assert inquiry(READ._replace(**other)) != inquiry()
    assert inquiry(READ._replace(headers=CIMultiDict({"X-Other": "1"}), is_from_site=False)) == inquiry()


def test_credential_in_the_query_is_sent_as_a_bearer_token_that_no_header_contradicts() -> None:
    sent = Asked("/s", (Action.READ,), parameters={"token": "t", "other": "o"})
    assert ("authorization", "Bearer t") in inquiry(sent).fields
    both = sent._replace(authorization=("Basic x",))
    assert [value for name, value in inquiry(both).fields if name == "authorization"] == ["Basic x"]
    assert inquire(RULE, Asked("/s", (Action.READ,))) is None
    assert inquire(RULE._replace(anonymous=True), Asked("/s", (Action.READ,))) is not None
    cookie = Asked("/s", (Action.READ,), cookies=("a=b",))
    assert [is_by_cookie(RULE, one) for one in (cookie, sent, READ._replace(cookies=("a=b",)))] == [True, False, False]
    with pytest.raises(BadCredential):
        inquire(RULE, sent._replace(parameters={"token": "t\r\nx-user: root"}))


@pytest.mark.parametrize(
    ("name", "value", "is_credential"),
    [
        *((name, "1", False) for name in ("x-real-ip", "cf-connecting-ip", "x-request-id", "traceparent")),
        *((name, "1", False) for name in ("save-data", "upgrade-insecure-requests", "sec-fetch-mode", "user-agent")),
        *(("x-api-key", value, bool(value)) for value in ("1", "")),
        *(("authorization", value, value.startswith("Bearer")) for value in ("Bearer a", "Basic eDp5", "negotiate x")),
    ],
)
def test_only_a_credential_in_a_header_rules_out_that_a_foreign_page_has_sent_the_cookie(
    name: str, value: str, *, is_credential: bool
) -> None:
    headers = CIMultiDict({"Cookie": "session=ada", name: value})
    sent = ("authorization", "cookie", name)
    asked = Asked(
        "/s",
        (Action.APPEND,),
        authorization=headers.getall("authorization", ()),
        cookies=("session=ada",),
        headers=headers,
    )
    for named in (("authorization", "cookie"), ("x-api-key", "user-agent", "sec-fetch-mode")):
        rule = RULE._replace(headers=sent, own_credentials=own_credentials(sent, named))
        is_named = name in named or name == "authorization"
        assert is_by_cookie(rule, asked) is not (is_credential and is_named)


@pytest.mark.parametrize(
    ("cache_control", "allowed_s", "refused_s"),
    [
        (None, 5, 1),
        ("public", 5, 1),
        ("max-age=30", 30, 30),
        ("max-age=30, private", 30, 30),
        ("s-maxage=50, max-age=30", 30, 30),
        ("max-age=900", 60, 60),
        ("max-age=30, no-store", 0, 0),
        ("no-cache", 0, 0),
        ("max-age=x", 0, 0),
        ("max-age=-1", 0, 0),
        ('private="x", max-age="7"', 7, 7),
        ("x" * 5_000, 0, 0),
    ],
)
def test_lifetime_of_a_verdict_is_the_stated_one_within_bounds(
    cache_control: str | None, allowed_s: float, refused_s: float
) -> None:
    headers: dict[str, Any] = {"Cache_Control": cache_control} if cache_control is not None else {}
    found = verdict(**headers)
    assert (found.until, found.live_until) == (100 + allowed_s, 100 + max(allowed_s, LEAST_LIVE_S))
    assert verdict(403, **headers).until == 100 + refused_s


def test_age_of_an_answer_counts() -> None:
    assert verdict(Cache_Control="max-age=30", Age="20").until == 110
    assert verdict(Cache_Control="max-age=30", Age="40").until == 100


@given(st.integers(100, 599))
def test_only_success_allows_and_only_401_and_403_refuse(status: int) -> None:
    if 200 <= status < 300:
        principal = verdict(status, X_User="ada", X_Org="blue").principal
        assert principal is not None
        assert (principal.name, principal.tenant) == ("ada", "blue")
        assert principal.allows(Action.READ, "/s")
        assert not principal.allows(Action.APPEND, "/s")
        assert not principal.allows(Action.READ, "/t")
    elif status in (401, 403):
        found = verdict(status, WWW_Authenticate="Bearer\r\nX: y" if status == 403 else "Basic")
        assert (found.principal, found.challenge) == (None, None if status == 403 else "Basic")
    else:
        with pytest.raises(BadVerdict):
            verdict(status)


@pytest.mark.parametrize(
    "headers",
    [{"X_User": "a" * 257}, {"X_Org": "a\tb"}, {"X_Streams": "rule /s"}, {"X_Streams": ";".join(["read /s"] * 65)}],
)
def test_answer_with_a_field_of_no_use_decides_nothing(headers: dict[str, Any]) -> None:
    with pytest.raises(BadVerdict):
        verdict(**headers)


class Verdicts(RuleBasedStateMachine):
    """Kept verdicts on a manual clock, with bounds that are soon reached."""

    INQUIRIES = tuple(inquiry(READ._replace(path=f"/{number}")) for number in range(6))

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.kept = ForwardVerdicts()
        self.model: dict[Inquiry, ForwardVerdict] = {}

    @rule(which=st.integers(0, 5), seconds=st.sampled_from([0.0, 1.0, 5.0, 60.0]), allows=st.booleans())
    def decide(self, which: int, seconds: float, allows: bool) -> None:
        wall = self.clock.wall()
        headers = CIMultiDict({"Cache-Control": f"max-age={seconds:.0f}"})
        found = read_verdict(self.INQUIRIES[which], 200 if allows else 403, headers, wall)
        self.kept.keep_verdict(self.INQUIRIES[which], found, wall)
        self.model[self.INQUIRIES[which]] = found

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @invariant()
    def finds_the_latest_or_none(self) -> None:
        wall = self.clock.wall()
        for one in self.INQUIRIES:
            found = self.kept.find_verdict(one, wall)
            assert found is None or (found == self.model[one] and wall < found.until)


TestVerdicts = Verdicts.TestCase


def test_kept_verdicts_are_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_auth, "MOST_VERDICTS", 10)
    kept, found = ForwardVerdicts(), verdict(Cache_Control="max-age=30")
    many = [inquiry(READ._replace(path=f"/{number}")) for number in range(30)]
    for one in many:
        kept.keep_verdict(one, found, 100.0)
    assert repr(kept) == "<ForwardVerdicts 10 kept>"
    assert [kept.find_verdict(one, 100.0) is not None for one in many] == [False] * 20 + [True] * 10
    monkeypatch.setattr(forward_auth, "MOST_VERDICT_BYTES", 20_000)
    for number in range(5):
        large = inquiry(READ._replace(authorization=("x" * 8_000, str(number))))
        kept.keep_verdict(large, found, 100.0)
    assert repr(kept) == "<ForwardVerdicts 2 kept>"
