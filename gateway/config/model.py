"""The base class of all configuration models: frozen and strict, without unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class MisfitError(ValueError):
    """Values are valid by themselves, but contradict each other.  `path` is the field to report."""

    def __init__(self, text: str, *path: str | int) -> None:
        super().__init__(text)
        self.path = path


class Model(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)
