"""Cache-Control, Vary and stream lifetimes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.protocol.freshness_headers import (
    LONGEST_CACHE_CONTROL,
    MAX_TTL_S,
    Freshness,
    Lifetime,
    forbids_storing,
    freshness_from_headers,
    lifetime_from_headers,
    parse_cache_control,
    parse_expires_at,
    parse_ttl,
)

_FIRST = datetime(1971, 1, 1, tzinfo=UTC).replace(tzinfo=None)
_LAST = datetime(9990, 1, 1, tzinfo=UTC).replace(tzinfo=None)


class TestCacheControl:
    @pytest.mark.parametrize(
        ("field", "directives"),
        [
            (None, {}),
            ("", {}),
            ("no-store", {"no-store": None}),
            ("Public, Max-Age=60", {"public": None, "max-age": "60"}),
            ("max-age=60,stale-while-revalidate=300", {"max-age": "60", "stale-while-revalidate": "300"}),
            ('private="set-cookie, x", max-age="5"', {"private": "set-cookie, x", "max-age": "5"}),
            ("max-age = 5", {"max-age": "5"}),
            (" , ,no-store,, ", {"no-store": None}),
            ("max-age=1, max-age=2", {"max-age": "1"}),
            ("@@, no-store", {"no-store": None}),
            ("no-store; x, public", {"no-store": None, "public": None}),
            ("max-age=", {"max-age": ""}),
            ('x="unterminated, no-store', {"x": "", "no-store": None}),
        ],
    )
    def test_directives(self, field: str | None, directives: dict[str, str | None]) -> None:
        assert dict(parse_cache_control(field)) == directives

    @pytest.mark.parametrize(
        "field", ["no-store", "NO-STORE", "private", 'private="x"', "public, no-store", "no-store=x"]
    )
    def test_no_store_and_private_forbid_in_any_form(self, field: str) -> None:
        assert forbids_storing(field)
        assert forbids_storing(parse_cache_control(field))

    @pytest.mark.parametrize("field", [None, "", "public", "no-cache", "max-age=0", 'x="no-store"', "not-private"])
    def test_nothing_else_does(self, field: str | None) -> None:
        assert not forbids_storing(field)

    @given(st.text())
    def test_no_field_is_an_error(self, field: str) -> None:
        parse_cache_control(field)

    @given(st.lists(st.sampled_from(["public", "max-age=5", 'x="a,b"', "s-maxage=1"])), st.integers(0, 5))
    def test_no_store_is_found_wherever_it_stands(self, others: list[str], at: int) -> None:
        others.insert(min(at, len(others)), "No-Store")
        assert forbids_storing(",".join(others))


class TestTtl:
    @pytest.mark.parametrize(("text", "ttl"), [("0", 0), ("3600", 3600), (" 5\t", 5), ("9" * 30, MAX_TTL_S)])
    def test_seconds(self, text: str, ttl: int) -> None:
        assert parse_ttl(text) == ttl

    @pytest.mark.parametrize(
        "text", [None, "", "+3600", "03600", "00", "3600.0", "3.6e3", "-1", "٣", "1 0", "0x10", "5\n"]
    )
    def test_invalid_by_the_grammar(self, text: str | None) -> None:
        assert parse_ttl(text) is None

    def test_a_number_of_a_million_digits_is_no_error(self) -> None:
        assert parse_ttl("1" * 1_000_000) == MAX_TTL_S


class TestExpiresAt:
    @pytest.mark.parametrize(
        ("text", "unix_s"),
        [
            ("1970-01-01T00:00:00Z", 0.0),
            ("1970-01-01t00:00:00z", 0.0),
            ("1970-01-01T00:00:00.5Z", 0.5),
            ("1970-01-01T00:00:00.123456789123Z", 0.123456789123),
            ("1970-01-01T01:30:00+01:30", 0.0),
            ("1969-12-31T23:00:00-01:00", 0.0),
            ("1970-01-01T00:00:00-00:00", 0.0),
            ("2016-12-31T23:59:60Z", 1_483_228_800.0),
            ("2024-02-29T00:00:00Z", 1_709_164_800.0),
        ],
    )
    def test_moments(self, text: str, unix_s: float) -> None:
        assert parse_expires_at(text) == pytest.approx(unix_s)

    @pytest.mark.parametrize(
        "text",
        [
            None, "", "soon", "1970-01-01", "1970-01-01T00:00:00", "1970-01-01 00:00:00Z", "1970-01-01T00:00Z",
            "1970-13-01T00:00:00Z", "2023-02-29T00:00:00Z", "1970-01-01T24:00:00Z", "1970-01-01T00:60:00Z",
            "1970-01-01T00:00:61Z", "1970-01-01T00:00:00.Z", "1970-01-01T00:00:00+24:00", "1970-01-01T00:00:00+0100",
            "0000-01-01T00:00:00Z", "+970-01-01T00:00:00Z", "٠٠٠٠-01-01T00:00:00Z",
        ],
    )  # fmt: skip
    def test_not_an_rfc_3339_date_time(self, text: str | None) -> None:
        assert parse_expires_at(text) is None

    @given(st.datetimes(_FIRST, _LAST), st.integers(-1439, 1439))
    def test_round_trip(self, moment: datetime, offset_minutes: int) -> None:
        aware = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
        assert parse_expires_at(aware.isoformat()) == pytest.approx(aware.timestamp(), abs=1e-4)
        in_utc = aware.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
        assert parse_expires_at(in_utc) == pytest.approx(aware.timestamp(), abs=1e-4)

    @given(
        st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|[+-][0-9]{2}:[0-9]{2})", fullmatch=True)
    )
    def test_no_moment_is_an_error(self, text: str) -> None:
        parse_expires_at(text)


def test_a_lifetime_is_read_from_headers_in_any_case() -> None:
    headers = CIMultiDict([("stream-ttl", "60"), ("STREAM-EXPIRES-AT", "1970-01-01T00:01:00Z")])
    assert lifetime_from_headers(headers) == Lifetime(60, 60.0)
    assert lifetime_from_headers({"Stream-TTL": "06"}) == Lifetime(None, None)


@pytest.mark.parametrize(
    ("headers", "fresh_s", "stale_s"),
    [
        ({}, 0, 0),
        ({"Cache-Control": "public, max-age=60, stale-while-revalidate=300"}, 60, 300),
        ({"Cache-Control": "public, max-age=60", "Age": "20"}, 40, 0),
        ({"Cache-Control": "max-age=60, stale-while-revalidate=300", "Age": "100"}, 0, 260),
        ({"Cache-Control": "max-age=60, s-maxage=5"}, 5, 0),
        ({"Cache-Control": "s-maxage=5, stale-while-revalidate=9"}, 5, 0),
        ({"Cache-Control": "max-age=60, must-revalidate, stale-while-revalidate=9"}, 60, 0),
        ({"Cache-Control": "max-age=60, no-cache"}, 0, 0),
        ({"Cache-Control": "max-age=60, no-store"}, 0, 0),
        ({"Cache-Control": "max-age=60, private"}, 0, 0),
        ({"Cache-Control": "max-age=-1"}, 0, 0),
        ({"Cache-Control": "max-age=1e3"}, 0, 0),
        ({"Cache-Control": "max-age=²"}, 0, 0),
        ({"Cache-Control": 'max-age="60"'}, 60, 0),
        ({"Cache-Control": "max-age=99999999999999"}, 31_536_000, 0),
        ({"Cache-Control": "max-age=60", "Age": "x"}, 60, 0),
        ({"Expires": "Thu, 01 Jan 2099 00:00:00 GMT", "Last-Modified": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0, 0),
    ],
)
def test_how_long_a_reply_may_be_repeated(headers: dict[str, str], fresh_s: float, stale_s: float) -> None:
    assert freshness_from_headers(CIMultiDict(headers)) == Freshness(fresh_s, stale_s)
    assert freshness_from_headers(headers) == Freshness(fresh_s, stale_s)


def test_lines_of_cache_control_are_one_list() -> None:
    lines = CIMultiDict([("Cache-Control", "max-age=60"), ("Cache-Control", "no-cache")])
    assert freshness_from_headers(lines) == Freshness()


def test_a_cache_control_that_no_origin_needs_is_not_read_and_forbids_to_store() -> None:
    """A reply's head may have 64 KiB of it."""
    assert dict(parse_cache_control("max-age=1," + "a" * (LONGEST_CACHE_CONTROL - 10)))["max-age"] == "1"
    directives = parse_cache_control("max-age=1," + "a" * (LONGEST_CACHE_CONTROL - 9))
    assert "max-age" not in directives
    assert forbids_storing(directives)
    assert "no-transform" in directives
