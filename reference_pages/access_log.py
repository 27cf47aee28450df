"""The fields of an access-log line, from the log's own schema."""

from __future__ import annotations

from gateway.ops.access_log.schema import FIELDS


def access_log() -> str:
    """A table of the fields; `*` marks those that are in every line."""
    rows = ["| field | JSON | unit or words | what it says |", "|---|---|---|---|"]
    for field in FIELDS:
        always = " *" if field.is_always_there else ""
        rows.append(f"| `{field.name}`{always} | {field.kind} | {field.unit} | {field.meaning} |")
    return "\n".join(rows) + "\n"
