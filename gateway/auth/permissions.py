"""Permissions: which actions a credential allows on which streams.

A pattern matches paths by segments.  `*` matches one segment, and `**` at the end matches any number of segments, also
none.  `{sub}` matches the value of a claim of the token, which must be exactly one segment, with or without escapes.

Patterns are matched against canonical paths (`gateway.protocol.target`).  Some paths are ambiguous: an origin may
decode an escaped slash, remove an empty segment or a segment's parameters (`..;x`), or treat a backslash as a slash,
and then use another stream.  Only the pattern `/**`, which allows all streams, matches ambiguous paths.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from gateway.protocol.target import BadTarget, parse_target

MOST_PERMISSIONS: Final = 64
"""The most permissions of one token."""
_MOST_CHARS: Final = 1_024
_PLACE: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]{0,63})\}")
_AMBIGUOUS: Final = re.compile(r"\\|%2F|%5C|%25|^\.{0,2}(?:;|%3B)", re.IGNORECASE)
"""Parts of segments that make a path ambiguous.  So do empty segments, except the last one."""
_NO_NAME: Final = re.compile(r"\.{0,2}|__ds|.*(?:[/\\;\ud800-\udfff]|%[0-9A-Fa-f]{2}).*", re.DOTALL)
"""Values of claims that fill no segment.  An origin may read them as another segment or as several, or may ignore
what follows a semicolon.  The value `__ds` would be the protocol's reserved path, and give the principal access to all
subscriptions."""
_REST: Final = "**"
_EVERY: Final = "/**"


class Action(StrEnum):
    """An action of a request on its stream."""

    READ = "read"
    APPEND = "append"
    CREATE = "create"
    CLOSE = "close"
    DELETE = "delete"
    FORK = "fork"
    SUBSCRIBE = "subscribe"
    """Requests below the protocol's reserved path `__ds`."""
    OTHER = "other"
    """Methods that the protocol does not define.  Only the action `*` of a permission includes them."""


NAMED: Final = frozenset(Action) - {Action.OTHER}
"""The actions that a permission may name."""


class BadPermission(ValueError):
    """A text or claim is not a valid permission.  The message describes the mistake."""


class Pattern:
    """A pattern for canonical paths."""

    __slots__ = ("_is_open", "_segments", "text")

    def __init__(self, text: str) -> None:
        """Raises BadPermission if the pattern is invalid."""
        self.text = text
        if not text.startswith("/") or len(text) > _MOST_CHARS or "?" in text or "#" in text:
            raise BadPermission(f"{text[:80]!r} is no pattern of paths: it begins with a slash and has no query")
        segments = text[1:].split("/")
        self._is_open = segments[-1] == _REST
        """Whether the pattern ends in `**`."""
        if self._is_open:
            segments.pop()
        if _REST in segments:
            raise BadPermission(f"{text[:80]!r}: ** stands at the end only")
        self._segments = tuple(map(_segment, segments))

    def __repr__(self) -> str:
        return f"<Pattern {self.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and type(other) is type(self) and other.text == self.text

    def __hash__(self) -> int:
        return hash((type(self), self.text))

    @property
    def places(self) -> frozenset[str]:
        """The names of the claims in the pattern."""
        return frozenset(_PLACE.findall(self.text))

    def matches(self, path: str, claims: Mapping[str, object] | None = None) -> bool:
        """Return whether the pattern, with these claims, matches a canonical path."""
        if self.text == _EVERY:
            return True
        segments, wanted = path[1:].split("/"), self._segments
        if "//" in path or len(segments) < len(wanted) or (len(segments) > len(wanted) and not self._is_open):
            return False
        if any(map(_AMBIGUOUS.search, segments[len(wanted) :])):
            return False
        return all(_fits(one, segment, claims or {}) for one, segment in zip(wanted, segments, strict=False))


class Exact(Pattern):
    """A pattern that matches one path only, character by character."""

    __slots__ = ()

    def __init__(self, path: str) -> None:
        self.text = path
        self._segments = ()
        self._is_open = False

    def matches(self, path: str, claims: Mapping[str, object] | None = None) -> bool:
        return path == self.text


def _segment(text: str) -> str:
    """Return a segment of a pattern in canonical form.  Raises BadPermission."""
    if text == "*" or _PLACE.fullmatch(text):
        return text
    if "*" in text or "{" in text or "}" in text:
        raise BadPermission(f"{text[:80]!r}: * and {{claim}} stand for a whole segment")
    try:
        path = parse_target("/" + text).path
    except BadTarget:
        raise BadPermission(f"{text[:80]!r} is no segment of a path") from None
    if text in (".", "..") or path.count("/") != 1:
        raise BadPermission(f"{text[:80]!r} is no segment of a path")
    return path[1:]


def _fits(wanted: str, segment: str, claims: Mapping[str, object]) -> bool:
    if (place := _PLACE.fullmatch(wanted)) is None:
        return _AMBIGUOUS.search(segment) is None and (bool(segment) if wanted == "*" else wanted == segment)
    value = claims.get(place[1])
    if not isinstance(value, str) or _NO_NAME.fullmatch(value) is not None:
        return False
    # Clients may escape more characters than a path needs, such as `@` (encodeURIComponent).  The value has no escapes,
    # so an origin that decodes the segment again finds the same.
    return unquote_to_bytes(segment) == value.encode()


class Permission(NamedTuple):
    """The actions that are allowed on the streams of a pattern."""

    actions: frozenset[Action]
    pattern: Pattern

    def allows(self, action: Action, path: str, claims: Mapping[str, object]) -> bool:
        """Return whether the permission allows the action on the stream with this canonical path."""
        return action in self.actions and self.pattern.matches(path, claims)

    def __str__(self) -> str:
        return f"{','.join(sorted(self.actions))} {self.pattern.text}"


def parse_actions(names: Iterable[object]) -> frozenset[Action]:
    """Parse the names of actions.  `*` means all actions.  Raises BadPermission."""
    found: set[Action] = set()
    for name in names:
        if name == "*":
            found.update(Action)
        elif isinstance(name, str) and name in NAMED:
            found.add(Action(name))
        else:
            raise BadPermission(f"{str(name)[:40]!r} is no action: they are {', '.join(sorted(NAMED))} and *")
    if not found:
        raise BadPermission("names no action")
    return frozenset(found)


def parse_permission(text: str) -> Permission:
    """Parse a permission such as `read,append /rooms/{sub}/**`, from the configuration or a claim.

    Raises BadPermission.
    """
    names, space, pattern = text.strip().partition(" ")
    if not space:
        raise BadPermission(f"{text[:80]!r} is no permission: expected one such as 'read,append /rooms/*'")
    return Permission(parse_actions(names.split(",")), Pattern(pattern.strip()))


def parse_claim(claim: object) -> tuple[Permission, ...]:
    """Parse the permissions in a claim, which is a text or a list of texts.  Raises BadPermission if any is invalid."""
    texts = [claim] if isinstance(claim, str) else claim
    if not isinstance(texts, list) or len(texts) > MOST_PERMISSIONS or not all(isinstance(one, str) for one in texts):
        raise BadPermission(f"is no list of at most {MOST_PERMISSIONS} permissions")
    return tuple(map(parse_permission, texts))


DETAIL_TYPE: Final = "durable-streams"
"""The `type` of authorization details for this gateway."""


def parse_details(claim: object) -> tuple[Permission, ...]:
    """Parse the claim `authorization_details` (RFC 9396 section 9.1).  Raises BadPermission if any detail is invalid.

    Details of other types are ignored.
    """
    if not isinstance(claim, list) or len(claim) > MOST_PERMISSIONS:
        raise BadPermission(f"is no list of at most {MOST_PERMISSIONS} authorization details")
    found: list[Permission] = []
    for detail in claim:
        if not isinstance(detail, dict) or not isinstance(detail.get("type"), str):
            raise BadPermission("an authorization detail is an object with a type")
        if detail["type"] != DETAIL_TYPE:
            continue
        locations, actions = detail.get("locations"), detail.get("actions")
        if not isinstance(locations, list) or not isinstance(actions, list) or not locations:
            raise BadPermission("an authorization detail has lists of locations and actions")
        if unknown := set(detail) - {"type", "locations", "actions", "identifier", "datatypes", "privileges"}:
            raise BadPermission(f"an authorization detail has no field {min(unknown)[:40]!r}")
        if set(detail) - {"type", "locations", "actions"}:
            # These fields restrict the permission, and must not be ignored.
            raise BadPermission("an authorization detail is restricted by a field that this gateway does not check")
        if not all(isinstance(one, str) for one in locations) or len(found) + len(locations) > MOST_PERMISSIONS:
            raise BadPermission("the locations of an authorization detail are patterns of paths")
        allowed = parse_actions(actions)
        found.extend(Permission(allowed, Pattern(one)) for one in locations)
    return tuple(found)
