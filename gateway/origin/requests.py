"""Parsing of a request's headers and query into parameters, or into an error with one line of text.

Pure functions over mappings.  `handlers` reads the bodies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from multidict import MultiMapping

from gateway.origin.positions import Position, parse_token
from gateway.origin.producers import Claim
from gateway.origin.refusals import BadOffset, BadRequest
from gateway.origin.store import CreateParams, ForkParams
from gateway.origin.streams import Lifetime
from gateway.protocol import names

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""The largest producer number, limited by JavaScript (section 5.2.1), and the largest TTL."""

_DECIMAL: Final = re.compile(r"0|[1-9][0-9]*")
_DIGITS: Final = re.compile(r"[0-9]+")
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)


class Kind(StrEnum):
    """The kind of a request, for counters and fault switches."""

    CATCHUP = "catchup"
    """GET without a live mode, including `offset=now`."""
    LONGPOLL = "longpoll"
    SSE = "sse"
    HEAD = "head"
    CREATE = "create"
    APPEND = "append"
    """POST, including one that only closes."""
    DELETE = "delete"
    OTHER = "other"
    """OPTIONS, and methods that the protocol does not define."""


_KIND_OF_METHOD: Final = {
    "HEAD": Kind.HEAD,
    "PUT": Kind.CREATE,
    "POST": Kind.APPEND,
    "DELETE": Kind.DELETE,
}


def kind_of(method: str, live: str | None) -> Kind:
    """Return the kind of a request; an unknown `live` value counts as a catch-up read."""
    if method == "GET":
        return {names.LIVE_LONG_POLL: Kind.LONGPOLL, names.LIVE_SSE: Kind.SSE}.get(live or "", Kind.CATCHUP)
    return _KIND_OF_METHOD.get(method, Kind.OTHER)


@dataclass(frozen=True, slots=True)
class ReadParams:
    """The parameters of a GET: the offset as sent, its position, and the client's cursor."""

    offset: str
    start: Position | None
    """The position of `offset`; None for the earliest byte."""
    cursor: str | None

    @property
    def is_now(self) -> bool:
        return self.offset == names.NOW


def parse_read(query: MultiMapping[str], kind: Kind) -> ReadParams:
    """Parse the query of a read (sections 5.6 to 5.8, 6).  Raises BadRequest, BadOffset."""
    found = query.getall(names.QUERY_OFFSET, [])
    if len(found) > 1:
        raise BadRequest("Multiple offset parameters not allowed")
    if not found and kind is not Kind.CATCHUP:
        raise BadRequest(f"{'SSE' if kind is Kind.SSE else 'Long-poll'} requires offset parameter")
    offset = found[0] if found else names.START
    if not offset:
        raise BadRequest("Empty offset parameter")
    start = None
    if not names.is_sentinel(offset):
        start = parse_token(offset)
        if start is None:
            raise BadOffset
    return ReadParams(offset, start, query.get(names.QUERY_CURSOR))


def parse_create(headers: Mapping[str, str]) -> CreateParams:
    """Parse the headers of a PUT (section 5.1); the body is added later.  Raises BadRequest."""
    fork = _fork_params(headers)
    given = headers.get("Content-Type")
    # An invalid type counts as absent: a new stream gets the default type, and a fork gets the type of its source.
    content_type = given if given and given.isascii() and _MEDIA_TYPE.match(given) else None
    return CreateParams(content_type, _lifetime(headers), names.is_true(headers.get(names.STREAM_CLOSED)), fork)


def _lifetime(headers: Mapping[str, str]) -> Lifetime:
    ttl = headers.get(names.STREAM_TTL)
    expires = headers.get(names.STREAM_EXPIRES_AT)
    if ttl is not None and expires is not None:
        raise BadRequest("Cannot specify both Stream-TTL and Stream-Expires-At")
    if ttl is not None:
        if not _DECIMAL.fullmatch(ttl) or len(ttl) > 16 or int(ttl) > MAX_SAFE_INTEGER:
            raise BadRequest("Invalid Stream-TTL value")
        return Lifetime(ttl_s=int(ttl))
    if expires is not None:
        return Lifetime(expires_at=_instant(expires), expires_at_text=expires)
    return Lifetime()


def _instant(text: str) -> float:
    if _RFC3339.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper().replace(" ", "T")).astimezone(UTC).timestamp()
        except (ValueError, OverflowError):
            pass
    raise BadRequest("Invalid Stream-Expires-At timestamp")


def _fork_params(headers: Mapping[str, str]) -> ForkParams | None:
    source = headers.get(names.STREAM_FORKED_FROM)
    sub_offset = headers.get(names.STREAM_FORK_SUB_OFFSET)
    offset = headers.get(names.STREAM_FORK_OFFSET)
    if not source:
        if sub_offset is not None:
            raise BadRequest("Stream-Fork-Sub-Offset requires Stream-Forked-From")
        if offset is not None:
            raise BadRequest("Stream-Fork-Offset requires Stream-Forked-From")
        return None
    if sub_offset is not None and (not _DECIMAL.fullmatch(sub_offset) or len(sub_offset) > 16):
        raise BadRequest("Invalid Stream-Fork-Sub-Offset format")
    if offset is not None and parse_token(offset) is None:
        raise BadRequest("Invalid Stream-Fork-Offset format")
    try:
        path = urlsplit(source).path  # the path names the source; of a full URL only the path counts
    except ValueError as error:
        raise BadRequest("Invalid Stream-Forked-From") from error
    return ForkParams(path, offset, int(sub_offset or "0"))


def parse_claim(headers: Mapping[str, str]) -> Claim | None:
    """Parse the producer headers of a POST, which must be all three or none (section 5.2.1).  Raises BadRequest."""
    producer_id = headers.get(names.PRODUCER_ID)
    epoch = headers.get(names.PRODUCER_EPOCH)
    seq = headers.get(names.PRODUCER_SEQ)
    if producer_id is None and epoch is None and seq is None:
        return None
    if producer_id is None or epoch is None or seq is None:
        raise BadRequest("All producer headers (Producer-Id, Producer-Epoch, Producer-Seq) must be provided together")
    if not producer_id:
        raise BadRequest("Invalid Producer-Id: must not be empty")
    return Claim(producer_id, _safe_integer(names.PRODUCER_EPOCH, epoch), _safe_integer(names.PRODUCER_SEQ, seq))


def _safe_integer(name: str, text: str) -> int:
    if _DIGITS.fullmatch(text) and len(text.lstrip("0")) <= 16 and int(text) <= MAX_SAFE_INTEGER:
        return int(text)
    raise BadRequest(f"Invalid {name}: must be a non-negative integer")


def is_not_modified(if_none_match: str | None, etag: str) -> bool:
    """Return whether `If-None-Match` names this ETag (RFC 9110 section 13.1.2: weak comparison, lists, `*`)."""
    if if_none_match is None:
        return False
    if if_none_match.strip() == "*":
        return True
    return any(item.strip().removeprefix("W/") == etag for item in if_none_match.split(","))
