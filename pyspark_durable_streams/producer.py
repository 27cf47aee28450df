"""An idempotent producer (section 5.2.1): the POSTs of one batch into one stream, each of them taken once.

Its id is made from the write and from the stream's name, never from a task: whoever brings the batch, in whichever
attempt, is the same producer to the origin.  The epoch is the number of the batch, and the sequence begins at 0 in
each; so a batch that is brought again is a row of duplicates (204), and one that is brought by a run that has been
overtaken is refused (403).  One POST is on its way at a time, and the next one goes only when it was acknowledged: two
attempts of one task may mix without harm, and none of them can leave a gap.

`judge` decides what an answer means and does no I/O; the client has tried again by then whatever may pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from pyspark_durable_streams.client import Client, Reply, leads_out, refusal
from pyspark_durable_streams.errors import BadRow, Refused, StreamClosed

PRODUCER_ID: Final = "Producer-Id"
PRODUCER_EPOCH: Final = "Producer-Epoch"
PRODUCER_SEQ: Final = "Producer-Seq"
EXPECTED_SEQ: Final = "Producer-Expected-Seq"
STREAM_CLOSED: Final = "Stream-Closed"


def producer_id(write: str, stream: str) -> str:
    """Who brings `stream`'s messages of a write: the same for each attempt of it, and for no other stream.

    The stream is part of it because two names may lead to one stream, and then are two producers of it.
    """
    both = "\0".join((write, stream))
    return f"spark-{hashlib.sha256(both.encode()).hexdigest()[:40]}"


class Step(Enum):
    """What to do after an answer."""

    NEXT = auto()
    """It is in the stream, once: now, or since an earlier attempt."""
    CREATE = auto()
    """There is no such stream."""
    CLOSED = auto()
    """The stream is closed, and this was not the request that closed it."""
    FAIL = auto()
    """It is not going to be taken."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A step; for a failure, what went wrong and what can be done; whether the stream had the body already."""

    step: Step
    text: str = ""
    is_duplicate: bool = False


def judge(status: int, headers: Mapping[str, str], epoch: int) -> Verdict:
    """What the answer to a POST of batch `epoch` means."""
    match status:
        case 200 | 201:
            return Verdict(Step.NEXT)
        case 204:
            return Verdict(Step.NEXT, is_duplicate=True)
        case 404:
            return Verdict(Step.CREATE, "there is no such stream, and no option create to make it by")
        case 403 if PRODUCER_EPOCH in headers:
            known = headers[PRODUCER_EPOCH]
            return Verdict(
                Step.FAIL,
                f"it has batch {known} of this query already, and this is batch {epoch}: another run of the query is "
                "ahead of this one, or the checkpoint is an old one",
            )
        case 409 if headers.get(STREAM_CLOSED, "").lower() == "true":
            return Verdict(Step.CLOSED, "the stream is closed")
        case 409 if EXPECTED_SEQ in headers:
            return Verdict(Step.FAIL, "the stream has lost what this batch had brought: it was made anew meanwhile")
        case 413:
            return Verdict(Step.FAIL, "a POST is too large for the origin: maxBatchBytes bounds them")
    return Verdict(Step.FAIL)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a producer did for one stream."""

    posts: int
    """That the batch has for it."""
    duplicates: int
    """Of which the stream had so many already."""


class Producer:
    """One batch's way into one stream; owns the sequence number."""

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
        """Return once the origin has acknowledged all of them.  Raises Refused, StreamClosed, Unreachable.

        With `may_be_closed` a closed stream is no error: who closed it comes out when it is closed again.
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
        """Close the stream behind `seq` POSTs; a stream that this very request has closed already is well too."""
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
        # Somebody else may have made it meanwhile, in another way: the POST will show whether that will do.
        if reply.status not in (200, 201, 409):
            raise refusal(reply, f"{self._stream}: cannot be created")

    def _refused(self, reply: Reply, text: str) -> Refused:
        said = refusal(reply, self._stream)
        return Refused(f"{said} ({text})", reply.status) if text else said


def path_of(stream: str) -> str:
    """Where a stream of this name is below the configured URL.  Raises BadRow for what is no name."""
    if not stream.strip("/") or "?" in stream or "#" in stream or leads_out(stream):
        raise BadRow(f"{stream!r} is no name of a stream")
    return "/" + stream.lstrip("/")
