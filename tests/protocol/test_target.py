"""Canonical request targets."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.target import (
    SEGMENT_SAFE,
    BadTarget,
    Target,
    is_reserved,
    parse_target,
    unescaped_delimiters,
    upstream_query,
    without_authority,
)


def again(target: Target) -> str:
    """The text of a canonical target, as in a request to the origin with the client's own parameters."""
    query = upstream_query(target, offset=target.offset, live=target.live, cursor=target.cursor)
    return target.path + ("?" + query if query else "")


class TestPath:
    @pytest.mark.parametrize(
        ("raw", "path"),
        [
            ("/", "/"),
            ("/v1/stream/a", "/v1/stream/a"),
            ("/%61%2D%7E", "/a-~"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
            ("/../../a", "/a"),
            ("/a//b", "/a//b"),
            ("/a//", "/a//"),
            ("/a//../b", "/a/b"),
            ("/.a/..b/c.", "/.a/..b/c."),
            ("/a%252e", "/a%252e"),
            ("/a|b", "/a%7Cb"),
            ("/a%7cb", "/a%7Cb"),
            ("/é", "/%C3%A9"),
            ("/%c3%a9", "/%C3%A9"),
            ("/\udcff", "/%FF"),
            ("/a:b@c;d=e,f!$&'()*+", "/a:b@c;d=e,f!$&'()*+"),
            ("http://example.org/a/../b", "/b"),
            ("HTTPS://example.org:8443/a", "/a"),
            ("http://example.org", "/"),
            ("http://[::1]:80/a", "/a"),
        ],
    )
    def test_canonical(self, raw: str, path: str) -> None:
        target = parse_target(raw)
        assert target.path == path
        assert parse_target(path).path == path

    @pytest.mark.parametrize(
        "raw", ["/__ds", "/__ds/x", "/a/_%5fds/", "/a%2f__ds%2Fx", "/__ds\\x", "/a%5c__ds;b", "/__ds%3bb"]
    )
    def test_reserved(self, raw: str) -> None:
        assert is_reserved(parse_target(raw).path)

    @pytest.mark.parametrize("raw", ["/", "/a__ds/x", "/__dsx", "/__ds%20x", "/__DS/x", "/a-__ds"])
    def test_not_reserved(self, raw: str) -> None:
        assert not is_reserved(parse_target(raw).path)

    def test_absolute_form_names_its_authority(self) -> None:
        assert parse_target("http://Example.org:80?offset=1") == Target("/", "", "1", None, None, "example.org:80")
        assert parse_target("/a").authority is None

    @pytest.mark.parametrize(
        ("raw", "complaint"),
        [
            ("", "Invalid request target"),
            ("*", "Invalid request target"),
            ("a/b", "Invalid request target"),
            ("example.org:443", "Invalid request target"),
            ("ftp://example.org/", "Invalid request target"),
            ("http:///a", "Invalid host"),
            ("http://user@example.org/", "Invalid host"),
            ("http://a b/", "Invalid host"),
            ("http://[::1/", "Invalid host"),
            ("//a", "two slashes"),
            ("//", "two slashes"),
            ("///a", "two slashes"),
            ("/.//a", "two slashes"),
            ("/a/..//b", "two slashes"),
            ("/%2E//b?c", "two slashes"),
            ("http://example.org//a", "two slashes"),
            ("/a b", "Control character"),
            ("/a\r\nb", "Control character"),
            ("/a\n", "Control character"),
            ("/a\x00", "Control character"),
            ("/a%00", "Control character"),
            ("/a%0d%0A", "Control character"),
            ("/a%7f", "Control character"),
            ("/a?b=\x01", "Control character"),
            ("/a#b", "Fragment"),
            ("/a?b#c", "Fragment"),
            ("/%", "Invalid percent-encoding"),
            ("/%4", "Invalid percent-encoding"),
            ("/%zz", "Invalid percent-encoding"),
            ("/?a=%", "Invalid percent-encoding"),
            ("/?%u0041=1", "Invalid percent-encoding"),
            ("/?offset=%ff", "not valid UTF-8"),
        ],
    )
    def test_refused_with_one_line(self, raw: str, complaint: str) -> None:
        with pytest.raises(BadTarget, match=complaint) as error:
            parse_target(raw)
        assert "\n" not in str(error.value)


class TestQuery:
    def test_protocol_parameters_are_taken_out_and_decoded(self) -> None:
        assert parse_target("/s?offset=0%5F1&live=long-poll&cursor=17") == Target("/s", "", "0_1", "long-poll", "17")

    def test_absent_and_empty_are_told_apart(self) -> None:
        assert parse_target("/s").offset is None
        assert parse_target("/s?offset=").offset == ""
        assert parse_target("/s?offset").offset == ""

    @pytest.mark.parametrize("name", ["offset", "live", "cursor"])
    @pytest.mark.parametrize("second", ["{0}=2", "{0}=1", "{0}", "%{1:02x}{2}=2"])
    def test_each_may_come_once_however_it_is_spelled(self, name: str, second: str) -> None:
        pair = second.format(name, ord(name[0]), name[1:])
        with pytest.raises(BadTarget, match=f"^Multiple {name} parameters not allowed$"):
            parse_target(f"/s?{name}=1&x=y&{pair}")

    def test_names_are_case_sensitive(self) -> None:
        assert parse_target("/s?Offset=1&offset=2") == Target("/s", "Offset=1", "2", None, None)

    @pytest.mark.parametrize(
        ("query", "others"),
        [
            ("b=2&a=1", "a=1&b=2"),
            ("a=2&b=0&a=1", "a=2&a=1&b=0"),
            ("&&a=1&", "a=1"),
            ("a", "a"),
            ("a=", "a="),
            ("a=b=c", "a=b=c"),
            ("a=%7e%2f", "a=~%2F"),
            ("%61=1", "a=1"),
            ("a=+%2b%20", "a=+%2B%20"),
            ("a=é", "a=%C3%A9"),
            ("a=%0a", "a=%0A"),
            ("a=[x]", "a=%5Bx%5D"),
            ("a=/?:@", "a=/?:@"),
            ("a=%26%3D", "a=%26%3D"),
            ("a%3D=1", "a%3D=1"),
            ("=1", "=1"),
        ],
    )
    def test_other_parameters_are_kept_sorted_and_spelled_one_way(self, query: str, others: str) -> None:
        assert parse_target("/s?" + query).query == others

    def test_a_plus_in_a_protocol_parameter_is_a_space_as_it_is_to_origins(self) -> None:
        assert parse_target("/s?offset=a+b").offset == "a b"
        assert parse_target("/s?offset=a%2Bb").offset == "a+b"


class TestUpstreamQuery:
    def test_all_parameters_are_sorted_together(self) -> None:
        target = parse_target("/s?z=1&kind=x&a=1&offset=9")
        assert (
            upstream_query(target, offset="0_1", live="sse", cursor="5")
            == "a=1&cursor=5&kind=x&live=sse&offset=0_1&z=1"
        )

    def test_what_is_none_is_left_out(self) -> None:
        assert upstream_query(parse_target("/s"), offset=None) == ""
        assert upstream_query(parse_target("/s"), offset="-1") == "offset=-1"
        assert upstream_query(parse_target("/s?b&a"), offset="-1") == "a&b&offset=-1"

    def test_values_are_encoded(self) -> None:
        assert upstream_query(parse_target("/s"), offset="a+b%:;") == "offset=a%2Bb%25%3A%3B"


@given(
    st.lists(st.tuples(st.text(max_size=4), st.text(max_size=6)), max_size=5),
    st.one_of(st.none(), st.text(max_size=10)),
    st.randoms(use_true_random=False),
)
def test_every_value_survives_and_order_of_names_does_not_matter(
    pairs: list[tuple[str, str]], offset: str | None, rng: object
) -> None:
    pairs = [(name, value) for name, value in pairs if name not in ("offset", "live", "cursor")]
    sent = [*pairs, *([("offset", offset)] if offset is not None else [])]
    text = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sent)
    target = parse_target("/s?" + text)
    assert target.offset == offset
    got = parse_qsl(upstream_query(target, offset=offset), keep_blank_values=True)
    # Equal names keep their order; the others are sorted by their encoded text.
    for name in {name for name, _ in sent}:
        assert [v for n, v in got if n == name] == [v for n, v in sent if n == name]
    assert len(got) == len(sent)
    by_name = dict(sent)
    shuffled = list(by_name.items())
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in by_name.items())
    other = "&".join(f"{quote(n, safe='')}={quote(v, safe='')}" for n, v in shuffled)
    assert parse_target("/s?" + one) == parse_target("/s?" + other)


@given(
    st.lists(
        st.sampled_from(
            ["/", ".", "..", "%2e", "%2F", "%2f", "%41", "%c3", "a", "?", "&", "=", "+", "offset", "é", "|"]
        ),
        max_size=20,
    ).map("".join)
)
def test_canonical_is_a_fixed_point_and_only_ever_a_bad_target(tail: str) -> None:
    try:
        target = parse_target("/" + tail)
    except BadTarget:
        return
    assert again(target).isascii()
    assert parse_target(again(target)) == target
    segments = target.path.split("/")
    assert "." not in segments
    assert ".." not in segments


@given(st.text(max_size=30))
def test_any_text_raises_at_most_bad_target(raw: str) -> None:
    for text in (raw, "/" + raw, "/?" + raw, "http://" + raw):
        complaint = ""
        try:
            parse_target(text)
        except BadTarget as error:
            complaint = str(error)
        assert "\n" not in complaint


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/s?a=http://b@c/", "/s?a=http://b@c/"),
        ("http://joe:secret@host/s?a", "/s?a"),
        ("http://host", "/"),
        ("*", "*"),
    ],
)
def test_a_target_without_authority_holds_no_password(target: str, path: str) -> None:
    assert without_authority(target) == path


@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), st.sampled_from(["", "!'()*", SEGMENT_SAFE])
)
def test_all_spellings_of_a_segment_have_one_without_needless_escapes(name: str, unescaped: str) -> None:
    path = parse_target(f"/streams/{quote(name, safe=unescaped)}/x").path
    if name not in (".", ".."):
        assert unescaped_delimiters(path) == f"/streams/{quote(name, safe=SEGMENT_SAFE)}/x"
        assert unquote(unescaped_delimiters(path)) == f"/streams/{name}/x"
