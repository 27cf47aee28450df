"""Which stream of which basin a URL of the engine's names.

Such a URL is `route://<route>/<path of the origin>/<basin>/<stream>`: the engine has put a configured basin where
clients' paths name one otherwise.  The rest of the path is the stream's name, slashes included.  A slash that is
escaped would be a second spelling of the same stream, whose writes and reads were kept apart, so it is refused.

An offset is the sequence number of the record that comes next, in 20 digits: there is one at each record boundary.  All
have the width of the largest sequence number, so that they compare as text in the order of the records.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from gateway.s2.records import MAX_U64

MOST_NAME_BYTES: Final = 512
"""The longest name of an S2 stream."""

_BASIN: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


class BadName(ValueError):
    """The path names no stream; the message is one line for the client."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """An S2 stream."""

    basin: str
    stream: str
    """Its name, decoded."""

    @property
    def path(self) -> str:
        """The path of the stream below the origin's own."""
        return "/v1/streams/" + quote(self.stream, safe="")


def parse_name(path: str) -> StreamName:
    """The stream that the path `/<basin>/<stream>` names.  Raises `BadName`."""
    basin, slash, rest = path.removeprefix("/").partition("/")
    if not slash or not rest or _BASIN.fullmatch(basin) is None:
        raise BadName("The path is that of a basin and a stream")
    if "%2F" in rest.upper():
        raise BadName("A slash in a stream's name is not escaped")
    try:
        name = unquote_to_bytes(rest)
        if len(name) > MOST_NAME_BYTES:
            raise BadName(f"A stream's name has at most {MOST_NAME_BYTES} bytes")
        return StreamName(basin, name.decode())
    except UnicodeDecodeError:
        raise BadName("A stream's name is UTF-8") from None


WIDTH: Final = len(str(MAX_U64))


class BadOffset(ValueError):
    """The text is no offset of a bridged stream."""


def offset_at(seq_num: int) -> str:
    """The offset before the record `seq_num`."""
    return f"{seq_num:0{WIDTH}d}"


def parse_offset(text: str) -> int:
    """The sequence number of the record after an offset.  Raises `BadOffset`."""
    # ASCII first: `isdigit` takes digits of other scripts.
    if len(text) != WIDTH or not text.isascii() or not text.isdigit():
        raise BadOffset(text)
    seq_num = int(text)
    if seq_num > MAX_U64:
        raise BadOffset(text)
    return seq_num
