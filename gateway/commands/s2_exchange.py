"""Parses S2's answers for the commands: errors, and whether a retry may help."""

from __future__ import annotations

from typing import Final

import aiohttp

from gateway.commands.exchange import Transient, printable, refusal
from gateway.commands.failure import CommandFailed
from gateway.s2.errors import Other, S2ErrorCode, SeqNumMismatch, parse_error
from gateway.s2.json_format import BadJson, decode_tail
from gateway.s2.records import StreamPosition

_MOST_ERROR_BYTES: Final = 64 * 1024
_PASSING: Final = frozenset(code.code for code in S2ErrorCode if code.status >= 500 or code.status in (408, 429)) | {
    S2ErrorCode.TRANSACTION_CONFLICT.code
}
"""The codes of transient errors."""


async def s2_error(response: aiohttp.ClientResponse) -> CommandFailed | Transient:
    """Read the error of an answer outside 2xx, with S2's code and message."""
    return body_error(response, await response.content.read(_MOST_ERROR_BYTES))


def body_error(response: aiohttp.ClientResponse, body: bytes) -> CommandFailed | Transient:
    """Parse the error of an answer outside 2xx from its body."""
    error = parse_error(response.status, body)
    if not isinstance(error, Other):
        return refusal(response, body.decode("utf-8", "replace"))
    if error.code in _PASSING:
        return Transient(f"{response.status} {_text(error)}")
    first = next((line.strip() for line in error.message.splitlines() if line.strip()), "")
    return refusal(response, _text(error) if error.code else first)


def event_error(url: str, body: bytes) -> CommandFailed | Transient:
    """Parse the error that has ended a session."""
    error = parse_error(0, body)
    if isinstance(error, Other) and error.code and error.code not in _PASSING:
        return CommandFailed(f"{url}: {_text(error)}")
    return Transient(_text(error) if isinstance(error, Other) else "the session ended with an error")


def _text(error: Other) -> str:
    return printable(f"{error.code}: {error.message}".removeprefix(": "))


def tail_in(url: str, body: bytes) -> StreamPosition:
    """Parse the tail in the answer to a check-tail request, or in the body of a 416.  Raises CommandFailed."""
    try:
        return decode_tail(body)
    except BadJson:
        raise CommandFailed(f"{url}: not an S2 stream: no tail in the answer") from None


def mismatched_seq_num(status: int, body: bytes) -> int | None:
    """If an append was refused because of its `match_seq_num`, return the number of the next record, else None."""
    error = parse_error(status, body)
    return error.expected if isinstance(error, SeqNumMismatch) else None
