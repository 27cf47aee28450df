"""The one way in which the pipeline fails, and what is left of Spark's own errors in one line.

What goes wrong in a source, in a worker or in a batch's function is a Python exception, which Spark hands on inside its
own: several times wrapped, with the traces of two languages, and with the state of the query behind it.
"""

from __future__ import annotations

import re
from typing import Final

_MOST_CHARS: Final = 300
_STATE: Final = "=== Streaming Query ==="
_SQLSTATE: Final = re.compile(r"(?: ?SQLSTATE: \w{5})+$")
_PYTHONS: Final = re.compile(r"(?!(?:java|javax|org|py4j|scala)\.)(?P<where>(?:[a-z_]\w*\.)*)_?[A-Z]\w*: (?P<what>.+)")
_OURS: Final = ("pyspark_durable_streams.", "gateway.")
_TRACE: Final = ("at ", "File ", "Traceback", "^", "~")


class PipelineFailed(RuntimeError):
    """What was asked for cannot be done here and now; its text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class NothingToPlan(PipelineFailed):
    """There is no traffic that a plan could be made of."""


def one_line(error: BaseException) -> str:
    """What an error of Spark's says: the Python exception that it was made of, else its own first line."""
    report = str(error).partition(_STATE)[0]
    lines = [_SQLSTATE.sub("", line.strip()) for line in report.splitlines()]
    said = [line for line in lines if line and not line.startswith(_TRACE)]
    # The last was raised from the others.
    for line in reversed(said):
        if (found := _PYTHONS.fullmatch(line)) is not None:
            return (found["what"] if found["where"].startswith(_OURS) else line)[:_MOST_CHARS]
    return (said[0] if said else type(error).__name__)[:_MOST_CHARS]
