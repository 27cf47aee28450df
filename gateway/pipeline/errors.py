"""The pipeline's exception, and Spark's errors reduced to one line.

A failure in a source, in a worker or in a batch's function is a Python exception, which Spark wraps several times, with
the stack traces of two languages and the state of the query after it.  The last traceback ends with the message.  A
failure in Java is described by its last cause.
"""

from __future__ import annotations

import re
from typing import Final

_MOST_CHARS: Final = 300
_STATE: Final = "=== Streaming Query ==="
_TRACEBACK: Final = "Traceback (most recent call last):"
_CAUSE: Final = "Caused by: "
_SQLSTATE: Final = re.compile(r"(?: ?SQLSTATE: \w{5})+$")
_WRAPPED: Final = re.compile(r"^(?:\[STREAM_FAILED\] )?Query \[[^\]]*\] terminated with exception: (?=.)")
_OURS: Final = re.compile(r"^(?:pyspark_durable_streams|gateway)\.[\w.]+: ")
_SOURCE: Final = re.compile(r"\bpyspark_durable_streams\.[\w.]+: (.+)")
_OF_JAVA: Final = ("py4j.", "Py4JJavaError", "An error occurred while calling ")


class PipelineFailed(RuntimeError):
    """A step could not be carried out.  The text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class NothingToPlan(PipelineFailed):
    """There is no traffic to make a plan from."""


def one_line(error: BaseException) -> str:
    """The message of a Spark error: that of the Python exception it wraps, else that of Java's last cause."""
    try:
        report = str(error)
    except Exception:
        return type(error).__name__  # the text comes from Java, which may have died
    lines = report.partition(_STATE)[0].splitlines()
    message = _python_message(lines) or _source_message(lines)
    if message is None or message.startswith(_OF_JAVA):
        message = _java_message(lines)
    message = _OURS.sub("", _WRAPPED.sub("", _SQLSTATE.sub("", message)))
    return (message or type(error).__name__)[:_MOST_CHARS]


def _python_message(lines: list[str]) -> str | None:
    """The exception's line after the last traceback; None without a traceback."""
    begin = next((at for at in reversed(range(len(lines))) if _TRACEBACK in lines[at]), None)
    if begin is None:
        return None
    # Frames are indented; the exception's line is not.
    return next((line.strip() for line in lines[begin + 1 :] if line.strip() and not line[0].isspace()), None)


def _source_message(lines: list[str]) -> str | None:
    """The message of the data source, which keeps its traceback back; None if the error is not its."""
    found = [match[1] for line in lines if (match := _SOURCE.search(line))]
    return found[-1] if found else None


def _java_message(lines: list[str]) -> str:
    """The last cause, else the exception, else the first line."""
    for mark in (_CAUSE, ": "):
        if (found := next((line for line in reversed(lines) if line.startswith(mark)), None)) is not None:
            return found.removeprefix(mark).strip()
    return next((line.strip() for line in lines if line.strip()), "")
