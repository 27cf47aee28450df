"""The origin's replies to a follower (the gateway's live request for a stream): their offsets, events and refusals.

A data event is used only after its control event has arrived.  `ReplyEvents` keeps the data until then.

Functions that read a successful reply raise UpstreamBroken if the reply violates the protocol.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

from gateway.errors import GatewayError, UpstreamBroken, UpstreamUnavailable
from gateway.protocol.header_forwarding import Headers
from gateway.protocol.json_body import NotAnArray, unwrap
from gateway.protocol.names import (
    EVENT_CONTROL,
    EVENT_DATA,
    SSE_TYPE,
    STREAM_CLOSED,
    STREAM_UP_TO_DATE,
    is_position,
    is_true,
    media_type,
    stated_offset,
)
from gateway.protocol.sse import Control, SseParser, SseTooLarge, parse_control
from gateway.protocol.stream_version import Version
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Tape
from gateway.upstream.flight import Head, OriginError

_BULK_BYTES = 1 << 13
"""If a binary event has at least this size, the stream is read by long-poll.  Base64 would add a third to such an
event, and this is much more than the two heads of a long-poll.
"""
_NO_SSE = frozenset({400, 405, 406, 415, 501})
"""The statuses with which an origin without SSE may refuse a request for SSE."""
_EVENT_COST = 64
"""Bytes counted for each event in addition to its data, because an origin may send many tiny or empty events."""


class FollowingEnded(Exception):
    """The origin has answered that the stream no longer exists."""

    def __init__(self, why: End) -> None:
        super().__init__(why)
        self.why = why


def has_failed(head: Head) -> bool:
    """Return whether the origin has failed to answer a fetch."""
    is_failure = isinstance(head, OriginError) and (head.status >= 500 or head.status == 429)
    return is_failure or isinstance(head, GatewayError)


def refusal(status: int, at: str | None, stream: Stream, asked: Version) -> FollowingEnded | GatewayError:
    """Return the error for an unsuccessful status.

    `at` is the requested offset; None for a HEAD.  `asked` is the stream's version when the request was sent.
    """
    if status in (404, 410) and not asked.same_acks_as(stream.version):
        # A write was acknowledged after the request was sent, so the stream exists.  Ask again.
        return UpstreamUnavailable()
    if status == 410 and at is not None and stream.tape.tail not in (None, at):
        # The origin has trimmed this offset, but a later offset is known by now.
        return UpstreamUnavailable()
    if status == 404:
        return FollowingEnded(End.DELETED)
    if status == 410:
        return FollowingEnded(End.GONE)
    return UpstreamUnavailable() if status in (502, 503, 504, 429) else UpstreamBroken()


def is_sse(status: int, headers: Headers) -> bool:
    """Return False if this reply to a request for SSE shows that the origin does not support SSE, else True."""
    return status not in _NO_SSE and (status != 200 or media_type(headers.get("Content-Type")) == SSE_TYPE)


def poll_control(status: int, headers: Headers) -> Control:
    """Return the statements in the head of a successful reply to a long-poll, in the form of a control event."""
    is_closed = is_true(headers.get(STREAM_CLOSED))
    up_to_date = is_closed or status == 204 or is_true(headers.get(STREAM_UP_TO_DATE))
    return Control(end_of(headers), headers.get("Stream-Cursor"), up_to_date, is_closed)


def end_of(headers: Headers) -> str:
    """Return the offset after the reply's bytes."""
    offset = stated_offset(headers)
    if offset is None or not is_position(offset):
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


class ReplyEvents:
    """The events of one SSE reply.  At most `most_held` bytes of data may wait for their control event."""

    def __init__(self, tape: Tape, most_held: int, *, is_base64: bool) -> None:
        self._tape = tape
        self._parser = SseParser(2 * most_held)
        self._most_held = most_held
        self._is_base64 = is_base64
        self._waiting: list[bytes] = []
        self._held = 0
        self.is_silent = False
        """Whether the latest chunk was a comment: it had no control event, and no event has begun."""
        self.is_bulk = False
        """Whether any binary event had at least `_BULK_BYTES`."""

    @property
    def is_waiting(self) -> bool:
        """Whether data waits for its control event."""
        return bool(self._waiting)

    def read_chunk(self, chunk: bytes) -> Iterator[tuple[Control, list[bytes]]]:
        """Yield each control event in the received bytes, with the data since the preceding control event.

        Raises SseTooLarge if an event is too large, or if too much data waits for its control event.
        """
        is_after_control, is_base64 = False, self._is_base64
        for event in self._parser.feed(chunk):
            is_after_control = event.name == EVENT_CONTROL
            if is_after_control:
                try:
                    control = parse_control(event.data)
                except ValueError as error:
                    raise UpstreamBroken from error
                pieces = [data for data in self._waiting if data]
                self._waiting, self._held = [], 0
                yield control, pieces
            elif event.name == EVENT_DATA:
                if is_base64 and len(event.data) >= _BULK_BYTES:
                    self.is_bulk = True
                data = decoded(event.data, is_base64=is_base64, is_json=self._tape.is_json)
                self._waiting.append(data)
                self._held += len(data) + _EVENT_COST
                if self._held > self._most_held:
                    raise SseTooLarge
        self.is_silent = not is_after_control and not self._waiting and self._parser.is_between_events
