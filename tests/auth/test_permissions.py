"""Patterns of paths: no odd spelling of a path passes one that the canonical spelling would not."""

from __future__ import annotations

from itertools import product
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.permissions import Action, BadPermission, Pattern, parse_permission
from gateway.protocol.target import BadTarget, parse_target

PARTS = (
    *("/", "a", "b", "secret", ".", "..", "%2e", "%2E%2E", "%2F", "%2f", "%5c", "\\", "//", "%61", "%252e", "%00", ";"),
    *("%25", "%2561", "..;", "A", "%C3%A9", "é", "*", "**", "%3B", "%3b", "%253B", "@", "%40", "%25b"),
)
ODD = st.lists(st.sampled_from(PARTS), max_size=8).map(lambda parts: "/" + "".join(parts))
STEMS = ("", ".", "..", "%2e%2E", "a", "b")
MARKS = ("", ";", "%3B", "%253b", "/", "%2F", "%252f", "\\", "%5C", "%25", "%40", "%2e")
SUBS = [
    *("a", "b", "..", ".", "", "a/b", "é", "%61", "*", "**", "a@", "@", "a%b", "%b", "..;", ";", "%3B", "..%3B", "%2e"),
]
PATTERNS = [Pattern(one) for one in ("/a/*", "/a/**", "/{sub}/b", "/a", "/*/b", "/{sub}/**")]


def as_an_origin_reads_it(path: str) -> list[str]:
    """The segments of the stream that the most lenient origin finds: it decodes escapes again and again, reads
    backslashes as slashes, cuts parameters of empty and of dot segments off, and then resolves."""
    for _ in range(4):
        path = unquote(path)
    kept: list[str] = []
    for segment in path.replace("\\", "/").split("/"):
        bare = segment.partition(";")[0] if segment.startswith(("..;", ".;", ";")) else segment
        if bare == "..":
            if kept:
                kept.pop()
        elif bare not in (".", ""):
            kept.append(bare)
    return kept


def check_spelling(spelling: str, pattern: Pattern, sub: str) -> None:
    """Check that the pattern matches the spelling only if it matches the stream that the most lenient origin finds."""
    try:
        path = parse_target(spelling).path
    except BadTarget:
        return
    if pattern.matches(path, {"sub": sub}):
        found = as_an_origin_reads_it(path)
        wanted = [sub if one == "{sub}" else one for one in pattern.text[1:].split("/")]
        is_open = wanted[-1] == "**"
        wanted = wanted[:-1] if is_open else wanted
        assert len(found) == len(wanted) or (is_open and len(found) >= len(wanted) - 1)
        assert all(one in ("*", segment) for one, segment in zip(wanted, found, strict=False) if one != "")


@given(ODD, st.sampled_from(PATTERNS), st.sampled_from(SUBS))
def test_odd_spelling_passes_no_pattern_that_the_stream_it_names_would_not(
    spelling: str, pattern: Pattern, sub: str
) -> None:
    check_spelling(spelling, pattern, sub)


@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_one_odd_segment_among_those_of_a_pattern_passes_only_if_every_origin_reads_the_same(pattern: Pattern) -> None:
    for stem, mark, tail, sub in product(STEMS, MARKS, ("", "a"), SUBS):
        own = [quote(sub, safe="") if one == "{sub}" else one for one in pattern.text[1:].split("/") if one != "**"]
        for number in range(len(own) + 1):
            for skipped in (0, 1):
                segments = [*own[:number], stem + mark + tail, *own[number + skipped :]]
                check_spelling("/" + "/".join(segments), pattern, sub)


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/rooms/*", "/rooms/1", True),
        ("/rooms/*", "/rooms/", False),
        ("/rooms/*", "/rooms/1/2", False),
        ("/rooms/**", "/rooms", True),
        ("/rooms/**", "/rooms/1/2/3", True),
        ("/rooms/**", "/roomsx", False),
        ("/%61/*", "/a/x", True),
        ("/{sub}/x", "/user%7C1/x", True),
        ("/{sub}/x", "/other/x", False),
        ("/{sub}/x", "/user%2F1/x", False),
        ("/{service}/**", "/__ds/subscriptions/x", False),
        ("/**", "/any%2Fthing", True),
        ("/rooms/*", "/rooms/a%2Fb", False),
    ],
)
def test_pattern_matches_whole_segments(pattern: str, path: str, *, matches: bool) -> None:
    assert Pattern(pattern).matches(path, {"sub": "user|1", "service": "__ds"}) is matches


@pytest.mark.parametrize(
    ("sub", "spelling", "matches"),
    [
        ("ada@example.org", "/ada@example.org/s", True),
        ("ada@example.org", "/ada%40example.org/s", True),
        ("auth:7", "/auth%3A7/s", True),
        ("auth0|7", "/auth0%7C7/s", True),
        ("é", "/%c3%a9/s", True),
        ("a%b", "/a%25b/s", True),
        ("100%", "/100%25/s", True),
        ("%61", "/%2561/s", False),
        ("a", "/%2561/s", False),
        ("a/s", "/a%2Fs/s", False),
        ("..;x", "/..%3Bx/s", False),
        (";", "/%3B/s", False),
        ("__ds;x", "/__ds;x/s", False),
        ("ada;x", "/ada;x/s", False),
        ("ada;x", "/ada%3Bx/s", False),
        ("\ud800", "/%ED%A0%80/s", False),
    ],
)
def test_segment_of_a_claim_is_compared_without_its_escapes(sub: str, spelling: str, *, matches: bool) -> None:
    path = parse_target(spelling).path
    assert [Pattern(one).matches(path, {"sub": sub}) for one in ("/{sub}/s", "/{sub}/**")] == [matches] * 2


@pytest.mark.parametrize("spelling", ["/a/..%3B/b", "/a/..%3bx/b", "/a/%2e%2e%3b/b", "/a/.%3B", "/a/;/b", "/a/%3Bx"])
@pytest.mark.parametrize("pattern", ["/a/*", "/a/**", "/a/*/b", "/a/*/**"])
def test_parameters_of_segments_without_a_name_pass_no_pattern(spelling: str, pattern: str) -> None:
    assert not Pattern(pattern).matches(parse_target(spelling).path)


@pytest.mark.parametrize(
    "text", ["", "read", "read rooms", "fly /a", " /a", "read /a/**/b", "read /a*", "read /{a}b", "read /.."]
)
def test_wrong_permission_is_refused(text: str) -> None:
    with pytest.raises(BadPermission):
        parse_permission(text)


def test_only_all_actions_cover_methods_that_the_protocol_does_not_name() -> None:
    assert Action.OTHER in parse_permission("* /a").actions
    with pytest.raises(BadPermission):
        parse_permission("other /a")
