"""The head of a request to an origin, in bytes.

What could begin another line or another request never goes out, wherever it came from: the head is looked at once, as
a whole, after it has been made (RFC 9112 section 11.1).  Framing is not the caller's to say: it follows from the body.
"""

from __future__ import annotations

import re
from typing import Final

from multidict import CIMultiDict, CIMultiDictProxy

_HEAD: Final = re.compile(
    r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+ [^\x00-\x20\x7f]+ HTTP/1\.1\r\n"
    r"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n)+\r\n"
)
_TARGET: Final = re.compile(r"/[!-~]*")
_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
_OFTEN_EMPTY: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that say nothing of a body where they have none (RFC 9110 section 8.6)."""

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE"})
_SPELT: Final = """
    Accept Accept-Encoding Accept-Language Authorization Cache-Control CDN-Loop Connection Content-Length Content-Type
    Cookie Forwarded Host If-Match If-None-Match Origin Pragma Producer-Epoch Producer-Id Producer-Seq Range Referer
    Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site Stream-Closed Stream-Cursor Stream-Expires-At Stream-Seq Stream-TTL
    Traceparent Tracestate User-Agent Via X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto X-Request-Id
"""
_USUAL: Final = frozenset(spelt for name in _SPELT.split() for spelt in (name, name.lower(), name.title()))
"""Field names that are known to be tokens."""


class FixedHeaders(CIMultiDict[str]):
    """Headers that nobody changes any more: their lines are made once.  A copy is not fixed."""

    __slots__ = ("lines",)

    lines: str | None
    """The field lines but for framing, None where they need a closer look together with the rest."""

    @classmethod
    def of(cls, headers: CIMultiDict[str]) -> FixedHeaders:
        """These, fixed."""
        fixed = cls(headers)
        fields = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _FRAMING]
        is_usual = _USUAL.issuperset(headers) and "".join(fields).isprintable()
        fixed.lines = "".join([f"{field}\r\n" for field in fields]) if is_usual else None
        return fixed

    def copy(self) -> FixedHeaders:
        """The same, to be changed: no lines are kept for it."""
        copied = FixedHeaders(self)
        copied.lines = None
        return copied


class UnfitRequest(ValueError):
    """A request that may not be written."""


def request_head(
    method: str,
    target: str,
    host: str,
    headers: CIMultiDict[str] | CIMultiDictProxy[str],
    length: int | None,
    *,
    is_chunked: bool = False,
) -> bytes:
    """A request's head for a target in origin form, with a body of `length` bytes, in chunks, or without one.

    `host` is what the Host field says unless the headers have one.  UnfitRequest where a part of it is no token, or
    has control characters.
    """
    if type(headers) is FixedHeaders and headers.lines is not None and method in _METHODS and _TARGET.fullmatch(target):
        if is_chunked:
            framing = "Transfer-Encoding: chunked\r\n"
        elif length is not None:
            framing = f"Content-Length: {length}\r\n"
        else:
            framing = "" if method in _OFTEN_EMPTY else "Content-Length: 0\r\n"
        named = "" if "Host" in headers else f"Host: {host}\r\n"
        return f"{method} {target} HTTP/1.1\r\n{named}{headers.lines}{framing}\r\n".encode("utf-8", "surrogateescape")
    lines = [f"{method} {target} HTTP/1.1"]
    if "Host" not in headers:
        lines.append(f"Host: {host}")
    if "Content-Length" in headers or "Transfer-Encoding" in headers:
        lines += [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _FRAMING]
    else:
        lines += [f"{name}: {value}" for name, value in headers.items()]
    if is_chunked:
        lines.append("Transfer-Encoding: chunked")
    elif length is not None:
        lines.append(f"Content-Length: {length}")
    elif method not in _OFTEN_EMPTY:
        lines.append("Content-Length: 0")
    lines += ("", "")
    text = "\r\n".join(lines)
    # What is usual needs no closer look: names that are known, and no control character anywhere.
    is_usual = method in _METHODS and target and " " not in target and _USUAL.issuperset(headers)
    is_usual = is_usual and "".join(lines).isprintable()
    # A value with a line end in it reads as two fields, and by that only.
    if not is_usual and (_HEAD.fullmatch(text) is None or text.count("\n") != len(lines) - 1):
        raise UnfitRequest("a request that could be read as another one")
    return text.encode("utf-8", "surrogateescape")
