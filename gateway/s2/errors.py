"""S2's errors: their codes, statuses and bodies (S2's documentation, "Error codes").

Every error has a JSON body, whatever the request accepts.  Most are a code and a message.  The body of a 412 is the
condition that failed with the value that would have passed, and the body of a 416 is the tail.  Sessions carry the same
statuses and bodies in their terminal frames, and SSE the bodies in `error` events.

A code tells a client whether to try again: of the 409s only `transaction_conflict`, of an append none whose effect is
not known.  `unavailable` promises that the request had no effect.

A server that is about to leave, as before a restart, answers `server_draining` (503) to a request or at the end of a
session, or advises to reconnect in a session's frame.  It says so of the connection: behind a load balancer a new one
leads to another server.
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


_MOST_ERROR_BYTES: Final = 4_096
_EVENT: Final = b"\nevent: error"
_CODE: Final = f'"{S2ErrorCode.SERVER_DRAINING.code}"'.encode()


def says_draining(status: int, body: bytes) -> bool:
    """Whether an error says that its server is about to leave."""
    if status != S2ErrorCode.SERVER_DRAINING.status:
        return False
    said = parse_error(status, body)
    return isinstance(said, Other) and said.code == S2ErrorCode.SERVER_DRAINING.code


class DrainWatch:
    """Looks at the bytes of an answer that is passed on; `on_drain` is called at most once.

    It keeps a few bytes, whatever the size of the answer: the messages of a session are passed over.
    """

    __slots__ = ("_buffer", "_look", "_on_drain", "_skipped")

    def __init__(self, status: int, headers: Mapping[str, str], on_drain: Callable[[], object]) -> None:
        self._on_drain = on_drain
        self._buffer = b""
        """The bytes that are not decided yet."""
        self._skipped = 0
        """Bytes of a message that are still to come."""
        type_ = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        self._look: Callable[[DrainWatch, bytes], bool] | None = None
        """Decides whether the bytes so far say it; None once there is nothing more to see.  Not bound, so that no
        reference leads back."""
        if status == S2ErrorCode.SERVER_DRAINING.status:
            self._look = DrainWatch._in_error
        elif status == 200 and type_ == session.CONTENT_TYPE:
            self._look = DrainWatch._in_session
        elif status == 200 and type_ == sse.CONTENT_TYPE:
            self._buffer, self._look = b"\n", DrainWatch._in_events

    def see(self, chunk: bytes) -> None:
        """A part of the body has come."""
        if self._look is not None and self._look(self, chunk):
            self._look, self._buffer = None, b""
            self._on_drain()

    def _in_error(self, chunk: bytes) -> bool:
        self._buffer = (self._buffer + chunk)[:_MOST_ERROR_BYTES]
        return says_draining(S2ErrorCode.SERVER_DRAINING.status, self._buffer)

    def _in_events(self, chunk: bytes) -> bool:
        # A line break inside of a record is escaped, so no record can look like the event.
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
