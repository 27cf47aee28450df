"""Base class of every configuration table: frozen and strict, unknown keys are errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class MisfitError(ValueError):
    """Values that are valid each but contradict each other.  `path` leads to the field to blame."""

    def __init__(self, text: str, *path: str | int) -> None:
        super().__init__(text)
        self.path = path


class Model(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)
