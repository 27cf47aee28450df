"""Every configuration key, from the models."""

from __future__ import annotations

from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from gateway.config.sections import RULES, every_field
from gateway.config.sizes import format_bytes


def configuration() -> str:
    """A table of the keys, with their defaults as a file spells them."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    fields = list(every_field())
    for section, model in RULES.items():
        at = max(at for at, one in enumerate(fields) if one[0] in ("route", section)) + 1
        fields[at:at] = [(section, name, model) for name in model.model_fields]
    for section, name, model in fields:
        field = model.model_fields[name]
        default = "required" if field.default is PydanticUndefined else f"`{_spelled(name, field.default)}`"
        rows.append(f"| `{section}.{name}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def _spelled(name: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes") and isinstance(value, int):
        return f'"{format_bytes(value)}"'
    if isinstance(value, str | SecretStr):
        return f'"{value}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value)
