"""S2's errors: their codes, statuses and bodies (S2's documentation, "Error codes").

Every error has a JSON body, whatever the request accepts.  Most bodies are a code and a message.  The body of a 412
names the condition that failed and the value that would have passed.  The body of a 416 is the tail.  Sessions carry
the same statuses and bodies in their terminal frames, and SSE carries the bodies in `error` events.

The code shows a client whether to retry.  Of the 409s only `transaction_conflict` can be retried.  An append must not
be retried if it may have taken effect.  `unavailable` guarantees that the request had no effect.

A server that is about to shut down announces it: by `server_draining` (503) in answer to a request or at the end of a
session, or by advice to reconnect in a session's frame.  The announcement concerns the connection: behind a load
balancer, a new connection leads to another server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, assert_never

import orjson

from gateway.s2 import session, sse
from gateway.s2.json_format import BadFormat, BadJson, InvalidJson, decode_tail, encode_tail
from gateway.s2.protobuf import BadProtobuf, InvalidProtobuf
from gateway.s2.read_query import BadQuery, InvalidQuery
from gateway.s2.records import MAX_U64, InvalidAppend, StreamPosition
from gateway.s2.session import BadFrame, FrameHead
from gateway.s2.sse import BadEventId


class S2ErrorCode(Enum):
    """An error code and its status."""

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
"""The exceptions of decoding and checking a request."""


@dataclass(frozen=True, slots=True)
class FencingTokenMismatch:
    """412: the append's fencing token differs from the stream's fencing token, which is `expected`."""

    expected: str


@dataclass(frozen=True, slots=True)
class SeqNumMismatch:
    """412: the append's first record would get the sequence number `expected` instead of the requested number."""

    expected: int


@dataclass(frozen=True, slots=True)
class Unwritten:
    """416: the read starts beyond the last record."""

    tail: StreamPosition


@dataclass(frozen=True, slots=True)
class Other:
    """Any other error.  `code` is empty if the body is not in S2's format, as in the error of a proxy."""

    code: str
    message: str


Error = FencingTokenMismatch | SeqNumMismatch | Unwritten | Other


def code_of(refusal: Refusal) -> S2ErrorCode:
    """Return the code for an exception.  The exception's text is the message."""
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
    """Return the JSON body of an error other than 412 and 416."""
    return orjson.dumps({"code": code.code, "message": message})


def fencing_token_mismatch_body(expected: str) -> bytes:
    """Return the body of a 412 that states the stream's fencing token."""
    return orjson.dumps({"fencing_token_mismatch": expected})


def seq_num_mismatch_body(expected: int) -> bytes:
    """Return the body of a 412 that states the next record's sequence number."""
    return orjson.dumps({"seq_num_mismatch": expected})


def unwritten_body(tail: StreamPosition) -> bytes:
    """Return the body of a 416, which states the tail."""
    return encode_tail(tail)


def parse_error(status: int, body: bytes) -> Error:
    """Parse the body of an error answer.  Accepts any body, and raises nothing."""
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


_MOST_ERROR_BYTES: Final = 4_096
_EVENT: Final = b"\nevent: error"
_CODE: Final = f'"{S2ErrorCode.SERVER_DRAINING.code}"'.encode()


def says_draining(status: int, body: bytes) -> bool:
    """Return whether an error announces that the server is about to shut down."""
    if status != S2ErrorCode.SERVER_DRAINING.status:
        return False
    said = parse_error(status, body)
    return isinstance(said, Other) and said.code == S2ErrorCode.SERVER_DRAINING.code


class DrainWatch:
    """Watches a relayed answer for the server's announcement that it shuts down, and then calls `on_drain` once.

    It keeps only a few bytes, whatever the size of the answer: the bodies of session messages are skipped.
    """

    __slots__ = ("_buffer", "_look", "_on_drain", "_skipped")

    def __init__(self, status: int, headers: Mapping[str, str], on_drain: Callable[[], object]) -> None:
        self._on_drain = on_drain
        self._buffer = b""
        """The received bytes that have not been examined yet."""
        self._skipped = 0
        """How many more bytes of the present message to skip."""
        type_ = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self._look: Callable[[DrainWatch, bytes], bool] | None = None
        """Decides whether the bytes so far contain the announcement; None when nothing more needs to be read.  Stored
        unbound, to avoid a reference cycle."""
        if status == S2ErrorCode.SERVER_DRAINING.status:
            self._look = DrainWatch._in_error
        elif status == 200 and type_ == session.CONTENT_TYPE:
            self._look = DrainWatch._in_session
        elif status == 200 and type_ == sse.CONTENT_TYPE:
            self._buffer, self._look = b"\n", DrainWatch._in_events

    def see(self, chunk: bytes) -> None:
        """Process a part of the body."""
        if self._look is not None and self._look(self, chunk):
            self._look, self._buffer = None, b""
            self._on_drain()

    def _in_error(self, chunk: bytes) -> bool:
        self._buffer = (self._buffer + chunk)[:_MOST_ERROR_BYTES]
        return says_draining(S2ErrorCode.SERVER_DRAINING.status, self._buffer)

    def _in_events(self, chunk: bytes) -> bool:
        # Line breaks within records are escaped, so a record cannot look like the event.
        data = self._buffer + chunk
        at = data.find(_EVENT)
        if at >= 0:
            self._buffer = data[at : at + _MOST_ERROR_BYTES]
            return _CODE in self._buffer
        self._buffer = data[-len(_EVENT) :]
        return False

    def _in_session(self, chunk: bytes) -> bool:
        at = min(self._skipped, len(chunk))
        self._skipped -= at
        while not self._skipped and at < len(chunk):
            taken = session.HEAD_BYTES - len(self._buffer)
            if taken > 0:
                self._buffer += chunk[at : at + taken]
                at += taken
            if len(self._buffer) < session.HEAD_BYTES:
                return False
            head = FrameHead.parse(self._buffer)
            if head.is_reconnect_advised:
                return True
            if head.is_terminal:
                self._buffer = (self._buffer + chunk[at:])[:_MOST_ERROR_BYTES]
                body = self._buffer[session.HEAD_BYTES :]
                return len(body) >= 2 and says_draining(int.from_bytes(body[:2]), body[2:])
            self._buffer = b""
            self._skipped = max(0, head.size - (len(chunk) - at))
            at += head.size
        return False
