"""The numbers behind a chart or a list, as a table that can be shown and saved as CSV.

A cell has the value as people read it; the CSV has it as measured.  The CSV is in the page, as the target of a link.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.pipeline.report import wording
from gateway.pipeline.report.markup import Html, element, shown

Raw = str | int | float | None

_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, and how its values are written."""

    head: str
    write: Callable[[float | None], str] | None = None
    """None if values are text."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Raw]]


def numbers(table: Numbers) -> Html:
    """The table, collapsed."""
    head = element("tr", [_head(column) for column in table.columns])
    body = [
        element("tr", [_cell(column, value) for column, value in zip(table.columns, row, strict=True)])
        for row in table.rows
    ]
    return element(
        "details",
        element("summary", f"Numbers ({wording.many(len(table.rows), 'row')})"),
        element(
            "p",
            element("a", "Save as CSV", href=_csv(table), download=f"{table.name}.csv", class_="csv"),
            class_="tools",
        ),
        element(
            "div",
            element("table", element("thead", head), element("tbody", body), id=f"numbers-{table.name}"),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label=f"Numbers: {table.name.replace('-', ' ')}",
        ),
        class_="numbers",
    )


def _head(column: Column) -> Html:
    return element("th", column.head, scope="col", class_="number" if column.write else None)


def _cell(column: Column, value: Raw) -> Html:
    if column.write is None or isinstance(value, str):
        # <bdi>: a name written from right to left must not reorder the text next to it.
        return element("td", element("bdi", wording.NONE if value is None else str(value)))
    return element("td", column.write(value), class_="number")


def _csv(table: Numbers) -> str:
    """The table as a data URL (RFC 2397) of CSV (RFC 4180)."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([column.head for column in table.columns])
    writer.writerows([_field(value) for value in row] for row in table.rows)
    return f"data:text/csv;charset=utf-8;base64,{base64.b64encode(text.getvalue().encode()).decode()}"


def _field(value: Raw) -> Raw:
    """A value; text that a spreadsheet would take for a formula is kept from it."""
    if not isinstance(value, str):
        return value
    return f"'{shown(value)}" if value.startswith(_FORMULAS) else shown(value)
