"""Configuration errors, with one line per mistake, and a collector for several mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """A configuration cannot be used.

    `mistakes` has a line for each mistake, with source, key and reason.  The error's text is the first line, and the
    number of further lines.
    """

    def __init__(self, first: str, *others: str) -> None:
        self.mistakes = tuple(" ".join(text.split()) for text in (first, *others))
        super().__init__(self.mistakes[0] + (f" (and {len(others)} more)" if others else ""))


class Mistakes:
    """Collects the mistakes of independent steps for one error."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def __repr__(self) -> str:
        return f"<Mistakes {len(self._found)} found>"

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Run one step.  A ConfigError ends the step, and is recorded instead of raised."""
        try:
            yield
        except ConfigError as error:
            self._found += error.mistakes

    def raise_any(self) -> None:
        """Raise a ConfigError with all recorded mistakes, if there are any."""
        if self._found:
            raise ConfigError(*self._found)


class PlanError(ValueError):
    """A document is not a valid plan.  The message is one line with the field and the mistake."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))
