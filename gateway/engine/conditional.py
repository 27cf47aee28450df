"""Conditional reads: when an answer becomes a 304 (RFC 9110 sections 13.1.2 and 15.4.5).

A client that sends the answer's own tag in If-None-Match has the bytes already and gets none.  `gateway.protocol.etag`
makes and compares tags; `gateway.server.remembered` repeats a 304 like any other answer.
"""

from __future__ import annotations

from multidict import CIMultiDict

from gateway.engine.read import Read
from gateway.protocol.etag import matches

_NOT_MODIFIED_DROPS = ("Content-Type",)


def is_not_modified(read: Read, headers: CIMultiDict[str]) -> bool:
    """Whether the client has what a 200 with these headers would send."""
    return matches(read.if_none_match, headers["ETag"])


def not_modified(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """The headers of a 304 in place of a 200 with `headers`."""
    for name in _NOT_MODIFIED_DROPS:
        headers.popall(name, None)
    return headers
