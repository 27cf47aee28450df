"""What every table of the configuration is: frozen, strict, without unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class MisfitError(ValueError):
    """Values that are well-formed each but do not go together; `path` leads to the field to look at first."""

    def __init__(self, text: str, *path: str | int) -> None:
        super().__init__(text)
        self.path = path


class Model(BaseModel):
    """One table."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)
