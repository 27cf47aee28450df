"""The one way in which the pipeline fails, and what becomes of Spark's own errors."""

from __future__ import annotations


class PipelineFailed(RuntimeError):
    """What was asked for cannot be done here and now; its text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))
