"""Response heads in bytes (RFC 9112 section 4)."""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from multidict import CIMultiDict, istr

from gateway.errors import UpstreamBroken
from gateway.http.outgoing import PassedFields

_CONTENT_LENGTH: Final = istr("Content-Length")
_DATE: Final = istr("Date")

JOINED_BYTES: Final = 1 << 14
"""A body up to this size is joined with its head, for one write without a list."""


@lru_cache(maxsize=128)
def status_line(status: int, reason: str | None = None) -> bytes:
    """The status line; `reason` defaults to the standard phrase, which is empty for an unknown status."""
    if reason is None:
        try:
            reason = HTTPStatus(status).phrase
        except ValueError:
            reason = ""
    return b"HTTP/1.1 %d %b\r\n" % (status, reason.encode("utf-8", "surrogateescape"))


def field_lines(headers: CIMultiDict[str]) -> bytes:
    """The field lines of a head, each with its line end, without the empty line.

    Raises UpstreamBroken for a value that contains a line break: it came from an origin and must not be passed on.
    """
    if type(headers) is PassedFields and headers.lines is not None:
        return headers.lines
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise UpstreamBroken
    return lines.encode("utf-8", "surrogateescape")


def state_length(headers: CIMultiDict[str], size: int) -> None:
    """State the length of a body, unless the fields state it already."""
    length, stated = str(size), headers.get(_CONTENT_LENGTH)
    if stated is None:
        headers.add(_CONTENT_LENGTH, length)
    elif stated != length:
        headers[_CONTENT_LENGTH] = length


@lru_cache(maxsize=4)
def date_line(second: int) -> bytes:
    """The Date field of a response made in this Unix second (RFC 9110 §6.6.1)."""
    return b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()


def interim_head(status: int, headers: CIMultiDict[str]) -> bytes:
    """The whole head of an interim reply.  Raises UpstreamBroken for a header that must not be written."""
    return status_line(status) + field_lines(headers) + b"\r\n"


def response_head(
    status: int, headers: CIMultiDict[str], wall: float, *, keeps: bool, reason: str | None = None
) -> bytes:
    """The whole head.  `wall` is the Unix time for a Date field if `headers` has none; `keeps` says whether the
    connection stays open.  Raises UpstreamBroken for a header that must not be written."""
    close = b"" if keeps else b"Connection: close\r\n"
    date = b"" if _DATE in headers else date_line(int(wall))
    return status_line(status, reason) + field_lines(headers) + close + date + b"\r\n"
