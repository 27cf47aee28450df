"""Header sections by their meaning: requests whose headers differ without influence on the answer have one meaning.

The meaning of a section is its bytes without the lines that no answer of a route depends on.  They are trace ids, user
agents, cookies where they are not credentials, and Accept except on routes to S2; headers that name the client behind a
proxy; and credentials on routes whose readers share.  Where the gateway answers for CORS, an Origin header that is not
allowed is such a line, too.  A line is taken out only if it has the one form that cannot hide anything: a known name in
one of its two usual spellings, a colon, and printable characters up to the end of the line.

Routes differ in these lines, so a section has a meaning for each kind of routes (`HeaderRules`).  A meaning keeps all
requests that were answered under it, by their request lines.  The host is a part of every meaning, so the request line
leads to the same route again.

A section is read only for the kinds of routes that know a request with the same line.  There may be as many kinds as
routes, and a client can send another section with each request.

Clients repeat their header sections behind other request lines.  When `Sections` sees a section for the second time, it
remembers the section's meanings and the client that the section names, so that its lines are not read again.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from gateway.auth.verdicts import Allowed
from gateway.engine.route import HeaderRules, Route
from gateway.http.request import MOST_FIELDS
from gateway.protocol.client_address import Proxies

MAX_REQUEST_BYTES: Final = 4_096
"""Longer requests are not remembered.  The bound is far below what the strict parser accepts in one line."""

MEANINGLESS: Final = (
    "accept",
    "accept-language",
    "baggage",
    "cookie",
    "dnt",
    "referer",
    "sec-ch-ua",
    "sec-ch-ua-mobile",
    "sec-ch-ua-platform",
    "sec-fetch-dest",
    "sec-fetch-mode",
    "sec-fetch-site",
    "sec-fetch-user",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-correlation-id",
    "x-request-id",
)
"""Headers that no answer depends on, unless they are among the `decisive` ones of its route."""

FORWARDING: Final = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-real-ip")
"""Headers that name a client behind a proxy.  They decide its limits and its log line, and no shared answer."""

_MOST_BREAKS: Final = MOST_FIELDS + 2
"""Line breaks of the longest section that the strict parser accepts."""
_FEW_BYTES: Final = 3 * _MOST_BREAKS
"""A shorter section has fewer line breaks: any two have a byte between them."""

_MOST_BYTES: Final = 1 << 23
_COST: Final = 450
"""Bytes charged for a section in addition to its own and to its meanings."""
_KEY_COST: Final = 250
"""Bytes charged for the key of a section's meaning in addition to its text."""


class NamedStream(NamedTuple):
    """A stream as the targets of GETs name it.

    A verdict on one read of it with some header section is the verdict on all: the offset, `live` and `cursor` decide
    nothing.  The origin may have one stream for several paths, which rules tell apart.
    """

    route: Route
    path: str
    query: str
    """The canonical query without `offset`, `live` and `cursor`."""


VerdictKey = bytes | NamedStream
"""The requests that a verdict is about: reads of a stream, or GETs with this request line."""

MOST_ALLOWED: Final = 4_096
"""Verdicts kept for one section: all holders of signed URLs who have one browser send the same section."""
_MOST_UNCHARGED: Final = 256
"""Verdicts kept for a section that is charged nothing."""
_VERDICT_COST: Final = 600
"""Bytes charged for a verdict in addition to its names and the request or stream that it is about."""
NONE_ALLOWED: Final[Mapping[VerdictKey, Allowed]] = MappingProxyType({})
"""The verdicts of a section without verdicts, as most are."""

_MOST_SEEN: Final = 1 << 13
"""Bound on the hashes kept of sections seen once: less than 1 MB."""

_HEAD_END: Final = b"\r\n\r\n"


def lines_named(names: Sequence[str]) -> re.Pattern[bytes]:
    """A pattern for a header line with one of these names, along with the line break before it.

    Matches two spellings of each name, Any-Name and any-name (any-Name and Any-name as well): a pattern that ignores
    case is three times as slow.
    """
    if not names:
        return re.compile(rb"(?!)")
    # One branch for each first letter, so that most lines that stay are passed after one comparison a branch.
    by_letter: dict[str, list[str]] = {}
    for name in names:
        first, *others = name[1:].split("-")
        rest = "-".join([re.escape(first), *(_either_case(part[:1]) + re.escape(part[1:]) for part in others)])
        by_letter.setdefault(name[0], []).append(rest)
    spelled = [f"{_either_case(letter)}(?:{'|'.join(rests)})" for letter, rests in by_letter.items()]
    return re.compile(rb"\r\n(?:" + "|".join(spelled).encode() + rb"):[\t\x20-\x7e]*+(?=\r\n)")


def _either_case(character: str) -> str:
    """A pattern for a character of a header name in both cases.  Some characters of names that are not letters, such as
    `^`, are special in patterns."""
    return f"[{character.upper()}{character}]" if character.isalpha() else re.escape(character)


_ORIGIN: Final = lines_named(("origin",))
_ALLOWED: Final = b"allowed origin"
"""Stands before a text from which the line of an allowed web origin was taken; all others begin with a line break."""


def _web_origin(text: bytes) -> tuple[bytes, bytes] | None:
    """The line and the value of a section's Origin header; None unless there is exactly one, in the usual form."""
    found = _ORIGIN.search(text)
    if found is None or text.lower().count(b"\r\norigin") != 1:
        return None
    return found[0], found[0].partition(b":")[2].strip(b" \t")


def _is_section(text: bytes) -> bool:
    """Whether the text is exactly one section within the bounds."""
    size = len(text)
    return (
        size <= MAX_REQUEST_BYTES
        and text.find(_HEAD_END) == size - 4 >= 0
        and (size < _FEW_BYTES or text.count(b"\r\n") <= _MOST_BREAKS)
    )


class Known:
    """A remembered answer or join for all requests with one line and one meaning."""

    __slots__ = ()


class Meaning:
    """A header section as a kind of routes understands it."""

    __slots__ = ("_kind", "known", "text")

    def __init__(self, text: bytes, kind: _Kind) -> None:
        self.text = text
        """The section without the lines that have no meaning."""
        self._kind = kind
        self.known: dict[bytes, Known] = {}
        """The requests with such a section, by their request lines.  `RememberedAnswers` and `Joins` own the values."""

    def learn(self, line: bytes, known: Known) -> None:
        """Remember `known` for requests with this line, in place of an earlier entry."""
        kind = self._kind
        if line not in self.known:
            kind.lines[line] = kind.lines.get(line, 0) + 1
            kind.meanings[self.text] = self
        self.known[line] = known

    def forget_known(self, line: bytes, known: Known) -> None:
        """Forget `known`, unless another entry has taken its place for this line."""
        kind = self._kind
        if self.known.get(line) is known:
            del self.known[line]
            kind.lines[line] -= 1
            if not kind.lines[line]:
                del kind.lines[line]
            if not self.known:
                del kind.meanings[self.text]


class Section:
    """One header section, with its meanings and its client."""

    __slots__ = ("_client", "_origin", "_peer", "allowed", "cost", "keys", "kinds", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        """The section, from the line break behind the request line on."""
        self.kinds: tuple[_Kind, ...] = ()
        """The kinds of routes for which the section has been read."""
        self.keys: tuple[Key, ...] = ()
        """The keys of its meanings for these kinds."""
        self.cost = 0
        """Bytes charged for it while `Sections` keeps it."""
        self.allowed: Mapping[VerdictKey, Allowed] = NONE_ALLOWED
        """Verdicts on GETs with this section to routes with rules."""
        self._origin: bytes | None = b""
        self._peer: str | None = ""
        self._client: str | None = None

    @property
    def origin(self) -> bytes | None:
        """The value of the Origin header; None unless there is exactly one, in the usual form."""
        if self._origin == b"":
            found = _web_origin(self.text)
            self._origin = found[1] if found is not None else None
        return self._origin

    def client_address(self, proxies: Proxies, peer: str | None) -> str | None:
        """The client's address, without a port, for a request from `peer`; None if it is not known."""
        if peer != self._peer:
            self._client, self._peer = proxies.client_of(peer, self.text), peer
        return self._client


NO_SECTION: Final = Section(b"")
"""Stands for the section of a request that is not remembered."""


class _Kind:
    """The lines without meaning on routes with the same rules."""

    __slots__ = ("_web_origins", "_without_meaning", "lines", "meanings")

    def __init__(self, rules: HeaderRules) -> None:
        self.lines: dict[bytes, int] = {}
        """The known request lines, each with the number of meanings that have an entry for it."""
        self.meanings: dict[bytes, Meaning] = {}
        """The meanings that have entries, by their texts."""
        names = dict.fromkeys((*MEANINGLESS, *FORWARDING, *sorted(rules.personal)))
        self._without_meaning = lines_named([name for name in names if name not in rules.decisive]).sub
        self._web_origins = rules.web_origins

    def read(self, text: bytes) -> tuple[Key, ...]:
        """The keys of a section's meanings for whole and for live answers; one key if both are the same."""
        text = self._without_meaning(b"", text)
        if self._web_origins is None or (found := _web_origin(text)) is None:
            return ((self.meanings, text),)
        line, value = found
        without = text.replace(line, b"", 1)
        if value.decode().lower() in self._web_origins:
            return (self.meanings, text), (self.meanings, _ALLOWED + without)
        return ((self.meanings, without),)

    def meaning(self, key: Key) -> Meaning:
        """The meaning with this key.  A new one has no entries, and is kept only from its first `learn` on."""
        return self.meanings.get(key[1]) or Meaning(key[1], self)


Key = tuple[dict[bytes, Meaning], bytes]
"""The meanings of a kind of routes, and the text of one of them."""


class Sections:
    """Header sections by their bytes, with their meanings; the oldest are evicted first."""

    def __init__(self, rules: Iterable[HeaderRules]) -> None:
        # An OrderedDict, because a plain dictionary searches the places of all evicted entries for its oldest one.
        self._sections: OrderedDict[bytes, Section] = OrderedDict()
        self._seen: set[int] = set()
        """Hashes of sections that were seen once."""
        self._size = 0
        self.reset(rules)

    def __repr__(self) -> str:
        return f"<Sections {len(self._sections)} sections, {self._size} bytes>"

    def __len__(self) -> int:
        return len(self._sections)

    def reset(self, rules: Iterable[HeaderRules]) -> None:
        """Forget everything, and begin with routes that have these rules."""
        for section in self._sections.values():
            section.cost, section.allowed = 0, NONE_ALLOWED
        self._sections.clear()
        self._size = 0
        self._numbers = {one: number for number, one in enumerate(dict.fromkeys(rules))}
        self._kinds = [_Kind(one) for one in self._numbers]

    def allow(self, section: Section, key: VerdictKey, allowed: Allowed) -> None:
        """Remember the verdict on GETs with this section."""
        kept = section.allowed
        if not isinstance(kept, dict) or len(kept) >= (MOST_ALLOWED if section.cost else _MOST_UNCHARGED):
            section.allowed = kept = {}
        if section.cost and key not in kept:
            length = len(key) if isinstance(key, bytes) else len(key.path) + len(key.query)
            cost = length + _VERDICT_COST + sum(map(len, allowed.parties))
            cost += allowed.renewal.inquiry.size if allowed.renewal is not None else 0
            section.cost += cost
            self._charge(cost)
        kept[key] = allowed

    def for_hits(self, section: Section, rules: HeaderRules) -> Meaning:
        """The meaning of a section for whole answers of routes with these rules.  KeyError if there is none."""
        kind = self._kinds[self._numbers[rules]]
        return kind.meaning(self._keys(section, kind)[0])

    def for_lives(self, section: Section, rules: HeaderRules) -> Meaning:
        """Like `for_hits`, for live answers, which repeat the Origin header of each client."""
        kind = self._kinds[self._numbers[rules]]
        return kind.meaning(self._keys(section, kind)[-1])

    def _keys(self, section: Section, kind: _Kind) -> tuple[Key, ...]:
        """The keys of a section's meanings for whole and for live answers of a kind of routes."""
        if kind in section.kinds:
            return tuple(key for key in section.keys if key[0] is kind.meanings)
        return self._read(section, kind)

    def _read(self, section: Section, kind: _Kind) -> tuple[Key, ...]:
        """Like `_keys`, for a kind for which the section has not been read yet."""
        found = kind.read(section.text)
        if not section.kinds:
            section.kinds, section.keys = (kind,), found
        else:
            section.kinds += (kind,)
            section.keys += found
        if section.cost:
            cost = sum(_KEY_COST + len(text) for _, text in found)
            section.cost += cost
            self._charge(cost)
        return found

    def find(self, request: bytes) -> tuple[Known, Section] | None:
        """The answer or join of requests with the meaning of this one, and its header section; None if there is
        none."""
        if len(request) > MAX_REQUEST_BYTES:
            return None
        end = request.find(b"\r\n")
        line, text = request[:end], request[end:]
        section = self._sections.get(text)
        if section is not None:
            for meanings, key in section.keys:
                if (meaning := meanings.get(key)) is not None and (known := meaning.known.get(line)) is not None:
                    return known, section
            if len(section.kinds) == len(self._kinds):
                return None
        for kind in self._kinds:
            # Only GETs have entries.
            if line not in kind.lines:
                continue
            if section is None and (section := self._new(text)) is None:
                return None
            if kind in section.kinds:
                continue
            for meanings, key in self._read(section, kind):
                if (meaning := meanings.get(key)) is not None and (known := meaning.known.get(line)) is not None:
                    return known, section
        return None

    def split(self, request: bytes) -> tuple[bytes, Section] | None:
        """The request line and the header section of a GET; None if it has no meaning."""
        if len(request) > MAX_REQUEST_BYTES or not request.startswith(b"GET "):
            return None
        end = request.find(b"\r\n")
        section = self.section_of(request[end:])
        return (request[:end], section) if section is not None else None

    def section_of(self, text: bytes) -> Section | None:
        """The section with these bytes, from the line break behind the request line on; None if it has no meaning."""
        return self._sections.get(text) or self._new(text)

    def _new(self, text: bytes) -> Section | None:
        if not _is_section(text):
            return None
        section = Section(text)
        # Sections that differ with every request would evict the sections that clients repeat.
        mark = hash(text)
        if mark in self._seen:
            section.cost = _COST + len(text)
            self._sections[text] = section
            self._charge(section.cost)
        else:
            if len(self._seen) >= _MOST_SEEN:
                self._seen.clear()
            self._seen.add(mark)
        return section

    def _charge(self, cost: int) -> None:
        """Add to the bytes in use, and evict the oldest sections beyond the bound."""
        self._size += cost
        while self._size > _MOST_BYTES and self._sections:
            section = self._sections.popitem(last=False)[1]
            self._size -= section.cost
            section.cost, section.allowed = 0, NONE_ALLOWED
