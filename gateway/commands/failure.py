"""The exception of a command that fails."""

from __future__ import annotations


class CommandFailed(Exception):
    """A valid command could not be carried out.  The text is one line."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))
