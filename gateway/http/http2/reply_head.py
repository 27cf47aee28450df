"""Replies of HTTP/2 in the form that readers know (RFC 9113 section 8.3.2).

They are checked as strictly as those of HTTP/1.1 (`http/reply`): the same bounds, statuses and field syntax.
"""

from __future__ import annotations

import re
from http.client import responses
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

from gateway.http.http2.blocks import FORBIDDEN, FieldList, is_length, is_name, is_value
from gateway.http.reply import MOST_FIELDS, MOST_HEAD_BYTES, MOST_LINE_BYTES, Head, Interim
from gateway.http.reply_lines import NAMES

MOST_LIST_BYTES: Final = MOST_HEAD_BYTES + 32 * (MOST_FIELDS + 8)
"""Decoded bytes of a reply's field list (sizes as in RFC 9113 section 6.5.2)."""

_is_status: Final = re.compile(rb"[1-9][0-9]{2}").fullmatch


class Http2Reply:
    """The reply that a field list stands for.  Immutable: one object may be shared by many equal replies."""

    __slots__ = ("head", "interim", "is_malformed")

    def __init__(self, fields: FieldList) -> None:
        self.interim: Interim | None = None
        """The reply, if it is a valid interim one (1xx)."""
        self.head: Head | None = None
        """The head of a valid final reply."""
        status = _status_of(fields)
        if status is not None and (102 <= status < 200 or status == 100):
            self.interim = Interim(status, CIMultiDictProxy(_headers_of(fields)))
        elif status is not None and status >= 200:
            self.head = _head_of(status, fields)
        self.is_malformed = self.head is None and self.interim is None
        """Whether the reply is invalid.  That includes 101, which HTTP/2 does not have (RFC 9113 section 8.6)."""


def _status_of(fields: FieldList) -> int | None:
    """The status of a reply; None if its fields are invalid, or too large or too many."""
    if not fields or fields[0][0] != b":status" or not _is_status(fields[0][1]) or len(fields) > MOST_FIELDS + 1:
        return None
    size = 0
    for name, value in fields[1:]:
        size += len(name) + len(value)
        if len(name) + len(value) > MOST_LINE_BYTES or name in FORBIDDEN or not is_name(name) or not is_value(value):
            return None
    return int(fields[0][1]) if size <= MOST_HEAD_BYTES else None


def _head_of(status: int, fields: FieldList) -> Head | None:
    """The head of a final reply; None if its Content-Length is repeated or is not a number."""
    length: int | None = None
    for name, value in fields:
        if name == b"content-length":
            if length is not None or not is_length(value):
                return None
            length = int(value)
    headers = CIMultiDictProxy(_headers_of(fields))
    return Head(status, responses.get(status, ""), headers, length, is_delimited=True)


def _headers_of(fields: FieldList) -> CIMultiDict[str]:
    return CIMultiDict(
        [(NAMES.get(name) or name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in fields[1:]]
    )
