"""S2's errors: their codes, statuses and bodies (S2's documentation, "Error codes").

Every error has a JSON body, whatever the request accepts.  Most are a code and a message.  The body of a 412 is the
condition that failed with the value that would have passed, and the body of a 416 is the tail.  Sessions carry the same
statuses and bodies in their terminal frames, and SSE the bodies in `error` events.

A code tells a client whether to try again: of the 409s only `transaction_conflict`, of an append none whose effect is
not known.  `unavailable` promises that the request had no effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never

import orjson

from gateway.s2.json_format import BadFormat, BadJson, InvalidJson, decode_tail, encode_tail
from gateway.s2.protobuf import BadProtobuf, InvalidProtobuf
from gateway.s2.read_query import BadQuery, InvalidQuery
from gateway.s2.records import MAX_U64, InvalidAppend, StreamPosition
from gateway.s2.session import BadFrame
from gateway.s2.sse import BadEventId


class S2ErrorCode(Enum):
    """A code and the status that it is sent with."""

    BAD_FRAME = ("bad_frame", 400)
    BAD_HEADER = ("bad_header", 400)
    BAD_JSON = ("bad_json", 400)
    BAD_PATH = ("bad_path", 400)
    BAD_PROTO = ("bad_proto", 400)
    BAD_QUERY = ("bad_query", 400)
    PERMISSION_DENIED = ("permission_denied", 403)
    QUOTA_EXHAUSTED = ("quota_exhausted", 403)
    ACCESS_TOKEN_NOT_FOUND = ("access_token_not_found", 404)
    BASIN_NOT_FOUND = ("basin_not_found", 404)
    STREAM_NOT_FOUND = ("stream_not_found", 404)
    TIMEOUT = ("timeout", 408)
    BASIN_DELETION_PENDING = ("basin_deletion_pending", 409)
    RESOURCE_ALREADY_EXISTS = ("resource_already_exists", 409)
    STREAM_DELETION_PENDING = ("stream_deletion_pending", 409)
    TRANSACTION_CONFLICT = ("transaction_conflict", 409)
    INVALID = ("invalid", 422)
    RATE_LIMITED = ("rate_limited", 429)
    OTHER = ("other", 500)
    STORAGE = ("storage", 500)
    HOT_SERVER = ("hot_server", 502)
    UNAVAILABLE = ("unavailable", 503)
    SERVER_DRAINING = ("server_draining", 503)

    @property
    def code(self) -> str:
        return self.value[0]

    @property
    def status(self) -> int:
        return self.value[1]


Refusal = InvalidAppend | InvalidJson | BadEventId | BadFormat | BadFrame | BadJson | BadProtobuf | BadQuery
"""What decoding and checking a request can raise."""


@dataclass(frozen=True, slots=True)
class FencingTokenMismatch:
    """412: the append named another fencing token than the stream's, which is `expected`."""

    expected: str


@dataclass(frozen=True, slots=True)
class SeqNumMismatch:
    """412: the append named another sequence number than its first record would get, which is `expected`."""

    expected: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """416: the read starts where there are no records yet."""

    tail: StreamPosition


@dataclass(frozen=True, slots=True)
class Other:
    """Any other error.  `code` is empty if the body is not S2's, as that of a proxy in between may be."""

    code: str
    message: str


Error = FencingTokenMismatch | SeqNumMismatch | Unwritten | Other


def code_of(refusal: Refusal) -> S2ErrorCode:
    """The code that a bad request is refused with; the message is the exception's text."""
    match refusal:
        case InvalidAppend() | InvalidJson() | InvalidProtobuf() | InvalidQuery():
            return S2ErrorCode.INVALID
        case BadEventId() | BadFormat():
            return S2ErrorCode.BAD_HEADER
        case BadFrame():
            return S2ErrorCode.BAD_FRAME
        case BadJson():
            return S2ErrorCode.BAD_JSON
        case BadProtobuf():
            return S2ErrorCode.BAD_PROTO
        case BadQuery():
            return S2ErrorCode.BAD_QUERY
        case _:
            assert_never(refusal)


def error_body(code: S2ErrorCode, message: str) -> bytes:
    """The JSON body of every error but 412 and 416."""
    return orjson.dumps({"code": code.code, "message": message})


def fencing_token_mismatch_body(expected: str) -> bytes:
    """The body of a 412: the stream's fencing token."""
    return orjson.dumps({"fencing_token_mismatch": expected})


def seq_num_mismatch_body(expected: int) -> bytes:
    """The body of a 412: the number that the next record gets."""
    return orjson.dumps({"seq_num_mismatch": expected})


def unwritten_body(tail: StreamPosition) -> bytes:
    """The body of a 416: the tail."""
    return encode_tail(tail)


def parse_error(status: int, body: bytes) -> Error:
    """What an answer with an error says; it reads any body and raises nothing."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = None
    if isinstance(fields, dict):
        match status, fields:
            case 412, {"fencing_token_mismatch": str(token)}:
                return FencingTokenMismatch(token)
            case 412, {"seq_num_mismatch": int(number)} if type(number) is int and 0 <= number <= MAX_U64:
                return SeqNumMismatch(number)
            case 416, {"tail": dict()}:
                try:
                    return Unwritten(decode_tail(body))
                except BadJson:
                    pass
            case _, {"code": str(code), "message": str(message)}:
                return Other(code, message)
    return Other("", body.decode("utf-8", "replace"))
