"""What the harness makes of an access log and of the clients' own accounts."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from tests.chaos.ledger import Entry, Ledger

NOTHING_LOST = ""
ONE_LOST = "durable_gateway_log_drops_total 1.0\n"


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    ledger = Ledger()
    ledger.log.touch()
    yield ledger
    ledger.close()


def answered(ledger: Ledger) -> Entry:
    """A request of which its client has had the head of the answer, and still reads."""
    entry = ledger.begin("GET /s", "GET", "/s", "reader")
    entry.status = 200
    return entry


def counted(requests: int) -> str:
    return f'durable_gateway_requests_total{{mode="catchup",outcome="hit"}} {requests}.0\n'


def log(ledger: Ledger, entry: Entry) -> None:
    line = {
        "id": "a.1",
        "client": entry.address,
        "method": "GET",
        "stream": "/s",
        "user_agent": "reader",
        "trace_id": entry.trace_id,
        "mode": "catchup",
        "outcome": "hit",
        "status": 200,
        "sent_bytes": 0,
        "fetched_bytes": 0,
        "is_final": True,
    }
    with ledger.log.open("ab") as file:
        file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def test_an_answered_request_without_a_line_is_found(ledger: Ledger) -> None:
    answered(ledger).has_ended = True
    ((_, line, why),) = ledger.audit(NOTHING_LOST)
    assert (line, why.partition(" ")[0]) == ("no line", "0")


def test_an_answered_request_with_its_line_is_right(ledger: Ledger) -> None:
    entry = answered(ledger)
    log(ledger, entry)
    entry.has_ended = True
    assert ledger.audit(counted(1)) == []
    assert ledger.audited == 1


def test_a_client_that_still_reads_as_its_gateway_loses_lines_is_not_judged_after_the_next_one(ledger: Ledger) -> None:
    entry = answered(ledger)
    assert ledger.audit(ONE_LOST) == []
    entry.has_ended = True
    assert ledger.audit(NOTHING_LOST) == []
    assert ledger.audited == 0


def test_a_line_that_a_killed_worker_has_taken_is_not_missed_but_a_second_one_is_found(ledger: Ledger) -> None:
    entry = answered(ledger)
    entry.has_ended = True
    assert ledger.audit(NOTHING_LOST, is_lossy=True) == []
    again = answered(ledger)
    log(ledger, again)
    log(ledger, again)
    again.has_ended = True
    ((_, _, why),) = ledger.audit(NOTHING_LOST, is_lossy=True)
    assert why.partition(" ")[0] == "2"
