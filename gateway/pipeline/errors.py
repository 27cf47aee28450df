"""The one way in which the pipeline fails, and what is left of Spark's own errors in one line.

What goes wrong in a source, in a worker or in a batch's function is a Python exception, which Spark hands on inside its
own: several times wrapped, with the traces of two languages, and with the state of the query behind it.  The last
traceback ends with what is to be told.  What goes wrong in Java is told by its last cause.
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
_OF_JAVA: Final = ("py4j.", "Py4JJavaError", "An error occurred while calling ")


class PipelineFailed(RuntimeError):
    """What was asked for cannot be done here and now; its text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class NothingToPlan(PipelineFailed):
    """There is no traffic that a plan could be made of."""


def one_line(error: BaseException) -> str:
    """What an error of Spark's says: the Python exception that it was made of, else what Java says."""
    try:
        report = str(error)
    except Exception:
        return type(error).__name__  # its text is asked of Java, which may be gone
    lines = report.partition(_STATE)[0].splitlines()
    said = _raised(lines)
    if said is None or said.startswith(_OF_JAVA):
        said = _told_by_java(lines)
    said = _OURS.sub("", _WRAPPED.sub("", _SQLSTATE.sub("", said)))
    return (said or type(error).__name__)[:_MOST_CHARS]


def _raised(lines: list[str]) -> str | None:
    """What stands behind the last traceback; None where there is none."""
    begin = next((at for at in reversed(range(len(lines))) if _TRACEBACK in lines[at]), None)
    if begin is None:
        return None
    # Frames are indented; an exception is not.
    return next((line.strip() for line in lines[begin + 1 :] if line.strip() and not line[0].isspace()), None)


def _told_by_java(lines: list[str]) -> str:
    """The last cause, else the exception, else whatever comes first."""
    for mark in (_CAUSE, ": "):
        if (found := next((line for line in reversed(lines) if line.startswith(mark)), None)) is not None:
            return found.removeprefix(mark).strip()
    return next((line.strip() for line in lines if line.strip()), "")
