"""The one way in which the pipeline fails, and what is left of Spark's own errors in one line."""

from __future__ import annotations

from typing import Final

_MOST_CHARS: Final = 300


class PipelineFailed(RuntimeError):
    """What was asked for cannot be done here and now; its text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


class NothingToPlan(PipelineFailed):
    """There is no traffic that a plan could be made of."""


def one_line(error: BaseException) -> str:
    """What an error of Spark's says, without the traces of two languages that come with it."""
    lines = [line.strip() for line in str(error).splitlines()]
    # A worker's error comes as its whole traceback; what it says is the last line before Java's.
    said = [line for line in lines if line and not line.startswith(("at ", "File ", "Traceback", "^"))]
    return (said[0] if said else type(error).__name__)[:_MOST_CHARS]
