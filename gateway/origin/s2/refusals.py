"""The errors with which a request may be answered.

Each has the status and the JSON body of a unary answer.  A session sends both in its terminal frame, and an SSE read
sends the body in its error event.
"""

from __future__ import annotations

from typing import Final

from gateway.s2 import errors
from gateway.s2.errors import (
    S2ErrorCode,
    code_of,
    error_body,
    fencing_token_mismatch_body,
    seq_num_mismatch_body,
    unwritten_body,
)
from gateway.s2.json_format import BadFormat, BadJson
from gateway.s2.protobuf import BadProtobuf
from gateway.s2.read_query import BadQuery
from gateway.s2.records import InvalidAppend, StreamPosition
from gateway.s2.session import BadFrame
from gateway.s2.sse import BadEventId

BAD_REQUESTS: Final = (InvalidAppend, BadEventId, BadFormat, BadFrame, BadJson, BadProtobuf, BadQuery)
"""The exceptions of decoding and checking a request."""


class Refusal(Exception):
    """An error answer: its status and its JSON body."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body.decode()}")
        self.status = status
        self.body = body


class Refused(Refusal):
    """An error with a code and a message."""

    def __init__(self, code: S2ErrorCode, message: str) -> None:
        super().__init__(code.status, error_body(code, message))
        self.code = code


class FencingTokenMismatch(Refusal):
    """412: the append's fencing token differs from the stream's, which the body states."""

    def __init__(self, actual: str) -> None:
        super().__init__(412, fencing_token_mismatch_body(actual))
        self.actual = actual


class SeqNumMismatch(Refusal):
    """412: the append's first record would get another sequence number, which the body states."""

    def __init__(self, actual: int) -> None:
        super().__init__(412, seq_num_mismatch_body(actual))
        self.actual = actual


class Unwritten(Refusal):
    """416: the read starts beyond the last record and does not wait; the body states the tail."""

    def __init__(self, tail: StreamPosition) -> None:
        super().__init__(416, unwritten_body(tail))
        self.tail = tail


def invalid(message: str) -> Refused:
    """Return a 422: the request is well formed but violates a rule."""
    return Refused(S2ErrorCode.INVALID, message)


def malformed(message: str) -> Refused:
    """Return a 400: the body is JSON, but not of the expected form."""
    return Refused(S2ErrorCode.BAD_JSON, message)


def refusal_of(error: Refusal | errors.Refusal) -> Refusal:
    """Return the error answer for an exception."""
    return error if isinstance(error, Refusal) else Refused(code_of(error), str(error))
