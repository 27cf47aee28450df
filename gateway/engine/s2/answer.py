"""One client's read as the engine takes it, and whole answers."""

from __future__ import annotations

from dataclasses import dataclass

from multidict import CIMultiDict

from gateway.engine.answer import BodyRun
from gateway.engine.s2.origin import S2Source
from gateway.protocol.cache_status import Outcome
from gateway.protocol.stream_key import StreamKey
from gateway.s2 import json_format
from gateway.s2.errors import unwritten_body
from gateway.s2.records import StreamPosition
from gateway.upstream.s2_client import S2Refused


@dataclass(frozen=True, slots=True)
class S2Read:
    """One client's read, or check of the tail, of one stream."""

    key: StreamKey
    source: S2Source
    client: str
    """The net of the client."""
    linger_s: float
    """How long the stream is followed after its last live reader."""
    trust_s: float = 0.0
    """How long the tail is believed after the live session has said it; 0 if every answer must be linearizable."""


@dataclass(frozen=True, slots=True)
class S2Answer:
    """A whole answer."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    outcome: Outcome
    span: tuple[int, int] | None = None
    """The sequence numbers from which and to which it goes; None if it is no batch."""
    run: BodyRun | None = None
    """The records that the answer has, if it may be repeated for as long as they are held."""


def json_answer(status: int, body: bytes, outcome: Outcome, span: tuple[int, int] | None = None) -> S2Answer:
    """An answer in JSON."""
    return S2Answer(status, CIMultiDict({"Content-Type": json_format.CONTENT_TYPE}), body, outcome, span)


def unwritten_answer(tail: StreamPosition) -> S2Answer:
    """There is no record at the start or after it."""
    return json_answer(416, unwritten_body(tail), Outcome.REVALIDATED)


class S2RefusedToAnother(Exception):
    """The origin has refused a shared request, which may be due to the credentials of another reader: the read is to be
    relayed."""


def refused_answer(refused: S2Refused, read: S2Read) -> S2Answer:
    """The origin's error, or one in its form.  Raises S2RefusedToAnother."""
    if not read.source.may_be_told(refused):
        raise S2RefusedToAnother
    outcome = Outcome.FAILED if refused.status >= 500 else Outcome.MISS
    return S2Answer(refused.status, refused.headers.copy(), refused.body, outcome)
