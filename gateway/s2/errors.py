"""S2's errors: their codes, statuses and bodies (S2's documentation, "Error codes")."""

from __future__ import annotations

from enum import Enum

from gateway.s2.records import StreamPosition


class ErrorCode(Enum):
    """A code and the status it is sent with."""

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


def error_body(code: ErrorCode, message: str) -> bytes:
    """The JSON body of every error but 412 and 416."""
    raise NotImplementedError


def fencing_token_mismatch_body(expected: str) -> bytes:
    """The body of a 412: the stream's fencing token."""
    raise NotImplementedError


def seq_num_mismatch_body(expected: int) -> bytes:
    """The body of a 412: the number that the next record gets."""
    raise NotImplementedError


def unwritten_body(tail: StreamPosition) -> bytes:
    """The body of a 416: the tail."""
    raise NotImplementedError
