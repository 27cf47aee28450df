"""An idempotent producer for one stream (Durable Streams, section 5.2.1): numbers batches and interprets replies.

It does no I/O.  One batch is in flight at a time, so a reply always belongs to that batch.  A batch whose reply was
lost is sent again under the same number, and the origin takes it once.  The id is random for each process: two gateways
of one name do not fence each other off, and nothing has to be remembered across restarts, because batches that a
process did not deliver are lost with it.

A new epoch begins if the origin says that it knows less than it was sent: it has lost its state, or the stream was
re-created.  A new epoch also begins after a batch is given up: if the origin did take it, the next batch must not be
mistaken for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from gateway.protocol import names

_MAX_SAFE_INTEGER: Final = 2**53 - 1
_LONGEST_RETRY_AFTER_S: Final = 60.0


class Step(Enum):
    """The next step after a reply."""

    DONE = auto()
    """The batch is in the stream, once."""
    CREATE = auto()
    """The stream does not exist: create it, then send the batch again."""
    AGAIN = auto()
    """Send the batch again, under a new number."""
    WAIT = auto()
    """The origin cannot take the batch now: send it again later."""
    GIVE_UP = auto()
    """The batch will never be taken."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A step, the wait that the origin asks for before it (seconds), and one line that describes a failure."""

    step: Step
    wait_s: float = 0.0
    text: str = ""


class Producer:
    """The epoch and sequence number of one writer on one stream."""

    def __init__(self, producer_id: str) -> None:
        self._id = producer_id
        self.epoch = 0
        self.seq = 0

    def __repr__(self) -> str:
        return f"<Producer epoch {self.epoch}, seq {self.seq}>"

    def headers(self) -> dict[str, str]:
        """Producer headers of the next batch."""
        return {
            names.PRODUCER_ID: self._id,
            names.PRODUCER_EPOCH: str(self.epoch),
            names.PRODUCER_SEQ: str(self.seq),
        }

    def judge(self, status: int, headers: Mapping[str, str]) -> Verdict:
        """Interpret the reply to the batch; move on to the next number, or to a new epoch, if that is due."""
        match status:
            case 200 | 201 | 204:
                self.seq += 1
                return Verdict(Step.DONE)
            case 404:
                return Verdict(Step.CREATE, text="no such stream")
            case 403 if (epoch := _number(headers.get(names.PRODUCER_EPOCH))) is not None:
                self._begin_epoch(epoch)
                return Verdict(Step.AGAIN, text="fenced off by another writer")
            case 409 if names.PRODUCER_EXPECTED_SEQ in headers:
                self._begin_epoch()
                return Verdict(Step.AGAIN, text="the origin has lost its record of this writer")
            case 408 | 425 | 429:
                return _wait(status, headers)
            case _ if status >= 500:
                return _wait(status, headers)
        self._begin_epoch()
        why = "the stream is closed" if names.is_true(headers.get(names.STREAM_CLOSED)) else f"the origin says {status}"
        return Verdict(Step.GIVE_UP, text=why)

    def give_up(self) -> None:
        """Give up the batch: it will not be sent again."""
        self._begin_epoch()

    def _begin_epoch(self, current: int = 0) -> None:
        self.epoch = max(self.epoch, current) + 1
        self.seq = 0


def _wait(status: int, headers: Mapping[str, str]) -> Verdict:
    asked = _number(headers.get("Retry-After")) or 0
    return Verdict(Step.WAIT, min(float(asked), _LONGEST_RETRY_AFTER_S), f"the origin says {status}")


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > len(str(_MAX_SAFE_INTEGER)):
        return None
    return int(text)
