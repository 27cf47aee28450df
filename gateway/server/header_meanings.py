"""The meaning of header sections: requests count as equal if they differ only in headers that do not affect the answer.

`gateway.protocol.sharing` decides which readers share a stream's bytes.

A section's meaning is its text without the lines that do not affect any answer of a route:

- trace ids, user agents, and cookies that are not credentials;
- Accept, except on routes to S2;
- headers with the address of the client behind a proxy;
- credentials, on routes whose readers share their answers;
- an Origin header that is not allowed, where the gateway answers for CORS.

A line is left out only if it has a form that cannot hide other lines: a known name in one of its two usual spellings, a
colon, and printable characters up to the end of the line.

Routes differ in these lines, so a section has one meaning for each kind of route (`HeaderRules`).  Each meaning keeps
the remembered answers of its requests, by request line.  The Host header stays in every meaning, so requests with the
same meaning and request line go to the same route.

There may be as many kinds of routes as routes, and a client can send a new section with each request.  To save time,
the gateway reads a section only for the kinds of routes that have an entry for the same request line.

Clients send the same header section with many request lines.  From a section's second appearance on, `Sections` keeps
the section with its meanings and the client's address.  The section's lines are then not read again.

A *join* is a remembered live request (`joins.py`).  A request line may have credentials in its query.  The remembered
answer or join is then found under the line without these credentials (`query_credentials.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

from gateway.auth.remembered_verdicts import Allowed
from gateway.engine.route import MEANINGLESS, HeaderRules
from gateway.http.known import lines_named, web_origin
from gateway.http.request_parser import MOST_FIELDS
from gateway.protocol.client_address import FORWARDING, Proxies
from gateway.server.query_credentials import (
    Beginning,
    CredentialLines,
    NamedStream,
    StreamNames,
    VerdictKey,
    verdict_cost,
)
from gateway.tuples import make

MAX_REQUEST_BYTES: Final = 4_096
"""The longest request that is remembered.  The strict parser accepts far more in one line."""

_MOST_BREAKS: Final = MOST_FIELDS + 2
"""The most line breaks in a section that the strict parser accepts."""
_FEW_BYTES: Final = 3 * _MOST_BREAKS
"""A shorter section cannot exceed `_MOST_BREAKS`, because there is at least a byte between two line breaks."""

_MOST_BYTES: Final = 1 << 23
_COST: Final = 450
"""Bytes charged for a section in addition to its text and its meanings."""
_KEY_COST: Final = 250
"""Bytes charged for a meaning's key in addition to its text."""

MOST_ALLOWED: Final = 4_096
"""The most verdicts kept for one section.  All holders of signed URLs send the same section if they use the same
browser."""
_MOST_UNCHARGED: Final = 256
"""The most verdicts kept with a section that `Sections` does not keep.  The memory of such a section is not counted."""
NONE_ALLOWED: Final[Mapping[VerdictKey, Allowed]] = MappingProxyType({})
"""The verdicts of most sections: none."""

_MOST_SEEN: Final = 1 << 13
"""The most hashes kept of sections that have appeared once, which take less than 1 MB."""
_HEAD_END: Final = b"\r\n\r\n"


class Presented(NamedTuple):
    """The remembered answer or join that was found for a request with credentials in its query.  The line of the
    remembered request may differ from this request's line, but only in its credentials."""

    known: Known
    line: bytes
    key: NamedStream
    """The key of the verdict on this request: the stream, and the request's own credentials."""
    allowed: Allowed | None = None
    """The verdict that the client's connection has kept for this key and the request's header section.  It may have
    lapsed.  If None, the verdict is looked up in the section."""


_ALLOWED: Final = b"allowed origin"
"""Stands at the beginning of a text in which the Origin line of an allowed web origin has been left out.  Every other
text begins with a line break."""


def _is_section(text: bytes) -> bool:
    """Return whether the text is exactly one header section, within the bounds on size and lines."""
    return _may_be_section(text) and text.find(_HEAD_END) == len(text) - 4


def _may_be_section(text: bytes) -> bool:
    """Return whether the text is one header section within the bounds.  The text must have no blank line before its
    end.

    A section's only blank line is its last.  The section's key leaves out some whole lines, but no blank line.  A new
    text with the same key therefore has no further blank line either.
    """
    size = len(text)
    return (
        size <= MAX_REQUEST_BYTES
        and text.endswith(_HEAD_END)
        and (size < _FEW_BYTES or text.count(b"\r\n") <= _MOST_BREAKS)
    )


class Known:
    """The base of remembered answers and joins."""

    __slots__ = ()

    has_recurring_lines: ClassVar[bool]
    """Whether clients are likely to send the same request line again."""
    verdict_key: VerdictKey | None
    """The key of the verdict on the remembered request: the stream, or the request line.  None if requests need no
    verdict."""


class Meaning:
    """A header section as one kind of route reads it."""

    __slots__ = ("_kind", "known", "text")

    def __init__(self, text: bytes, kind: _Kind) -> None:
        self.text = text
        """The section without the lines that this kind of route ignores."""
        self._kind = kind
        self.known: dict[bytes, Known] = {}
        """Answers and joins by request line.  `RememberedAnswers` and `Joins` own the values."""

    def learn(self, line: bytes, known: Known) -> None:
        """Store `known` for requests with this line, and replace an earlier entry."""
        kind = self._kind
        if line not in self.known:
            kind.lines[line] = kind.lines.get(line, 0) + 1
            kind.meanings[self.text] = self
        self.known[line] = known

    def forget_known(self, line: bytes, known: Known) -> None:
        """Remove `known`, unless another entry has replaced it."""
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

    __slots__ = (
        "_client",
        "_origin",
        "_peer",
        "_scheme",
        "allowed",
        "cost",
        "keys",
        "kinds",
        "mark",
        "text",
        "verdicts_cost",
    )

    def __init__(self, text: bytes, kinds: tuple[_Kind, ...] = (), keys: tuple[Key, ...] = ()) -> None:
        self.text = text
        """The text, beginning with the line break after the request line."""
        self.mark = object()
        """Represents the section where a reference to `Section` would keep the section's text in memory."""
        self.kinds = kinds
        """The kinds of routes that the section has been read for."""
        self.keys = keys
        """The keys of the section's meanings for these kinds of routes."""
        self.cost = 0
        """Bytes charged for the section while `Sections` keeps it."""
        self.allowed: Mapping[VerdictKey, Allowed] = NONE_ALLOWED
        """Verdicts of authorisation on GETs with this section."""
        self.verdicts_cost = 0
        """The part of `cost` that is charged for these verdicts."""
        self._origin: bytes | None = b""
        self._peer: str | None = ""
        self._client: str | None = None
        self._scheme = ""
        """`_client` and `_scheme` are the client's address and scheme for requests from `_peer`."""

    def has_verdict(self, key: NamedStream) -> bool:
        """Return whether there is a verdict under this key, and keep the verdict under this object from now on.  A
        look-up with the same object compares no text."""
        verdicts = self.allowed
        if key not in verdicts or not isinstance(verdicts, dict):
            return False
        verdicts[key] = verdicts.pop(key)
        return True

    def drop(self) -> None:
        """Called when `Sections` no longer keeps the section, so that nothing is charged for it."""
        self.cost = self.verdicts_cost = 0
        self.allowed = NONE_ALLOWED

    @property
    def origin(self) -> bytes | None:
        """The value of the Origin header.  None unless the section has exactly one Origin header, in a usual
        spelling.
        """
        if self._origin == b"":
            found = web_origin(self.text)
            self._origin = found[1] if found is not None else None
        return self._origin

    def client_address(self, proxies: Proxies, peer: str | None) -> str | None:
        """Return the client's address without a port for a request from `peer`.  None if the address is unknown."""
        if peer != self._peer:
            self._read_forwarding(proxies, peer)
        return self._client

    def client_scheme(self, proxies: Proxies, peer: str | None, own: str) -> str:
        """Return the scheme of the URL that the client used for a request from `peer`.  `own` is the scheme of this
        connection.
        """
        if peer != self._peer:
            self._read_forwarding(proxies, peer)
        return self._scheme or own

    def _read_forwarding(self, proxies: Proxies, peer: str | None) -> None:
        self._client, self._scheme = proxies.client_and_scheme_of(peer, self.text)
        self._peer = peer


NO_SECTION: Final = Section(b"")
"""Used as the section of a request that cannot be remembered."""


class _Kind:
    """A kind of route: routes that ignore the same header lines."""

    __slots__ = ("_web_origins", "_without_meaning", "lines", "meanings")

    def __init__(self, rules: HeaderRules) -> None:
        self.lines: dict[bytes, int] = {}
        """The request lines that have entries.  The value is the number of meanings with an entry for the line."""
        self.meanings: dict[bytes, Meaning] = {}
        """Meanings with at least one entry, by their texts."""
        names = dict.fromkeys((*MEANINGLESS, *FORWARDING, *sorted(rules.personal)))
        self._without_meaning = lines_named([name for name in names if name not in rules.decisive]).sub
        self._web_origins = rules.web_origins

    def read(self, text: bytes) -> tuple[Key, ...]:
        """Return the keys of the section's meanings: the key for whole answers and the key for live answers.  Return a
        single key if both are equal.
        """
        text = self._without_meaning(b"", text)
        if self._web_origins is None or (found := web_origin(text)) is None:
            return ((self.meanings, text),)
        line, value = found
        without = text.replace(line, b"", 1)
        if value.decode().lower() in self._web_origins:
            return (self.meanings, text), (self.meanings, _ALLOWED + without)
        return ((self.meanings, without),)

    def meaning(self, key: Key) -> Meaning:
        """Return the meaning with this key.  A new meaning is kept only after it gets its first entry."""
        return self.meanings.get(key[1]) or Meaning(key[1], self)


Key = tuple[dict[bytes, Meaning], bytes]
"""The meanings of one kind of route, and the text that selects a meaning."""


def _named(known: Known, named: NamedStream | None, credentials: bytes) -> NamedStream:
    """Return the key of the verdict on a request for `known` with these credentials: `named`, if this is the key."""
    first = known.verdict_key
    # The remembered request had credentials in its query.  Its verdict is kept under the stream and these credentials.
    assert isinstance(first, NamedStream)
    route, path, query, _ = first
    if named is not None and route is named[0] and path == named[1] and query == named[2]:
        return named
    return make(NamedStream, (route, path, query, credentials))


def _keys_cost(keys: tuple[Key, ...]) -> int:
    return sum(_KEY_COST + len(text) for _, text in keys)


class Sections:
    """The header sections that clients repeat, by their text.  The oldest are evicted first.

    `credentials` are the names of query parameters that are credentials on some route.
    """

    def __init__(self, rules: Iterable[HeaderRules], credentials: Collection[str] = ()) -> None:
        # An OrderedDict finds its oldest entry at once.  A plain dictionary would first skip the places of all evicted
        # entries.
        self._sections: OrderedDict[bytes, Section] = OrderedDict()
        self._seen: set[int] = set()
        """Hashes of sections that have appeared once."""
        self._size = 0
        self.reset(rules, credentials)

    def __repr__(self) -> str:
        return f"<Sections {len(self._sections)} sections, {self._size} bytes>"

    def __len__(self) -> int:
        return len(self._sections)

    def reset(self, rules: Iterable[HeaderRules], credentials: Collection[str] = ()) -> None:
        """Forget all sections.  Later sections are read under these rules, and `credentials` has the names of the
        credentials in queries."""
        for section in self._sections.values():
            section.drop()
        self._sections.clear()
        self.stream_names = StreamNames()
        self.credential_lines = CredentialLines(credentials) if credentials else None
        """Divides request lines with credentials; None if no route takes credentials from the query."""
        self._size = 0
        self._numbers = {one: number for number, one in enumerate(dict.fromkeys(rules))}
        self._kinds = [_Kind(one) for one in self._numbers]

    def allow(self, section: Section, key: VerdictKey, allowed: Allowed) -> None:
        """Remember a verdict on GETs with this section."""
        kept = section.allowed
        most = MOST_ALLOWED if section.cost else _MOST_UNCHARGED
        if not isinstance(kept, dict) or (len(kept) >= most and key not in kept):
            section.allowed = kept = {}
            self._charge_verdict(section, -section.verdicts_cost)
        if section.cost:
            replaced = kept.get(key)
            cost = verdict_cost(key, allowed) - (verdict_cost(key, replaced) if replaced is not None else 0)
            self._charge_verdict(section, cost)
        kept[key] = allowed

    def _charge_verdict(self, section: Section, cost: int) -> None:
        """Add to the bytes charged for the verdicts of a section."""
        section.verdicts_cost += cost
        section.cost += cost
        self._charge(cost)

    def for_hits(self, section: Section, rules: HeaderRules) -> Meaning:
        """Return the section's meaning for whole answers on routes with these rules.  Raises KeyError for unknown
        rules.
        """
        kind = self._kinds[self._numbers[rules]]
        return kind.meaning(self._keys(section, kind)[0])

    def for_lives(self, section: Section, rules: HeaderRules) -> Meaning:
        """Return the section's meaning for live answers, which repeat the client's Origin header.  Raises KeyError for
        unknown rules.
        """
        kind = self._kinds[self._numbers[rules]]
        return kind.meaning(self._keys(section, kind)[-1])

    def _keys(self, section: Section, kind: _Kind) -> tuple[Key, ...]:
        """Return the keys of the section's meanings for whole and for live answers on this kind of route."""
        if kind in section.kinds:
            return tuple(key for key in section.keys if key[0] is kind.meanings)
        keys = kind.read(section.text)
        self._add(section, kind, keys)
        return keys

    def _add(self, section: Section, kind: _Kind, keys: tuple[Key, ...]) -> None:
        """Keep the keys that the section has for a further kind of route."""
        section.kinds += (kind,)
        section.keys += keys
        if section.cost:
            cost = _keys_cost(keys)
            section.cost += cost
            self._charge(cost)

    def _find_presented(
        self, lines: CredentialLines, line: bytes, section: Section
    ) -> tuple[Presented, Section] | None:
        """Find the remembered answer or join for a request with credentials in its query.  The section has verdicts."""
        if (divided := lines.divide(line)) is None:
            return None
        rest, credentials = divided
        if len(section.kinds) < len(self._kinds):
            for kind in self._kinds:
                if rest in kind.lines and kind not in section.kinds:
                    self._keys(section, kind)
        for meanings, text in section.keys:
            if (meaning := meanings.get(text)) is not None and (known := meaning.known.get(rest)) is not None:
                named = _named(known, None, credentials)
                # A line without a verdict is not kept.  A client without valid credentials therefore cannot displace
                # the lines of other clients.
                if known.has_recurring_lines and section.has_verdict(named):
                    lines.keep(line, rest, named, known.verdict_key)
                return make(Presented, (known, line, named, None)), section
        return None

    def find(self, request: bytes, beginning: Beginning | None = None) -> tuple[Known | Presented, Section] | None:
        """Find the answer or join of an equal request, and the header section of `request`; None if there is neither.

        `beginning` is the beginning of the client's latest request line.  If the line of `request` begins with the same
        bytes, this line need not be divided.
        """
        if len(request) > MAX_REQUEST_BYTES:
            return None
        end = request.find(b"\r\n")
        line, text = request[:end], request[end:]
        section = self._sections.get(text)
        if section is not None:
            lines = self.credential_lines if section.allowed else None
            if lines is not None and (read := lines.read.get(line)) is not None:
                rest, stream, remembered = read
                for meanings, key in section.keys:
                    if (meaning := meanings.get(key)) is not None and (known := meaning.known.get(rest)) is not None:
                        if known.verdict_key is not remembered:
                            stream = _named(known, stream, stream.credentials)
                            lines.keep(line, rest, stream, known.verdict_key)
                        return make(Presented, (known, line, stream, None)), section
            elif beginning is not None and lines is not None and line.startswith(beginning.line):
                rest = beginning.rest + line[len(beginning.line) :]
                for meanings, key in section.keys:
                    if (meaning := meanings.get(key)) is not None and (known := meaning.known.get(rest)) is not None:
                        # This repeats the code of `_named`, because each long-poll with a signed URL passes here.
                        first = known.verdict_key
                        assert isinstance(first, NamedStream)
                        stream = beginning.key
                        if first[0] is stream[0] and first[1] == stream[1] and first[2] == stream[2]:
                            allowed = beginning.allowed if beginning.mark is section.mark else None
                            return make(Presented, (known, line, stream, allowed)), section
                        stream = make(NamedStream, (*first[:3], stream[3]))
                        return make(Presented, (known, line, stream, None)), section
            for meanings, key in section.keys:
                if (meaning := meanings.get(key)) is not None and (known := meaning.known.get(line)) is not None:
                    return known, section
            if len(section.kinds) == len(self._kinds):
                return self._find_presented(lines, line, section) if lines is not None else None
        for kind in self._kinds:
            # This look-up also excludes other methods than GET: `lines` has only lines of GETs.
            if line not in kind.lines or (section is not None and kind in section.kinds):
                continue
            if section is None and not _may_be_section(text):
                return None
            keys = kind.read(text)
            for meanings, key in keys:
                if (meaning := meanings.get(key)) is not None and (known := meaning.known.get(line)) is not None:
                    # A known section has the same key, so this text has no further blank line (`_may_be_section`).
                    if section is None:
                        return known, self._new(text, (kind,), keys)
                    self._add(section, kind, keys)
                    return known, section
            if section is None and (section := self.section_of(text)) is None:
                return None
            self._add(section, kind, keys)
        if section is None or not section.allowed or self.credential_lines is None:
            return None
        return self._find_presented(self.credential_lines, line, section)

    def common_line(self, line: bytes, key: VerdictKey) -> bytes | None:
        """Return the part of a request line that is common to all requests with the same answer.  `key` is the key of
        the verdict on this request.

        The common part is the whole line, unless the verdict is kept under credentials in the line's query.  Returns
        None if the line cannot be divided.
        """
        if not isinstance(key, NamedStream) or not key.credentials:
            return line
        lines = self.credential_lines
        divided = lines.divide(line) if lines is not None else None
        return divided.rest if divided is not None else None

    def split(self, request: bytes) -> tuple[bytes, Section] | None:
        """Split a GET into its request line and its header section.  Returns None for a request that cannot be
        remembered."""
        if len(request) > MAX_REQUEST_BYTES or not request.startswith(b"GET "):
            return None
        end = request.find(b"\r\n")
        section = self.section_of(request[end:])
        return (request[:end], section) if section is not None else None

    def section_of(self, text: bytes) -> Section | None:
        """Return the section with this text, which begins with the line break after the request line.  Returns None if
        the section exceeds the bounds.
        """
        return self._sections.get(text) or (self._new(text) if _is_section(text) else None)

    def _new(self, text: bytes, kinds: tuple[_Kind, ...] = (), keys: tuple[Key, ...] = ()) -> Section:
        """Make a section with this text, which has these keys for these kinds of routes."""
        section = Section(text, kinds, keys)
        # Keep a section only from its second appearance on.  Sections that are never repeated would evict the others.
        mark = hash(text)
        if mark in self._seen:
            section.cost = _COST + len(text) + _keys_cost(keys)
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
            section.drop()
