"""Parsing of requests: the call, the stream, and the encoding of the answer.

Pure functions over a request's method, path and headers.  Bodies are read elsewhere.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Final, TypeVar, cast
from urllib.parse import parse_qsl, unquote_to_bytes

import orjson

from gateway.origin.s2.account import LARGEST_PAGE, PageQuery
from gateway.origin.s2.config import Json, StreamConfig
from gateway.origin.s2.names import BadName, check_basin_name, check_stream_name
from gateway.origin.s2.refusals import Refused, invalid, malformed
from gateway.s2.errors import S2ErrorCode
from gateway.s2.json_format import Format, parse_format

SESSION_TYPE: Final = "s2s/proto"
EVENT_STREAM_TYPE: Final = "text/event-stream"
JSON_TYPE: Final = "application/json"
PROTOBUF_TYPE: Final = "application/protobuf"

MAX_REQUEST_TOKEN_BYTES: Final = 36

_PROTOBUF_TYPES: Final = frozenset({PROTOBUF_TYPE, "application/x-protobuf"})

Value = TypeVar("Value")

_KEY_BYTES: Final = 32
"""The key length of both ciphers."""


class Call(StrEnum):
    """The kinds of requests, for counters and fault switches."""

    APPEND = "append"
    APPEND_SESSION = "append_session"
    READ = "read"
    """A unary read."""
    READ_EVENTS = "read_events"
    """A read as SSE."""
    READ_SESSION = "read_session"
    CHECK_TAIL = "check_tail"
    CONTROL = "control"
    """Requests for basins, streams, access tokens, metrics and locations."""
    HEALTH = "health"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Target:
    """The call of a request, and the names in its path."""

    call: Call
    resource: str = ""
    """The first part of a control call's path after `/v1/`, such as `basins`."""
    names: tuple[str, ...] = ()
    """The names after it, decoded.  For a data call, the stream's name."""


def target_of(method: str, path: str, headers: Mapping[str, str]) -> Target:
    """Return the target of a request.  Raises Refused (400) for an invalid name."""
    if path == "/health":
        return Target(Call.HEALTH)
    root, _, rest = path.lstrip("/").partition("/")
    if root != "v1":
        return Target(Call.OTHER)
    resource, *parts = rest.split("/")
    names = tuple(map(_name, parts))
    _check_names(resource, names[:1])
    match resource, parts[1:]:
        case "streams", ["records"] if method == "POST":
            is_session = media_type(headers.get("content-type")) == SESSION_TYPE
            return Target(Call.APPEND_SESSION if is_session else Call.APPEND, names=names[:1])
        case "streams", ["records"] if method == "GET":
            return Target(_read_call(headers), names=names[:1])
        case "streams", ["records", "tail"] if method == "GET":
            return Target(Call.CHECK_TAIL, names=names[:1])
        case (("basins" | "streams" | "access-tokens" | "locations"), []) if len(names) < 2:
            return Target(Call.CONTROL, resource, names)
        case "metrics", _ if len(names) < 3:
            return Target(Call.CONTROL, resource, names)
        case _:
            return Target(Call.OTHER)


def _check_names(resource: str, names: tuple[str, ...]) -> None:
    try:
        for name in names:
            if resource == "streams":
                check_stream_name(name)
            elif resource == "basins":
                check_basin_name(name)
    except BadName as error:
        raise Refused(S2ErrorCode.BAD_PATH, str(error)) from None


def _read_call(headers: Mapping[str, str]) -> Call:
    if media_type(headers.get("content-type")) == SESSION_TYPE:
        return Call.READ_SESSION
    if EVENT_STREAM_TYPE in map(media_type, headers.get("accept", "").split(",")):
        return Call.READ_EVENTS
    return Call.READ


def _name(part: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise Refused(S2ErrorCode.BAD_PATH, "a name in the path is not UTF-8") from None


def media_type(value: str | None) -> str:
    """Return the media type of a header, without its parameters."""
    return (value or "").partition(";")[0].strip().lower()


def sends_protobuf(headers: Mapping[str, str]) -> bool:
    """Return whether the body of a unary append is protobuf."""
    return media_type(headers.get("content-type")) in _PROTOBUF_TYPES


def wants_protobuf(headers: Mapping[str, str]) -> bool:
    """Return whether the client wants the answer in protobuf."""
    return any(media_type(one) in _PROTOBUF_TYPES for one in headers.get("accept", "").split(","))


def format_of(headers: Mapping[str, str]) -> Format:
    """Return how JSON represents bytes.  Raises BadFormat."""
    return parse_format(headers.get("s2-format"))


def basin_of(headers: Mapping[str, str]) -> str:
    """Return the basin's name.  Raises Refused (400)."""
    basin = headers.get("s2-basin", "")
    if not basin:
        raise Refused(S2ErrorCode.BAD_HEADER, "the header s2-basin is missing")
    try:
        check_basin_name(basin)
    except BadName as error:
        raise Refused(S2ErrorCode.BAD_HEADER, str(error)) from None
    return basin


def key_of(headers: Mapping[str, str], cipher: str | None) -> bytes | None:
    """Return a digest of the request's encryption key, for a stream with this cipher; None without a cipher.

    Raises Refused: 400 unless the key has 32 bytes in base64, 422 if the key is missing.
    """
    if cipher is None:
        return None
    given = headers.get("s2-encryption-key", "").strip()
    if not given:
        raise Refused(S2ErrorCode.INVALID, f"the stream is encrypted with {cipher}: s2-encryption-key is missing")
    try:
        key = base64.b64decode(given, validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        raise Refused(S2ErrorCode.BAD_HEADER, "s2-encryption-key is not a key of 32 bytes in base64")
    return sha256(key).digest()


def request_token_of(headers: Mapping[str, str]) -> str | None:
    """Return the idempotency token of a creation.  Raises Refused (400)."""
    token = headers.get("s2-request-token")
    if token is not None and len(token.encode()) > MAX_REQUEST_TOKEN_BYTES:
        raise Refused(S2ErrorCode.BAD_HEADER, f"s2-request-token has at most {MAX_REQUEST_TOKEN_BYTES} bytes")
    return token


def stream_config_of(headers: Mapping[str, str]) -> Json:
    """Return the configuration for a stream that the request may create.  Raises Refused (400, 422)."""
    given = headers.get("s2-stream-config")
    if given is None:
        return {}
    try:
        config = json_object(given.encode())
        StreamConfig().changed(config)
    except Refused as error:
        if error.code is S2ErrorCode.BAD_JSON:
            raise Refused(S2ErrorCode.BAD_HEADER, "s2-stream-config is not a configuration in JSON") from None
        raise
    return config


def json_object(body: bytes) -> Json:
    """Decode a body that must be a JSON object.  Raises Refused (400)."""
    try:
        json = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(S2ErrorCode.BAD_JSON, str(error)) from None
    if not isinstance(json, dict):
        raise malformed("the body is not a JSON object")
    return cast(Json, json)


def page_of(query: str) -> PageQuery:
    """Return the requested part of a list.  Raises Refused (400, 422)."""
    fields = dict(parse_qsl(query, keep_blank_values=True))
    limit = fields.get("limit", str(LARGEST_PAGE))
    if not (limit.isascii() and limit.isdigit()):
        raise Refused(S2ErrorCode.BAD_QUERY, "limit is a whole number")
    prefix, start_after = fields.get("prefix", ""), fields.get("start_after", "")
    if start_after and start_after < prefix:
        # S2's tests compare this text.
        raise invalid("`start_after` must be greater than or equal to the `prefix`")
    return PageQuery(prefix, start_after, int(limit))
