"""Describes validation errors: the invalid value, and the expected value."""

from __future__ import annotations

import difflib
from typing import Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gateway.config.model import MisfitError
from gateway.config.sections import KeyPath, model_at

_SHOWN_CHARS: Final = 60


def value_path(detail: ErrorDetails) -> KeyPath:
    """Return the path of the invalid value, from pydantic or from a MisfitError."""
    reason = detail.get("ctx", {}).get("error")
    return (*detail["loc"], *reason.path) if isinstance(reason, MisfitError) else detail["loc"]


def problem(detail: ErrorDetails, path: KeyPath) -> str:
    """Describe the mistake in the value at `path`, without its source and key."""
    value = detail["input"]
    match detail["type"]:
        case "extra_forbidden":
            model = model_at(path)
            return "unknown key" + (suggestion(str(path[-1]), model) if model else "")
        case "missing":
            return "is required and has no default"
        case "value_error":
            return str(detail["ctx"]["error"])
        case "model_type" | "dict_type" | "model_attributes_type":
            return "should be a table"
        case "tuple_type" | "list_type":
            expected = "should be a list"
        case _:
            expected = detail["msg"].replace("Input should", "should", 1)
    shown = repr(value)
    return f"{expected}, got {shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + '…'}"


def suggestion(name: str, model: type[BaseModel]) -> str:
    """Return ` (did you mean '…'?)` with the most similar field of `model`; empty if none is similar."""
    close = difflib.get_close_matches(name, model.model_fields, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
