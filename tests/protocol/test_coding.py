"""Codings that clients accept, and types worth coding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.coding import (
    LONGEST_LIST,
    PLAIN,
    AcceptedCodings,
    Coding,
    is_compressible,
    negotiate,
    negotiate_read,
)

ZSTD, BR, GZIP = Coding.ZSTD, Coding.BR, Coding.GZIP
ALL = (ZSTD, BR, GZIP)


def accepted(accept_encoding: str | None, offered: tuple[Coding, ...] = ALL) -> AcceptedCodings:
    return negotiate(accept_encoding, None, offered)


class TestNegotiate:
    @pytest.mark.parametrize(
        ("accept_encoding", "best"),
        [
            (None, None),
            ("", None),
            ("identity", None),
            ("gzip", GZIP),
            ("x-gzip", GZIP),
            ("GZip", GZIP),
            ("br", BR),
            ("zstd", ZSTD),
            ("gzip, deflate, br, zstd", ZSTD),
            ("gzip,br", BR),
            ("deflate, compress, dcb", None),
            ("gzip;q=1, br;q=0.5", GZIP),
            ("gzip; q=0.001", GZIP),
            ("gzip ;\tQ=0.9 , br;q=0.8", GZIP),
            ("*", ZSTD),
            ("*;q=0", None),
            ("*;q=0, gzip", GZIP),
            ("*, zstd;q=0", BR),
            ("gzip;q=0.2, *;q=0.5", ZSTD),
            ("gzip;q=0", None),
            ("gzip;q=0.0", None),
            ("gzip;q=0.000, br;q=0", None),
            ("gzip, identity;q=0.5", GZIP),
            ("gzip;q=0.5, identity", None),
            ("gzip;q=0.5, identity;q=0.5", GZIP),
            ("gzip;q=0.5, identity;q=0", GZIP),
            ("identity;q=0", None),
            ("gzip, gzip;q=0", None),
            ("gzip;q=0, gzip", None),
            ("gzip;q=0, x-gzip", None),
        ],
    )
    def test_the_highest_weight_wins(self, accept_encoding: str | None, best: Coding | None) -> None:
        assert accepted(accept_encoding).best is best

    @pytest.mark.parametrize(
        "member",
        ["gzip;q=2", "gzip;q=-1", "gzip;q=", "gzip;q=0.0001", "gzip;q=.5", "gzip;q=1.5", "gzip;level=9", "gzip q=1",
         "gzip;q=0.5;q=1", "gzip/br", "gzip=1"],
    )  # fmt: skip
    def test_a_malformed_member_is_a_refusal(self, member: str) -> None:
        assert accepted(member).best is None
        assert accepted(f"{member}, br").codings == {BR}
        assert accepted(f"*, {member}").codings == {ZSTD, BR}

    @pytest.mark.parametrize(
        ("accept_encoding", "accepts_identity"),
        [
            ("gzip", True),
            ("", True),
            ("identity;q=0", False),
            ("*;q=0", False),
            ("*;q=0, identity", True),
            ("gzip, *;q=0", False),
            ("gzip, identity;q=0.1, *;q=0", True),
        ],
    )
    def test_identity_is_refused_only_explicitly(self, accept_encoding: str, accepts_identity: bool) -> None:
        assert accepted(accept_encoding).accepts_identity is accepts_identity

    def test_the_order_of_the_offer_decides_among_equals(self) -> None:
        assert accepted("gzip, br, zstd", (GZIP, BR)).best is GZIP
        assert accepted("gzip, br, zstd", (BR, GZIP)).best is BR

    def test_only_offered_codings_are_used(self) -> None:
        assert accepted("gzip, br", (ZSTD,)) == AcceptedCodings()
        assert accepted("gzip, br", ()) is PLAIN

    def test_no_transform_means_identity(self) -> None:
        assert negotiate("gzip", "no-transform", ALL) is PLAIN
        assert negotiate("gzip", "no-cache, No-Transform", ALL) is PLAIN
        assert negotiate("gzip", "no-cache", ALL).best is GZIP

    weights = st.none() | st.integers(0, 1000)
    members = st.lists(
        st.tuples(st.sampled_from(["zstd", "br", "gzip", "identity", "*", "deflate"]), weights),
        unique_by=lambda member: member[0],
    )
    blanks = st.text(" \t", max_size=2)

    @given(members, st.permutations(ALL).flatmap(lambda order: st.sampled_from([tuple(order[:n]) for n in range(4)])),
           blanks, st.booleans())  # fmt: skip
    def test_the_best_coding_is_accepted_and_has_the_highest_weight(
        self, members: list[tuple[str, int | None]], offered: tuple[Coding, ...], blank: str, upper: bool
    ) -> None:
        field = f"{blank},{blank}".join(
            name if weight is None else f"{name}{blank};{blank}q={weight / 1000:.3f}" for name, weight in members
        )
        field = field.upper() if upper else field
        liked = {name: 1000 if weight is None else weight for name, weight in members}
        likes = {coding: liked.get(coding.value, liked.get("*", 0)) for coding in offered}
        identity = liked.get("identity", liked.get("*"))
        answer = accepted(field, offered)
        if offered:
            assert answer.codings == {coding for coding in offered if likes[coding]}
        if answer.best is None:
            assert not answer.codings or (identity is not None and identity > max(likes.values()))
            return
        assert answer.best in answer.codings
        assert likes[answer.best] == max(likes.values())
        assert identity is None or likes[answer.best] >= identity
        assert all(likes[other] < likes[answer.best] for other in offered[: offered.index(answer.best)])

    @given(st.text(alphabet='gzipbrstd*;q=01.5, \t"x-'))
    def test_a_client_gets_only_codings_it_named(self, field: str) -> None:
        answer = accepted(field)
        for coding in answer.codings | ({answer.best} if answer.best else set()):
            assert coding.value in field.lower() or "*" in field


class TestIsCompressible:
    @pytest.mark.parametrize(
        "content_type",
        ["application/json", "Application/JSON; charset=utf-8", "text/plain", "text/csv;x=y", "application/ld+json",
         "image/svg+xml", "application/x-ndjson", "application/x-protobuf", "application/atom+xml"],
    )  # fmt: skip
    def test_compressible_types(self, content_type: str) -> None:
        assert is_compressible(content_type)

    @pytest.mark.parametrize(
        "content_type",
        [None, "", "application/octet-stream", "image/png", "image/jpeg", "video/mp4", "audio/ogg", "font/woff2",
         "application/zip", "application/gzip", "application/zstd", "application/pdf", "text/event-stream", "nonsense"],
    )  # fmt: skip
    def test_other_types(self, content_type: str | None) -> None:
        assert not is_compressible(content_type)


@pytest.mark.parametrize("member", ["gzip", "a", "br;q=0.1", "", '"a"'])
def test_a_list_that_no_client_needs_is_not_read(member: str) -> None:
    """A head may have 32 KiB of it: reading its members would take as long as a thousand answers."""
    listed = ",".join(["gzip", *[member] * LONGEST_LIST])
    assert negotiate("gzip," + "a" * (LONGEST_LIST - 5), None, ALL).best is GZIP
    assert negotiate("gzip," + "a" * (LONGEST_LIST - 4), None, ALL) is PLAIN
    before = negotiate_read.cache_info().currsize
    assert negotiate(listed, None, ALL) is PLAIN
    assert negotiate("gzip", ",".join(["no-cache"] * LONGEST_LIST), ALL) is PLAIN
    assert negotiate_read.cache_info().currsize == before, "nothing of it is kept"
