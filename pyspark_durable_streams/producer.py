"""An idempotent producer (section 5.2.1): the POSTs of one batch into one stream, each stored once.

The producer id is derived from the write and the stream's name, never from a task: all attempts to send the batch are
the same producer to the origin.  The epoch is the number of the batch, and the sequence begins at 0 in each.  A batch
sent again is a series of duplicates (204), and one sent by a run that was overtaken is refused (403).  One POST is in
flight at a time, and the next is sent only after its acknowledgement: two attempts of one task may interleave without
harm, and neither can leave a gap.

`judge` interprets an answer and does no I/O.  The client has already repeated requests that failed temporarily.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pyspark_durable_streams.client import Client, Reply, leaves_base, origin_error
from pyspark_durable_streams.errors import BadRow, Refused, StreamClosed

PRODUCER_ID: Final = "Producer-Id"
PRODUCER_EPOCH: Final = "Producer-Epoch"
PRODUCER_SEQ: Final = "Producer-Seq"
EXPECTED_SEQ: Final = "Producer-Expected-Seq"
STREAM_CLOSED: Final = "Stream-Closed"


def producer_id(write: str, stream: str) -> str:
    """The producer for `stream` in a write: the same for every attempt, different for every other stream.

    The stream's name is part of it because two names may lead to one stream, and are then two producers of it.
    """
    both = "\0".join((write, stream))
    return f"spark-{hashlib.sha256(both.encode()).hexdigest()[:40]}"


class Step(Enum):
    """The next step after an answer."""

    NEXT = auto()
    """The stream holds the body, once: from now or from an earlier attempt."""
    CREATE = auto()
    """The stream does not exist."""
    CLOSED = auto()
    """The stream is closed, and not by this request."""
    FAIL = auto()
    """The origin will not accept the body."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A step; for a failure, the reason and a remedy; whether the stream had the body already."""

    step: Step
    text: str = ""
    is_duplicate: bool = False


def judge(status: int, headers: Mapping[str, str], epoch: int) -> Verdict:
    """Interpret the answer to a POST of batch `epoch`."""
    match status:
        case 200 | 201:
            return Verdict(Step.NEXT)
        case 204:
            return Verdict(Step.NEXT, is_duplicate=True)
        case 404:
            return Verdict(Step.CREATE, "the stream does not exist, and the option create is not given")
        case 403 if PRODUCER_EPOCH in headers:
            known = headers[PRODUCER_EPOCH]
            return Verdict(
                Step.FAIL,
                f"it already has batch {known} of this query, and this is batch {epoch}: another run of the query is "
                "ahead of this one, or the checkpoint is an old one",
            )
        case 409 if headers.get(STREAM_CLOSED, "").lower() == "true":
            return Verdict(Step.CLOSED, "the stream is closed")
        case 409 if EXPECTED_SEQ in headers:
            return Verdict(Step.FAIL, "the stream has lost what this batch had sent: it was re-created meanwhile")
        case 413:
            return Verdict(Step.FAIL, "a POST is too large for the origin: lower maxBatchBytes")
    return Verdict(Step.FAIL)


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a producer for one stream."""

    posts: int
    """POSTs of the batch for the stream."""
    duplicates: int
    """How many of them the stream had already."""


class Producer:
    """Sends one batch to one stream; owns the sequence number."""

    def __init__(
        self, client: Client, stream: str, write: str, epoch: int, content_type: str, *, creates: bool
    ) -> None:
        self._client = client
        self._stream = stream
        self._path = path_of(stream)
        self._id = producer_id(write, stream)
        self._epoch = epoch
        self._content_type = content_type
        self._creates = creates

    def send(self, bodies: Sequence[bytes], *, may_be_closed: bool = False) -> Sent:
        """Return once the origin has acknowledged all bodies.  Raises Refused, StreamClosed, Unreachable.

        With `may_be_closed` a closed stream is not an error: closing it again will show whether this write closed it.
        """
        duplicates = 0
        for seq, body in enumerate(bodies):
            verdict = self._post(body, seq)
            if verdict.step is Step.CLOSED:
                if may_be_closed:
                    break
                raise StreamClosed(f"{self._stream}: the stream is closed")
            duplicates += verdict.is_duplicate
        return Sent(len(bodies), duplicates)

    def close(self, seq: int) -> None:
        """Close the stream after `seq` POSTs; succeeds if this same request has already closed it."""
        verdict = self._post(b"", seq)
        if verdict.step is Step.CLOSED:
            raise StreamClosed(f"{self._stream}: the stream is closed, and not by this write")

    def _post(self, body: bytes, seq: int) -> Verdict:
        headers = {PRODUCER_ID: self._id, PRODUCER_EPOCH: str(self._epoch), PRODUCER_SEQ: str(seq)}
        if body:
            headers["Content-Type"] = self._content_type
        else:
            headers[STREAM_CLOSED] = "true"
        reply = self._client.request("POST", self._path, headers, body)
        verdict = judge(reply.status, reply.headers, self._epoch)
        if verdict.step is Step.CREATE and self._creates:
            self._create()
            reply = self._client.request("POST", self._path, headers, body)
            verdict = judge(reply.status, reply.headers, self._epoch)
        if verdict.step in (Step.FAIL, Step.CREATE):
            raise self._refused(reply, verdict.text)
        return verdict

    def _create(self) -> None:
        reply = self._client.request("PUT", self._path, {"Content-Type": self._content_type})
        # Another writer may have created it meanwhile with other parameters: the POST will show whether they fit.
        if reply.status not in (200, 201, 409):
            raise origin_error(reply, f"{self._stream}: cannot be created")

    def _refused(self, reply: Reply, text: str) -> Refused:
        said = origin_error(reply, self._stream)
        return Refused(f"{said} ({text})", reply.status) if text else said


def path_of(stream: str) -> str:
    """The path of a stream below the configured URL.  Raises BadRow for an invalid name."""
    if not stream.strip("/") or "?" in stream or "#" in stream or leaves_base(stream):
        raise BadRow(f"{stream!r} is not a valid name of a stream")
    return "/" + stream.lstrip("/")
