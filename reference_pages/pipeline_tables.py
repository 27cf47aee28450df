"""The tables that the pipeline leaves in a lake, from their declarations."""

from __future__ import annotations

from gateway.pipeline import tables
from gateway.pipeline.tables import Table


def every_table() -> list[Table]:
    """The declared tables, in the order of their declaration."""
    return [found for found in vars(tables).values() if isinstance(found, Table)]


def pipeline_tables() -> str:
    """A section for each table: its key, and its columns with their types."""
    parts = []
    for table in every_table():
        rows = [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns]
        key = ", ".join(f"`{name}`" for name in table.key) or "line, as often as it came"
        parts.append(f"### {table.place}\n\nOne row for each {key}.\n\n| column | type | |\n|---|---|---|\n")
        parts.append("\n".join(rows) + "\n\n")
    return "".join(parts).rstrip("\n") + "\n"
