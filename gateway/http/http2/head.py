"""Converts HTTP/2 requests (RFC 9113 section 8.3) into the form that handlers use, and into the bytes of an equal
HTTP/1.1 request.

Every accepted request can be written as one HTTP/1.1 head with exactly the same meaning.  Otherwise an origin could
read one request as two.  `_Malformed` is raised for a malformed request (RFC 9113 section 8.1.1).  `_Refused` is raised
for a valid request that the gateway refuses over HTTP/1.1 too.
"""

from __future__ import annotations

import re
from typing import Final

from multidict import CIMultiDict

from gateway.http.http2.blocks import FORBIDDEN, FieldList, is_length, is_name, is_value
from gateway.http.request_parser import LONGEST_HEAD, LONGEST_LINE, MOST_FIELDS, Fields, Mark, RequestHead

VERSION: Final = "2.0"
MOST_LIST_BYTES: Final = LONGEST_HEAD + LONGEST_LINE + 32 * (MOST_FIELDS + 8)
"""The size of a decoded field list, in bytes, above which its sender counts as an attacker.  The size is measured as in
RFC 9113 section 6.5.2.
"""
_LONGEST_ALIAS: Final = 4_096

_METHOD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_PATH: Final = re.compile(rb"(?:/[!-\"$-~]*|\*)").fullmatch
_AUTHORITY: Final = re.compile(rb"[!$-.0-;=A-\[\]_a-z~%&'()*+,]+").fullmatch
_SCHEMES: Final = frozenset({b"http", b"https"})
_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
_UNPLAIN: Final = frozenset({b"content-length", b"expect"})


class Http2Request:
    """The request in a field list.  Immutable, and shared by equal requests."""

    __slots__ = (
        "_headers",
        "_with_body",
        "_without_body",
        "alias",
        "is_malformed",
        "length",
        "method",
        "refusal",
        "target",
    )

    def __init__(self, fields: FieldList) -> None:
        self.is_malformed = False
        self.refusal = Mark.BROKEN
        """The reason why the gateway refuses a valid request.  Used only if `is_answered` is False."""
        self._headers: CIMultiDict[str] | None = None
        self._with_body: Fields | None = None
        self._without_body: Fields | None = None
        self.method = self.target = ""
        self.length: int | None = None
        """The Content-Length in bytes; None without the field."""
        self.alias: bytes | None = None
        """The bytes of the same request in HTTP/1.1, if the request is a plain GET."""
        try:
            self._read(fields)
        except _Malformed:
            self.is_malformed = True
        except _Refused as refused:
            self.refusal = refused.why

    @property
    def is_answered(self) -> bool:
        """Whether the request is valid and not refused."""
        return self._headers is not None

    def head(self, *, has_body: bool) -> RequestHead:
        """Return the request's head."""
        assert self._headers is not None
        if has_body:
            fields = self._with_body = self._with_body or Fields(self._headers, True, self.length)
        else:
            fields = self._without_body = self._without_body or Fields(self._headers, True, 0)
        return RequestHead(self.method, self.target, VERSION, fields)

    def _read(self, fields: FieldList) -> None:
        pseudo: dict[bytes, bytes] = {}
        regular: list[tuple[bytes, bytes]] = []
        cookies: list[bytes] = []
        host: bytes | None = None
        is_too_much = len(fields) > MOST_FIELDS + len(_PSEUDO)
        size = 0
        for name, value in fields:
            size += len(name) + len(value)
            is_too_much = is_too_much or (len(name) + len(value) > LONGEST_LINE and name != b":path")
            if not is_value(value):
                raise _Malformed
            if name[:1] == b":":
                if regular or cookies or host is not None or name not in _PSEUDO or name in pseudo:
                    raise _Malformed
                pseudo[name] = value
            elif not is_name(name) or name in FORBIDDEN or (name == b"te" and value.lower() != b"trailers"):
                raise _Malformed
            elif name == b"host":
                if host is not None:
                    raise _Malformed
                host = value
            elif name == b"cookie":
                # HTTP/1.1 has one Cookie line (RFC 9113 section 8.2.3).
                cookies.append(value)
            elif name == b"content-length":
                length = int(value) if is_length(value) else -1
                if length < 0 or self.length not in (None, length):
                    raise _Malformed
                if self.length is None:
                    self.length = length
                    regular.append((name, value))
            else:
                regular.append((name, value))
        method, path = pseudo.get(b":method"), pseudo.get(b":path")
        authority = pseudo.get(b":authority")
        if method is None or not _METHOD(method):
            raise _Malformed
        if method == b"CONNECT" or method.upper() != method:
            # Methods are case-sensitive (RFC 9110 section 9.1).  `delete` is an unknown method, but some origins would
            # carry out DELETE.
            raise _Refused(Mark.BROKEN)
        if path is None or not path or b":scheme" not in pseudo:
            raise _Malformed
        if authority is None:
            authority = host
        elif host is not None and host.lower() != authority.lower():
            raise _Malformed
        if not authority or not _AUTHORITY(authority) or not _PATH(path) or (path == b"*" and method != b"OPTIONS"):
            raise _Malformed
        if len(path) > LONGEST_LINE:
            raise _Refused(Mark.TARGET_TOO_LONG)
        if is_too_much or size > LONGEST_HEAD:
            raise _Refused(Mark.HEAD_TOO_LARGE)
        if pseudo[b":scheme"].lower() not in _SCHEMES:
            raise _Refused(Mark.BROKEN)
        if cookies:
            regular.append((b"cookie", b"; ".join(cookies)))
            if len(regular[-1][1]) > LONGEST_LINE:
                raise _Refused(Mark.HEAD_TOO_LARGE)
        self.method, self.target = method.decode(), path.decode("utf-8", "surrogateescape")
        self._headers = CIMultiDict([("Host", authority.decode())])
        self._headers.extend([(name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in regular])
        if method == b"GET" and size < _LONGEST_ALIAS and not any(name in _UNPLAIN for name, _ in regular):
            lines = [b"%b: %b\r\n" % (name.title(), value) for name, value in regular]
            self.alias = b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (path, authority, b"".join(lines))


class _Malformed(Exception):
    """The field list is not a valid request (RFC 9113 section 8.1.1)."""


class _Refused(Exception):
    """The request exceeds the bounds, or the gateway does not support its method or scheme."""

    def __init__(self, why: Mark) -> None:
        super().__init__(why)
        self.why = why
