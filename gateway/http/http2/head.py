"""Requests of HTTP/2 as handlers know requests (RFC 9113 section 8.3), and as HTTP/1.1 would spell them.

What passes here can be written as one HTTP/1.1 head that says the same and nothing else: that is what keeps a request
from being two at the origin.  `Malformed` is what RFC 9113 says of a request (section 8.1.1); `Refused` is a good one
that this gateway does not answer over HTTP/1.1 either.
"""

from __future__ import annotations

import re
from typing import Final

from multidict import CIMultiDict

from gateway.http.http2.blocks import FieldList
from gateway.http.request import LONGEST_HEAD, LONGEST_LINE, MOST_FIELDS, Fields, RequestHead

VERSION: Final = "2.0"
MOST_LIST_BYTES: Final = LONGEST_HEAD + LONGEST_LINE + 32 * (MOST_FIELDS + 8)
"""What is read of a field list before its sender is taken for an attacker (sizes as in RFC 9113 section 6.5.2)."""
_LONGEST_SPELLING: Final = 4_096

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+").fullmatch
_METHOD: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+").fullmatch
_VALUE: Final = re.compile(rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?").fullmatch
"""As in a field of HTTP/1.1 (RFC 9110 section 5.5): no control characters, no blanks at the ends."""
_PATH: Final = re.compile(rb"(?:/[!-\"$-~]*|\*)").fullmatch
_AUTHORITY: Final = re.compile(rb"[!$-.0-;=A-\[\]_a-z~%&'()*+,]+").fullmatch
_DIGITS: Final = re.compile(rb"[0-9]{1,18}").fullmatch
_SCHEMES: Final = frozenset({b"http", b"https"})
_PSEUDO: Final = frozenset({b":method", b":scheme", b":authority", b":path"})
_FORBIDDEN: Final = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_UNPLAIN: Final = frozenset({b"content-length", b"expect"})


class Http2Request:
    """What a field list asks for.  One object may be what many requests ask for: nothing of it is changed."""

    __slots__ = ("_headers", "_with_body", "_without_body", "alias", "is_malformed", "length", "method", "target")

    def __init__(self, fields: FieldList) -> None:
        self.is_malformed = False
        self._headers: CIMultiDict[str] | None = None
        self._with_body: Fields | None = None
        self._without_body: Fields | None = None
        self.method = self.target = ""
        self.length: int | None = None
        """Bytes of the body as announced."""
        self.alias: bytes | None = None
        """The request in HTTP/1.1, where it is a plain GET."""
        try:
            self._read(fields)
        except _Malformed:
            self.is_malformed = True
        except _Refused:
            pass

    @property
    def is_answered(self) -> bool:
        """Whether it is a request that may be answered."""
        return self._headers is not None

    def head(self, *, has_body: bool) -> RequestHead:
        """The request without its body."""
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
            is_too_much = is_too_much or len(name) + len(value) > LONGEST_LINE
            if not _VALUE(value):
                raise _Malformed
            if name[:1] == b":":
                if regular or cookies or host is not None or name not in _PSEUDO or name in pseudo:
                    raise _Malformed
                pseudo[name] = value
            elif not _NAME(name) or name in _FORBIDDEN or (name == b"te" and value.lower() != b"trailers"):
                raise _Malformed
            elif name == b"host":
                if host is not None:
                    raise _Malformed
                host = value
            elif name == b"cookie":
                # One line over HTTP/1.1 (RFC 9113 section 8.2.3).
                cookies.append(value)
            elif name == b"content-length":
                length = int(value) if _DIGITS(value) else -1
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
        if method == b"CONNECT":
            raise _Refused
        if path is None or not path or b":scheme" not in pseudo:
            raise _Malformed
        if authority is None:
            authority = host
        elif host is not None and host.lower() != authority.lower():
            raise _Malformed
        if not authority or not _AUTHORITY(authority) or not _PATH(path) or (path == b"*" and method != b"OPTIONS"):
            raise _Malformed
        if is_too_much or size > LONGEST_HEAD or pseudo[b":scheme"].lower() not in _SCHEMES:
            raise _Refused
        if cookies:
            regular.append((b"cookie", b"; ".join(cookies)))
            if len(regular[-1][1]) > LONGEST_LINE:
                raise _Refused
        self.method, self.target = method.decode(), path.decode("utf-8", "surrogateescape")
        self._headers = CIMultiDict([("Host", authority.decode())])
        self._headers.extend([(name.decode(), value.decode("utf-8", "surrogateescape")) for name, value in regular])
        if method == b"GET" and size < _LONGEST_SPELLING and not any(name in _UNPLAIN for name, _ in regular):
            lines = [b"%b: %b\r\n" % (name.title(), value) for name, value in regular]
            self.alias = b"GET %b HTTP/1.1\r\nHost: %b\r\n%b\r\n" % (path, authority, b"".join(lines))


class _Malformed(Exception):
    """No request."""


class _Refused(Exception):
    """Beyond the bounds, or nothing that is answered here."""
