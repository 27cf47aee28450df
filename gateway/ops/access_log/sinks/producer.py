"""An idempotent producer for one stream (Durable Streams, section 5.2.1): numbers batches and interprets replies.

The producer does no I/O.  One batch is in flight at a time, so a reply always belongs to that batch.  If a reply is
lost, the batch is sent again with the same number, and the origin appends it once.  The producer id is random for each
process, so two gateways with the same name do not fence each other off.  No state has to survive a restart, because a
process loses its undelivered batches when it ends.

A new epoch begins if the origin's state is behind: the origin has lost its state, or the stream was re-created.  A new
epoch also begins after a batch is given up.  The origin may have appended the batch after all, and must not mistake the
next batch for a repetition.
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
    """The stream does not exist.  Create it, then send the batch again."""
    AGAIN = auto()
    """Send the batch again with a new number."""
    WAIT = auto()
    """The origin cannot append the batch now.  Send it again later."""
    GIVE_UP = auto()
    """The origin will never append the batch."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The next step, the seconds to wait before it, and one line about a failure."""

    step: Step
    wait_s: float = 0.0
    text: str = ""


class Producer:
    """The epoch and the sequence number of one writer on one stream."""

    def __init__(self, producer_id: str) -> None:
        self._id = producer_id
        self.epoch = 0
        self.seq = 0

    def __repr__(self) -> str:
        return f"<Producer epoch {self.epoch}, seq {self.seq}>"

    def headers(self) -> dict[str, str]:
        """Return the producer headers of the next batch."""
        return {
            names.PRODUCER_ID: self._id,
            names.PRODUCER_EPOCH: str(self.epoch),
            names.PRODUCER_SEQ: str(self.seq),
        }

    def judge(self, status: int, headers: Mapping[str, str]) -> Verdict:
        """Interpret the reply to the batch.  Goes on to the next number, or begins a new epoch if needed."""
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
        """Give up the batch, which will not be sent again."""
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
