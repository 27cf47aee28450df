"""Patterns of paths: no odd spelling of a path passes one that the canonical spelling would not."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.permissions import Action, BadPermission, Pattern, parse_permission
from gateway.protocol.target import BadTarget, parse_target

PARTS = (
    *("/", "a", "b", "secret", ".", "..", "%2e", "%2E%2E", "%2F", "%2f", "%5c", "\\", "//", "%61", "%252e", "%00", ";"),
    *("%25", "%2561", "..;", "A", "%C3%A9", "é", "*", "**"),
)
ODD = st.lists(st.sampled_from(PARTS), max_size=8).map(lambda parts: "/" + "".join(parts))
PATTERNS = [Pattern(one) for one in ("/a/*", "/a/**", "/{sub}/b", "/a", "/*/b", "/{sub}/**")]


def as_an_origin_reads_it(path: str) -> list[str]:
    """The segments of the stream that the most lenient origin finds: it decodes escapes again and again, reads
    backslashes as slashes, cuts parameters of dot segments off, and then resolves."""
    for _ in range(4):
        path = unquote(path)
    kept: list[str] = []
    for segment in path.replace("\\", "/").split("/"):
        bare = segment.partition(";")[0] if segment.startswith(("..;", ".;")) else segment
        if bare == "..":
            if kept:
                kept.pop()
        elif bare not in (".", ""):
            kept.append(bare)
    return kept


@given(ODD, st.sampled_from(PATTERNS), st.sampled_from(["a", "b", "..", ".", "", "a/b", "é", "%61", "*", "**"]))
def test_odd_spelling_passes_no_pattern_that_the_stream_it_names_would_not(
    spelling: str, pattern: Pattern, sub: str
) -> None:
    try:
        path = parse_target(spelling).path
    except BadTarget:
        return
    claims = {"sub": sub}
    if pattern.matches(path, claims):
        found = as_an_origin_reads_it(path)
        wanted = [sub if one == "{sub}" else one for one in pattern.text[1:].split("/")]
        is_open = wanted[-1] == "**"
        wanted = wanted[:-1] if is_open else wanted
        assert len(found) == len(wanted) or (is_open and len(found) >= len(wanted) - 1)
        assert all(one in ("*", segment) for one, segment in zip(wanted, found, strict=False) if one != "")


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
    "text", ["", "read", "read rooms", "fly /a", " /a", "read /a/**/b", "read /a*", "read /{a}b", "read /.."]
)
def test_wrong_permission_is_refused(text: str) -> None:
    with pytest.raises(BadPermission):
        parse_permission(text)


def test_only_all_actions_cover_methods_that_the_protocol_does_not_name() -> None:
    assert Action.OTHER in parse_permission("* /a").actions
    with pytest.raises(BadPermission):
        parse_permission("other /a")
