"""The pipeline's exceptions, and functions that reduce long errors to one line.

A failure in Python code that Spark runs is a Python exception.  Spark wraps it several times, and adds stack traces of
two languages and the state of the query.  The message is at the end of the last Python traceback.  A failure in Java is
best described by its last cause.
"""

from __future__ import annotations

import re
from typing import Final

_MOST_CHARS: Final = 300
_STATE: Final = "=== Streaming Query ==="
# Frames are indented; the exception's line is not.
_OF_PYTHON: Final = re.compile(r"Traceback \(most recent call last\):.*\n(?:(?:\s.*)?\n)*(\S.*)")
# The data source's errors have no traceback.
_OF_SOURCE: Final = re.compile(r"\bpyspark_durable_streams\.[\w.]+: (.+)")
_OF_JAVA: Final = (re.compile(r"^Caused by: (.*)", re.MULTILINE), re.compile(r"^: (.*)", re.MULTILINE))
_SAYS_NOTHING: Final = ("py4j.", "Py4JJavaError", "An error occurred while calling ")
_SQLSTATE: Final = re.compile(r"(?: ?SQLSTATE: \w{5})+$")
_WRAPPED: Final = re.compile(r"^(?:\[STREAM_FAILED\] )?Query \[[^\]]*\] terminated with exception: (?=.)")
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_OURS: Final = re.compile(r"^(?:pyspark_durable_streams|gateway)\.[\w.]+: ")


class PipelineFailed(RuntimeError):
    """A step of the pipeline failed.  The text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class NothingToPlan(PipelineFailed):
    """A plan cannot be made: there are no lines, or no curve of the lines."""


def brief(error: BaseException) -> str:
    """Return a store's error as one line.

    The error may have a line for each cause, and the store's whole answer.
    """
    causes = (line.strip(" \t↳") for line in _COLOUR.sub("", str(error)).splitlines())
    return ": ".join(filter(None, causes))[:_MOST_CHARS]


def one_line(error: BaseException) -> str:
    """Return the message of a Spark error: of the Python exception inside it, or else of Java's last cause."""
    try:
        report = _COLOUR.sub("", str(error))
    except Exception:
        return type(error).__name__  # the text comes from Java, which may have died
    said = report.partition(_STATE)[0].strip()
    message = _last(said, _OF_PYTHON, _OF_SOURCE)
    if message is None or message.startswith(_SAYS_NOTHING):
        message = _last(said, *_OF_JAVA) or said.partition("\n")[0]
    message = _OURS.sub("", _WRAPPED.sub("", _SQLSTATE.sub("", message.strip())))
    return (message or type(error).__name__)[:_MOST_CHARS]


def _last(said: str, *kinds: re.Pattern[str]) -> str | None:
    """Return the last match of the first pattern that matches."""
    return next((found[-1] for kind in kinds if (found := kind.findall(said))), None)
