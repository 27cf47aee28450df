"""The tables that the pipeline leaves in a lake and the report's headline figures, from their declarations."""

from __future__ import annotations

from gateway.pipeline import tables
from gateway.pipeline.report.headlines import DEFINITIONS
from gateway.pipeline.tables import Table


def every_table() -> list[Table]:
    """The declared tables, in the order of their declaration."""
    return [found for found in vars(tables).values() if isinstance(found, Table)]


def headline_figures() -> str:
    """A section for each headline figure of the report: its meaning, and its SQL."""
    parts = ["### Headline figures\n\nThe report's figures; each is `part` divided by `whole`, or `part` alone.\n\n"]
    parts.extend(f"**{one.name}**: {one.meaning}\n\n```sql\n{one.sql}\n```\n\n" for one in DEFINITIONS)
    return "".join(parts)


def pipeline_tables() -> str:
    """A section for each table, its key, and its columns with their types; then the headline figures."""
    parts = []
    for table in every_table():
        rows = [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns]
        key = ", ".join(f"`{name}`" for name in table.key) or "line, as often as it came"
        parts.append(f"### {table.title}\n\nOne row for each {key}.\n\n| column | type | |\n|---|---|---|\n")
        parts.append("\n".join(rows) + "\n\n")
    parts.append(headline_figures())
    return "".join(parts).rstrip("\n") + "\n"
