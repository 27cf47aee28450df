"""Heads of responses in bytes, for what is written without aiohttp."""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus

from multidict import CIMultiDict

from gateway.errors import UpstreamBroken


@lru_cache(maxsize=128)
def status_line(status: int) -> bytes:
    """The first line of a response (RFC 9112 §4); a status without a standard phrase has an empty one."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase.encode())


def field_lines(headers: CIMultiDict[str]) -> bytes:
    """The field lines of a head, each with its line end, without the empty line.

    Raises UpstreamBroken for a value that would begin another line: it came from an origin that aiohttp's parser let
    pass, and must not go on.
    """
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise UpstreamBroken
    return lines.encode("utf-8", "surrogateescape")


@lru_cache(maxsize=4)
def date_line(second: int) -> bytes:
    """The Date field of a response made in this Unix second (RFC 9110 §6.6.1)."""
    return b"Date: %b\r\n" % formatdate(second, usegmt=True).encode()
