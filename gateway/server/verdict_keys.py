"""The keys of remembered verdicts of authorisation: the stream, and the credentials in the request's query.

A verdict is kept with the header section in which the client presents its credential.  If a query contains a
credential, such as the signature of a signed URL, each client has request lines of its own, and each long-poll has a
new line, because its offset and cursor have moved on.  `CredentialLines.divide` divides a line into the credentials and
the rest.  The rest selects the live answer, so that clients with different signed URLs wait together.  The credentials,
with the stream, select the verdict.

A line is divided before it is parsed, so it may be malformed.  Both parts keep the spelling and the order of their
parameters.  Together they therefore determine every parameter, its value, and whether the line is well-formed.  A join
or a verdict is remembered under a part only if the whole line was parsed, and if the parser found the same credentials.
If both parts of a later line are found, the parser would therefore find the same stream, offset and credentials in that
line.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from gateway.engine.route import Route
from gateway.protocol.names import QUERY_OFFSET
from gateway.tuples import make

_MOST_STREAMS: Final = 1 << 10
"""The most names of streams that `StreamNames` keeps."""
_LONGEST_NAME: Final = 256
"""The most characters of such a name.  Clients choose the length of queries."""
MOST_BEGINNING_BYTES: Final = 1 << 21
"""The most bytes charged for remembered beginnings of request lines."""
_BEGINNING_COST: Final = 300
"""Bytes charged for a beginning in addition to its text, which is kept twice: whole, and divided."""
_OFFSET: Final = f"&{QUERY_OFFSET}=".encode()


class NamedStream(NamedTuple):
    """A stream as GETs name it, without the parameters of one read.

    A verdict of authorisation on one read of a stream holds for all reads with the same header section and the same
    credentials, because `offset`, `live` and `cursor` have no influence on the verdict.  The path belongs to the key:
    an origin may serve one stream under several paths, and rules can tell these apart.
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


class StreamNames:
    """The names of streams that verdicts are remembered for."""

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
    """The line without the credentials.  A line break stands for the question mark, so the rest of no line equals a
    whole line.
    """
    credentials: bytes
    """The parameters whose names are those of credentials in the usual spelling."""


class CredentialLines:
    """Divides request lines.  `names` are the names of query parameters that are credentials on some route.

    It owns the remembered beginnings of lines.  Most clients append the offset and the other parameters of a read to
    their signed URL, so the beginning of their lines, up to the offset, is always the same.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(f"{name}=".encode() for name in names)
        self._beginnings: dict[bytes, Divided] = {}
        self._size = 0
        """Bytes charged for the beginnings."""

    def __repr__(self) -> str:
        return f"<CredentialLines {len(self._beginnings)} known, {self._size} bytes>"

    def divide(self, line: bytes) -> Divided | None:
        """Divide the line of a GET.  Returns None if its query has no credentials in the usual spelling."""
        mark, end = line.find(b"?"), line.rfind(b" ")
        if mark < 0:
            return None
        names, rest = self._names, [line[:mark] + b"\r\n"]
        credentials: list[bytes] = []
        for pair in line[mark + 1 : end].split(b"&"):
            (credentials if pair[: pair.find(b"=") + 1] in names else rest).append(pair)
        if not credentials:
            return None
        return make(Divided, (b"&".join(rest) + line[end:], b"&".join(credentials)))

    def divide_known(self, line: bytes) -> tuple[bytes, bytes] | None:
        """Divide the line like `divide`, but faster if the beginning of the line is remembered.

        If the line has credentials after a remembered beginning, these stay in the rest.  No join and no verdict is
        remembered for such a rest.
        """
        end = line.find(_OFFSET)
        if end < 0 or (known := self._beginnings.get(line[:end])) is None:
            return self.divide(line)
        # A plain tuple, which takes less time to make.
        return known[0] + line[end:], known[1]

    def know_beginning(self, line: bytes) -> None:
        """Remember how to divide lines that begin like this line, whose verdict is remembered.

        Does nothing if the line has credentials after its offset.
        """
        beginning = line.partition(_OFFSET)[0]
        whole, divided = self.divide(line), self.divide(beginning + b" ")
        if whole is None or divided is None or divided.credentials != whole.credentials:
            return
        if beginning not in self._beginnings:
            self._size += (cost := _BEGINNING_COST + 2 * len(beginning))
            if self._size > MOST_BEGINNING_BYTES:
                self._beginnings.clear()
                self._size = cost
        self._beginnings[beginning] = make(Divided, (divided.rest[:-1], divided.credentials))

    def credentials_of(self, line: bytes, names: Collection[str]) -> bytes | None:
        """Return the credentials in a request line, if they are exactly the parameters with these names.  Returns None
        otherwise, for example if a name has an unusual spelling.
        """
        divided = self.divide(line)
        if divided is None:
            return None
        found = {pair.partition(b"=")[0].decode() for pair in divided.credentials.split(b"&")}
        return divided.credentials if found == set(names) else None
