"""Which of an origin's replies may be shared, by their headers."""

from __future__ import annotations

import pytest
from multidict import CIMultiDict

from gateway.protocol.sharing import Ground, SharingRules, allows, cure

RULES = SharingRules(frozenset({"authorization", "cookie"}), frozenset({"AWSALB", "AWSALBCORS"}))


@pytest.mark.parametrize(
    ("vary", "is_shared"),
    [
        ("", True),
        (" , ", True),
        ("Accept-Encoding", True),
        ("accept-encoding, AUTHORIZATION", True),
        ("Cookie", True),
        ("Origin", True),
        ("*", False),
        ("Accept-Encoding, *", False),
        ("Accept-Language", False),
        ("Accept-Encoding, X-Tenant", False),
        ("Origin, X-Tenant", False),
    ],
)
@pytest.mark.parametrize("is_stored", [True, False])
def test_a_reply_that_varies_on_a_header_of_its_requester_is_for_that_one_alone(
    vary: str, is_shared: bool, is_stored: bool
) -> None:
    ground = RULES.why_alone(CIMultiDict({"Vary": vary}), is_stored=is_stored)
    assert ground is (None if is_shared else Ground.VARY)


@pytest.mark.parametrize(
    ("vary", "allowed", "depends"),
    [
        ("Origin", None, True),
        ("accept-encoding, ORIGIN", None, True),
        ("Origin", "https://a.example", True),
        ("Origin", " * ", False),
        ("Accept-Encoding", "https://a.example", False),
        (None, None, False),
    ],
)
def test_a_reply_depends_on_the_web_origin_unless_it_allows_any(
    vary: str | None, allowed: str | None, depends: bool
) -> None:
    """An absent Access-Control-Allow-Origin proves nothing: the shared request had no Origin."""
    named = {"Vary": vary, "Access-Control-Allow-Origin": allowed}
    headers = CIMultiDict({name: value for name, value in named.items() if value is not None})
    assert RULES.varies_by_origin(headers) is depends
    assert not RULES._replace(has_cors=True).varies_by_origin(headers)
    assert not RULES._replace(credential_headers=frozenset({"origin"})).varies_by_origin(headers)


@pytest.mark.parametrize(
    ("lines", "is_shared"),
    [
        (["AWSALB=x; Path=/"], True),
        (["AWSALB=x", " AWSALBCORS = y; SameSite=None"], True),
        (["AWSALB=x", "session=1"], False),
        (["awsalb=x"], False),
        (["AWSALB"], True),
        (["=x"], False),
        ([""], False),
    ],
)
def test_a_reply_that_sets_a_cookie_is_for_one_unless_each_is_ignored(lines: list[str], is_shared: bool) -> None:
    headers = CIMultiDict([("Set-Cookie", line) for line in lines])
    for is_stored in (True, False):
        assert RULES.why_alone(headers, is_stored=is_stored) is (None if is_shared else Ground.COOKIE)


@pytest.mark.parametrize(
    ("said", "stored", "passed_on"),
    [
        ("private", False, False),
        ('max-age=60, private="Set-Cookie"', False, False),
        ("no-store", False, True),
        ("no-cache", True, True),
        ("public, max-age=60", True, True),
    ],
)
def test_no_store_forbids_only_to_store(said: str, stored: bool, passed_on: bool) -> None:
    headers = CIMultiDict({"Cache-Control": said})
    assert (RULES.why_alone(headers, is_stored=True) is None) is stored
    assert (RULES.why_alone(headers, is_stored=False) is None) is passed_on


def test_lines_of_one_field_are_one_list() -> None:
    headers = CIMultiDict([("Vary", "Accept-Encoding"), ("Vary", "X-Tenant"), ("Cache-Control", "max-age=1")])
    assert RULES.why_alone(headers, is_stored=True) is Ground.VARY
    headers = CIMultiDict([("Cache-Control", "max-age=1"), ("Cache-Control", "private")])
    assert RULES.why_alone(headers, is_stored=False) is Ground.CACHE_CONTROL


def test_each_ground_names_its_cure() -> None:
    said = CIMultiDict([("Set-Cookie", "lb=1; Path=/"), ("Set-Cookie", "AWSALB=2"), ("Vary", "X-Tenant, Origin")])
    said["Cache-Control"] = "private"
    cures = {ground: cure(ground, said, RULES) or "" for ground in Ground}
    assert 'route.ignore_set_cookie = ["lb"]' in cures[Ground.COOKIE]
    assert "private" in cures[Ground.CACHE_CONTROL]
    assert "varies on x-tenant; add these names to route.credential_headers" in cures[Ground.VARY]
    assert "[route.cors]" in cures[Ground.ORIGIN]
    assert cure("encoded", said, RULES) is None


@pytest.mark.parametrize(
    ("allowed", "is_allowed"),
    [
        (None, False),
        ("", False),
        (" * ", True),
        ("https://a.example", True),
        ("https://b.example", False),
        ("https://a.example, https://b.example", False),
        ("null", False),
    ],
)
def test_a_reply_allows_any_web_origin_or_the_one_it_names(allowed: str | None, is_allowed: bool) -> None:
    headers = CIMultiDict({"Access-Control-Allow-Origin": allowed} if allowed is not None else {})
    assert allows(headers, "https://a.example") is is_allowed
