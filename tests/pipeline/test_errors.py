"""What is left of Spark's errors."""

from __future__ import annotations

import logging

import pytest

from gateway.pipeline.cli_run import showing_waits
from gateway.pipeline.errors import one_line

_MESSAGE = "stream a: 404 (is http://h/a its URL?); failOnDataLoss=false waits"
_LOST = f"pyspark_durable_streams.errors.DataLost: {_MESSAGE}"
_ENDED = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
_STATE = " SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: x"


@pytest.mark.parametrize(
    "shown",
    [
        # The source keeps its traceback back where it can.
        f"{_ENDED}[PYTHON_ERROR] Failed when Python source perform latestOffset: {_LOST}\n{_STATE}",
        f"An exception was thrown from the Python worker:\n{_LOST}\n",
        f'{_ENDED}x: Traceback (most recent call last):\n  File "a.py", line 1, in f\n{_LOST}\n{_STATE}',
    ],
)
def test_an_error_of_the_source_is_its_message(shown: str) -> None:
    assert one_line(RuntimeError(shown)) == _MESSAGE


def test_the_progress_alone_shows_what_the_source_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    shown: list[str] = []
    log = logging.getLogger("pyspark_durable_streams")
    with showing_waits(shown.append):
        log.debug("not this")
        log.warning("%s: try %d of %d in %.0f s", "GET http://h/a: refused", 5, 8, 1.6)
    assert shown == ["GET http://h/a: refused: try 5 of 8 in 2 s"]
    assert not caplog.records
    log.warning("after it")
    assert caplog.messages == ["after it"]
