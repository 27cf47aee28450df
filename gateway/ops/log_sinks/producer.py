"""An idempotent producer of one stream (Durable Streams, section 5.2.1): which batch is next, and what a reply means.

It does no I/O.  One batch is on its way at a time, so an answer always is that batch's; a batch whose answer was lost
is sent again under the same number, and the origin takes it once.  The id is drawn anew for each process: two gateways
of one name do not fence each other off, and there is nothing to remember across restarts, because what a process did
not get delivered is gone with it.

An epoch begins anew where the origin says that it knows less than it was given: it has lost its memory, or the stream
is another one.  It also begins anew after a batch is given up, because an origin that took that batch after all must
not take the next one for it.
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
    """What to do after an answer."""

    DONE = auto()
    """The batch is in the stream, once."""
    CREATE = auto()
    """There is no such stream: make it, then send the batch again."""
    AGAIN = auto()
    """Send the batch again, under a new number."""
    WAIT = auto()
    """The origin cannot now: send the batch again after a while."""
    GIVE_UP = auto()
    """It will never be taken."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A step, how long the origin asks to wait before it (seconds), and for a failure one line that says what it is."""

    step: Step
    wait_s: float = 0.0
    text: str = ""


class Producer:
    """One writer's place in one stream."""

    def __init__(self, producer_id: str) -> None:
        self._id = producer_id
        self.epoch = 0
        self.seq = 0

    def headers(self) -> dict[str, str]:
        """The next batch's."""
        return {
            names.PRODUCER_ID: self._id,
            names.PRODUCER_EPOCH: str(self.epoch),
            names.PRODUCER_SEQ: str(self.seq),
        }

    def judge(self, status: int, headers: Mapping[str, str]) -> Verdict:
        """What the answer to the batch means; moves on to the next number where that is due."""
        match status:
            case 200 | 201 | 204:
                self.seq += 1
                return Verdict(Step.DONE)
            case 404:
                return Verdict(Step.CREATE, text="no such stream")
            case 403 if (epoch := _number(headers.get(names.PRODUCER_EPOCH))) is not None:
                self._begin_anew(epoch)
                return Verdict(Step.AGAIN, text="fenced off by another writer")
            case 409 if names.PRODUCER_EXPECTED_SEQ in headers:
                self._begin_anew()
                return Verdict(Step.AGAIN, text="the origin has forgotten what it was given")
            case 408 | 425 | 429:
                return _wait(status, headers)
            case _ if status >= 500:
                return _wait(status, headers)
        self._begin_anew()
        why = "the stream is closed" if names.is_true(headers.get(names.STREAM_CLOSED)) else f"the origin says {status}"
        return Verdict(Step.GIVE_UP, text=why)

    def give_up(self) -> None:
        """The batch will not be sent again."""
        self._begin_anew()

    def _begin_anew(self, known: int = 0) -> None:
        self.epoch = max(self.epoch, known) + 1
        self.seq = 0


def _wait(status: int, headers: Mapping[str, str]) -> Verdict:
    asked = _number(headers.get("Retry-After")) or 0
    return Verdict(Step.WAIT, min(float(asked), _LONGEST_RETRY_AFTER_S), f"the origin says {status}")


def _number(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > len(str(_MAX_SAFE_INTEGER)):
        return None
    return int(text)
