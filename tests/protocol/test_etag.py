"""Minting, comparing and parsing entity tags."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol import etag, names
from gateway.protocol.coding import AcceptedCodings, Coding, negotiate
from gateway.protocol.etag import matched_coding, matches, of_coding, stream_identity

well_formed = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20).filter(
    names.is_well_formed
)


class TestMint:
    def test_the_form(self) -> None:
        assert etag.mint("k3", "-1", "0_5", False) == '"k3:-1:0_5"'

    def test_closing_changes_the_tag_although_it_adds_no_bytes(self) -> None:
        assert etag.mint("k3", "0_5", "0_5", True) == '"k3:0_5:0_5:c"'

    def test_another_life_of_the_stream_has_another_tag(self) -> None:
        assert etag.mint("k3", "-1", "0_5", False) != etag.mint("k4", "-1", "0_5", False)

    @given(st.tuples(well_formed, well_formed, st.booleans()), st.tuples(well_formed, well_formed, st.booleans()))
    def test_different_ranges_have_different_tags(
        self, left: tuple[str, str, bool], right: tuple[str, str, bool]
    ) -> None:
        assert (etag.mint("k", *left) == etag.mint("k", *right)) == (left == right)

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            (("a:b", "c"), ("a", "b:c")),
            (("a", "b:c"), ("a", "b")),
            (('a"', "c"), ("a%22", "c")),
            (("a:", "b"), ("a", ":b")),
        ],
    )
    def test_separators_inside_offsets_do_not_confuse(self, left: tuple[str, str], right: tuple[str, str]) -> None:
        assert etag.mint("k", *left, False) != etag.mint("k", *right, False)
        assert etag.mint("k", *left, False) != etag.mint("k", *right, True)

    @given(well_formed, well_formed, st.booleans())
    def test_a_tag_is_always_one_valid_quoted_string_that_matches_itself(
        self, start: str, end: str, is_closed: bool
    ) -> None:
        tag = etag.mint("k", start, end, is_closed)
        assert tag.count('"') == 2
        assert matches(f'"other", {tag}', tag)


class TestMatches:
    @pytest.mark.parametrize(
        "field",
        [
            '"a"',
            'W/"a"',
            '"x", "a"',
            '"a","x"',
            ' "a" ',
            ', ,"a",,"x" ,',
            '"x" , W/"a"',
            "*",
            " * ",
            '"x,y", "a"',
            '"", "a"',
        ],
    )
    def test_named(self, field: str) -> None:
        assert matches(field, '"a"')

    @pytest.mark.parametrize(
        "field",
        [
            None, "", '"b"', "a",
            '"a', 'a"', '"a" "a"', '"a" x', 'x, "a"', '"a", x', '*, "a"', '"a", *', '"x, a"', 'w/"a"',
            '"A"', 'W/ "a"', "**", '"a";q=1', '"a b", "a"', '"x""a"',
        ],
    )  # fmt: skip
    def test_not_named_or_malformed(self, field: str | None) -> None:
        assert not matches(field, '"a"')

    def test_a_weak_tag_of_ours_is_compared_weakly(self) -> None:
        assert matches('"a"', 'W/"a"')
        assert matches('W/"a"', 'W/"a"')

    def test_a_tag_inside_another_is_not_it(self) -> None:
        assert not matches('"k:-1:0_5:c"', '"k:-1:0_5"')

    @given(st.text(alphabet='"W/a, *\\x\t'))
    def test_no_field_is_an_error(self, field: str) -> None:
        matches(field, '"a"')


ALL = tuple(Coding)
GZIP_ONLY = negotiate("gzip", None, ALL)
ANY = negotiate("gzip, br, zstd", None, ALL)


class TestCodings:
    def test_a_coding_is_the_last_part(self) -> None:
        assert of_coding('"k:-1:0_5"', Coding.GZIP) == '"k:-1:0_5:gzip"'
        assert of_coding('"k:-1:0_5:c"', Coding.BR) == '"k:-1:0_5:c:br"'

    @given(
        st.tuples(well_formed, well_formed, st.booleans(), st.none() | st.sampled_from(ALL)),
        st.tuples(well_formed, well_formed, st.booleans(), st.none() | st.sampled_from(ALL)),
    )
    def test_every_coding_of_every_range_has_a_tag_of_its_own(
        self, left: tuple[str, str, bool, Coding | None], right: tuple[str, str, bool, Coding | None]
    ) -> None:
        def tag(start: str, end: str, is_closed: bool, coding: Coding | None) -> str:
            plain = etag.mint("k", start, end, is_closed)
            return plain if coding is None else of_coding(plain, coding)

        assert (tag(*left) == tag(*right)) == (left == right)
        assert matches(tag(*left), tag(*right)) == (left == right)

    @pytest.mark.parametrize(
        ("field", "accepted", "expected"),
        [
            (None, ANY, None),
            ("*", ANY, "*"),
            ('"k:1:2"', ANY, '"k:1:2"'),
            ('"k:1:2:gzip"', ANY, '"k:1:2"'),
            ('W/"k:1:2:c:gzip"', ANY, '"k:1:2:c"'),
            ('"a:zstd", "b:br" ,W/"c:gzip",', ANY, '"a", "b", "c"'),
            ('"k:1:2:br", "k:1:2:gzip"', GZIP_ONLY, '"k:1:2"'),
            ('"k:1:2:br"', GZIP_ONLY, None),
            ('"k:1:2:gzip"', AcceptedCodings(), '"k:1:2:gzip"'),
            ('"k:1:2"', negotiate("gzip, identity;q=0", None, ALL), None),
            ('"k:1:2:gzip" x', ANY, '"k:1:2:gzip" x'),
            ("k:1:2:gzip", ANY, "k:1:2:gzip"),
        ],
    )
    def test_tags_of_accepted_codings_stand_for_the_bytes(
        self, field: str | None, accepted: AcceptedCodings, expected: str | None
    ) -> None:
        assert etag.without_codings(field, accepted) == expected

    @given(well_formed, well_formed, st.booleans(), st.sampled_from(ALL), st.booleans())
    def test_the_tag_of_a_coding_is_recognised(
        self, start: str, end: str, is_closed: bool, coding: Coding, is_weak: bool
    ) -> None:
        plain = etag.mint("k", start, end, is_closed)
        field = ("W/" if is_weak else "") + of_coding(plain, coding)
        assert matches(etag.without_codings(field, ANY), plain)
        assert matched_coding(field, plain, ANY) is coding
        accepted = negotiate(coding.value, None, ALL)
        assert matched_coding(f'"x", {field}', plain, accepted) is coding
        others = negotiate(", ".join(other.value for other in ALL if other is not coding), None, ALL)
        assert not matches(etag.without_codings(field, others), plain)
        assert matched_coding(field, plain, others) is None

    def test_the_preferred_one_of_several_codings_is_named(self) -> None:
        field = '"k:1:2", "k:1:2:gzip", "k:1:2:zstd"'
        assert matched_coding(field, '"k:1:2"', ANY) is Coding.ZSTD
        assert matched_coding(field, '"k:1:2"', negotiate("gzip, zstd;q=0.5", None, ALL)) is Coding.GZIP
        assert matched_coding('"k:1:2"', '"k:1:2"', ANY) is None
        assert matched_coding("*", '"k:1:2"', ANY) is None

    @given(st.text(alphabet='"W/a:gzip, *\\x\t'))
    def test_no_field_is_an_error(self, field: str) -> None:
        etag.without_codings(field, ANY)
        matched_coding(field, '"a"', ANY)


class TestStreamIdentity:
    @pytest.mark.parametrize(
        ("etag", "identity"),
        [
            ('"abc:-1:0_5"', "abc"),
            ('"abc:-1:0_5:c"', "abc"),
            ('W/"abc:-1:0_5"', "abc"),
            ('"a:b:c:-1:0_5"', "a:b:c"),
            ('"L3YxL3N0cmVhbQ==:-1:0_5"', "L3YxL3N0cmVhbQ=="),
            ('"0_5"', None),
            ('":-1:0_5"', None),
            ('"abc:0_1:0_5"', None),
            ('"abc:-1:0_6"', None),
            ('"abc:-1:0_5:d"', None),
            ("abc:-1:0_5", None),
            ('"', None),
            ("", None),
            (None, None),
        ],
    )
    def test_only_the_spec_form_for_exactly_these_offsets_names_a_stream(
        self, etag: str | None, identity: str | None
    ) -> None:
        assert stream_identity({"ETag": etag} if etag is not None else {}, "-1", "0_5") == identity

    def test_the_tag_of_a_cache_names_no_stream(self) -> None:
        headers = {"ETag": '"id:-1:0_5"', "Cache-Status": "shield; hit"}
        assert stream_identity(headers, "-1", "0_5") is None
