"""The keys of remembered verdicts of authorisation: the stream, and the credentials in the request's query.

A verdict is kept with the header section in which the client presents its credential.  A query may contain a
credential, such as the signature of a signed URL.  The request lines of such clients all differ.  Each long-poll of one
client also has a new line, because its offset and cursor have changed.  `CredentialLines.divide` divides a line into
the credentials and the rest.  The rest selects the answer, so that clients with different signed URLs share remembered
answers, and wait together for live answers.  The credentials and the stream select the verdict.

A line is divided before it is parsed, so it may be malformed.  Both parts keep the spelling and the order of their
parameters.  Together they therefore determine every parameter, its value, and whether the line is well-formed.  An
answer, a join or a verdict is remembered under a part only if the whole line was parsed, and if the parser found the
same credentials.  If both parts of a later line are found, the parser would therefore find the same stream, offset and
credentials in that line.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from gateway.auth.remembered_verdicts import Allowed
from gateway.engine.route import Route
from gateway.tuples import make

_MOST_STREAMS: Final = 1 << 10
"""The most names of streams that `StreamNames` keeps."""
_LONGEST_NAME: Final = 256
"""The most characters of such a name.  Clients choose the length of queries."""
MOST_BEGINNING_BYTES: Final = 1 << 25
"""The most bytes charged for the beginnings of request lines that connections keep."""
MOST_READ_BYTES: Final = 1 << 22
"""The most bytes charged for the lines that `CredentialLines` has divided before."""
_READ_COST: Final = 500
"""Bytes charged for such a line in addition to its text, which is kept twice: whole, and divided."""
_BEGINNING_COST: Final = 300
"""Bytes charged for a beginning in addition to its verdict and its line, which is kept twice: whole, and divided."""
_VERDICT_COST: Final = 600
"""Bytes charged for a verdict in addition to its key and the names in it."""


class NamedStream(NamedTuple):
    """A stream's name in GETs, without the parameters of one read.

    A verdict on one read of a stream is valid for all its reads with the same header section and the same credentials.
    The parameters `offset`, `live` and `cursor` do not affect the verdict.  The path is a part of the key, because an
    origin may serve one stream under several paths, and rules may treat these paths differently.
    """

    route: Route
    path: str
    query: str
    """The canonical query without credentials, `offset`, `live` and `cursor`."""
    credentials: bytes = b""
    """The credentials in the query, as the client has spelled them (`Divided`); empty for a query without
    credentials."""


VerdictKey = bytes | NamedStream
"""The key of a verdict of authorisation.  A verdict covers all reads of a stream, or all GETs with one request line."""


def verdict_cost(key: VerdictKey, allowed: Allowed) -> int:
    """Return the bytes charged for a verdict."""
    length = len(key) if isinstance(key, bytes) else len(key.path) + len(key.query) + len(key.credentials)
    asked = allowed.renewal.inquiry.size if allowed.renewal is not None else 0
    return _VERDICT_COST + length + sum(map(len, allowed.parties)) + asked


class StreamNames:
    """The names of streams for which verdicts are remembered."""

    def __init__(self) -> None:
        self._names: dict[NamedStream, NamedStream] = {}

    def shared_name(self, stream: NamedStream) -> NamedStream:
        """Return the same object for all equal names of a stream, unless they are long or have credentials.  A look-up
        of a verdict then compares identities, and no text.
        """
        if stream.credentials or len(stream.path) + len(stream.query) > _LONGEST_NAME:
            return stream
        if len(self._names) >= _MOST_STREAMS:
            self._names.clear()
        return self._names.setdefault(stream, stream)


class Divided(NamedTuple):
    """A request line, divided into the credentials in its query and the rest."""

    rest: bytes
    """The line without the credentials.  A line break replaces the question mark, so a rest never equals a whole line.
    """
    credentials: bytes
    """The parameters that are credentials, with their names in the usual spelling."""


class Beginning(NamedTuple):
    """The beginning of a client's latest request line, divided.

    Most clients append the offset and the other parameters of a read to their signed URL.  The client's next line then
    begins in the same way.  The beginning ends with the separator after the last credential, so it never cuts a
    parameter in two.  A line that begins in the same way is therefore divided like its beginning, and its remainder is
    added to the rest.  Credentials in the remainder stay in the rest, but no join is remembered for such a rest.
    """

    line: bytes
    """The line up to its credentials, with these credentials and the separator after them."""
    rest: bytes
    key: NamedStream
    """The key of the verdict on the request with this beginning."""
    mark: object
    """The mark of that request's header section."""
    allowed: Allowed | None
    """The section's verdict with this key, so that the client's next request needs no look-up; None if there was none.
    """


def beginning_of(line: bytes, key: NamedStream, mark: object, allowed: Allowed | None) -> Beginning | None:
    """Return the beginning of a line that is divided into the credentials in `key` and a rest.  Returns None if other
    parameters separate the credentials, or if none follows them.
    """
    query, credentials = line.find(b"?"), key.credentials
    at = query if line.startswith(credentials + b"&", query + 1) else line.find(b"&" + credentials + b"&", query)
    if at < 0:
        return None
    rest = line[:query] + b"\r\n&" + line[query + 1 : at + 1]
    return make(Beginning, (line[: at + len(credentials) + 2], rest, key, mark, allowed))


class Beginnings:
    """The beginnings that the connections keep, which take a bounded number of bytes."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes charged for the kept beginnings."""

    def __repr__(self) -> str:
        return f"<Beginnings {self.size} bytes>"

    def keep(self, found: Beginning | None, former: Beginning | None) -> Beginning | None:
        """Keep the beginning of a line in place of `former`.

        Returns None if the line has no beginning, or if there is no room.  The connection's next line then has to be
        divided, which costs some microseconds.
        """
        self.drop(former)
        if found is None or self.size + (cost := _beginning_cost(found)) > MOST_BEGINNING_BYTES:
            return None
        self.size += cost
        return found

    def drop(self, beginning: Beginning | None) -> None:
        """Called when a connection no longer keeps a beginning."""
        if beginning is not None:
            self.size -= _beginning_cost(beginning)


def _beginning_cost(beginning: Beginning) -> int:
    # The header section may have dropped the verdict, so it is charged here, too.
    cost = _BEGINNING_COST + 2 * len(beginning.line)
    return cost + (verdict_cost(beginning.key, beginning.allowed) if beginning.allowed is not None else 0)


class ReadLine(NamedTuple):
    """A divided request line, and the key of the verdict on the request."""

    rest: bytes
    key: NamedStream
    remembered: VerdictKey | None
    """The key of the verdict on the remembered request.  `key` is the key for a remembered answer that has this object.
    """


class CredentialLines:
    """Divides request lines.  `names` are the names of query parameters that are credentials on some route."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(f"{name}=".encode() for name in names)
        self.read: dict[bytes, ReadLine] = {}
        """Lines that need not be divided again, because requests with remembered answers had them."""
        self._rests: dict[bytes, bytes] = {}
        """The rests of these lines.  Clients with equal rests share one object, so that fewer bytes are compared."""
        self._size = 0

    def __repr__(self) -> str:
        return f"<CredentialLines {len(self.read)} lines, {self._size} bytes>"

    def keep(self, line: bytes, rest: bytes, key: NamedStream, remembered: VerdictKey | None) -> None:
        """Keep the parts of a line.  All earlier lines are forgotten when there is no room."""
        if line not in self.read:
            cost = _READ_COST + 2 * len(line)
            if self._size + cost > MOST_READ_BYTES:
                self.read.clear()
                self._rests.clear()
                self._size = 0
            self._size += cost
        self.read[line] = make(ReadLine, (self._rests.setdefault(rest, rest), key, remembered))

    def divide(self, line: bytes) -> Divided | None:
        """Divide the line of a GET.  Returns None if its query has no credentials in the usual spelling."""
        mark, end = line.find(b"?"), line.rfind(b" ")
        if mark < 0:
            return None
        names, rest = self._names, [line[:mark] + b"\r\n"]
        for name in names:
            if name in line:
                break
        else:
            return None
        credentials: list[bytes] = []
        for pair in line[mark + 1 : end].split(b"&"):
            (credentials if pair[: pair.find(b"=") + 1] in names else rest).append(pair)
        if not credentials:
            return None
        return make(Divided, (b"&".join(rest) + line[end:], b"&".join(credentials)))

    def credentials_of(self, line: bytes, names: Collection[str]) -> bytes | None:
        """Return the credentials in a request line, if they are exactly the parameters with these names.  Returns None
        otherwise, for example if a name has an unusual spelling.
        """
        divided = self.divide(line)
        if divided is None:
            return None
        found = {pair.partition(b"=")[0].decode() for pair in divided.credentials.split(b"&")}
        return divided.credentials if found == set(names) else None
