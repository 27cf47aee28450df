"""The one way in which a command fails."""

from __future__ import annotations


class CommandFailed(Exception):
    """What was asked for is right but cannot be done here and now; its text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))
