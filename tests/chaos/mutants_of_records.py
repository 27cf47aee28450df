"""Mutants of the access log's records.  No answer shows these: the harness compares the log with what clients got
(`tests/chaos/ledger.py`)."""

from __future__ import annotations

from typing import Any, Final

from multidict import CIMultiDict

from gateway.ops.access_log.live_reads import LiveRead
from gateway.protocol.cache_status import Outcome
from gateway.server.delivery import Delivery
from gateway.server.request import Answered
from gateway.server.request_records import Observers
from gateway.telemetry.access_record import CloseReason
from tests.chaos.mutant import Mutant, Patches, registrar

RECORDS: Final[list[Mutant]] = []
mutant = registrar(RECORDS)


@mutant("a request whose answer is broken off has a line")
def broken_off_answer_has_no_line() -> Patches:
    end = Observers.request_ended

    def ended(self: Observers, observed: Any, answered: Answered | None, *about: Any) -> None:
        if answered is not None:
            end(self, observed, answered, *about)

    return [(Observers, "request_ended", ended)]


@mutant("a body that is not sent is not counted")
def refusal_of_head_counts_a_body() -> Patches:
    text = Delivery.text

    def sent(self: Delivery, status: int, headers: CIMultiDict[str], body: bytes) -> Answered:
        answered = text(self, status, headers, body)
        if self._request.method == "HEAD":
            self.count_sent(len(body))
        return answered

    return [(Delivery, "text", sent)]


@mutant("a live read that its client leaves has a line")
def live_read_that_was_left_has_no_line() -> Patches:
    end = LiveRead.record_end

    def ended(self: LiveRead, outcome: Outcome, reason: CloseReason) -> None:
        if reason is CloseReason.LEFT:
            self.discard()
        else:
            end(self, outcome, reason)

    return [(LiveRead, "record_end", ended)]
