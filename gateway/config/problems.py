"""Validation errors in words: the value that is wrong, and what was expected in its place."""

from __future__ import annotations

import difflib
from typing import Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gateway.config.model import MisfitError
from gateway.config.sections import KeyPath, model_at

_SHOWN_CHARS: Final = 60


def value_path(detail: ErrorDetails) -> KeyPath:
    """The path of the wrong value: the one pydantic gives, or the field that a check across fields names."""
    reason = detail.get("ctx", {}).get("error")
    return (*detail["loc"], *reason.path) if isinstance(reason, MisfitError) else detail["loc"]


def problem(detail: ErrorDetails, path: KeyPath) -> str:
    """The mistake in the value at `path`, without its source and its key."""
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
    """` (did you mean '…'?)` with the field of `model` most like `name`; empty if none is similar."""
    close = difflib.get_close_matches(name, model.model_fields, 1)
    return f" (did you mean {close[0]!r}?)" if close else ""
