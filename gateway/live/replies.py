"""Decodes the origin's live replies.  All functions raise UpstreamBroken if a reply violates the protocol."""

from __future__ import annotations

import base64
import binascii

from gateway.errors import UpstreamBroken
from gateway.protocol.forwarded_headers import Headers
from gateway.protocol.json_body import NotAnArray, unwrap
from gateway.protocol.names import is_sentinel, is_well_formed, stated_offset


def end_of(headers: Headers) -> str:
    """Return the offset after the reply's bytes."""
    offset = stated_offset(headers)
    if offset is None or not is_well_formed(offset) or is_sentinel(offset):
        raise UpstreamBroken
    return offset


def unwrapped(body: bytes) -> bytes:
    """Return the inside of a JSON array, without its brackets."""
    try:
        return unwrap(body)
    except NotAnArray as error:
        raise UpstreamBroken from error


def decoded(data: bytes, *, is_base64: bool, is_json: bool) -> bytes:
    """Return the stream's bytes from the data of an SSE event."""
    if is_base64:
        try:
            return base64.b64decode(data.translate(None, b"\r\n"), validate=True)
        except binascii.Error as error:
            raise UpstreamBroken from error
    return unwrapped(data) if is_json else data
