"""The numbers behind a chart or a list, as a table that can be shown, sorted and exported as CSV.

A cell has the value as people read it and, if that is less precise, the value as measured.  The script sorts by the
measured value and writes it to CSV.  It also shows a row's cells while the chart above is pointed at, so each row knows
its place in the chart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.pipeline.report import wording
from gateway.pipeline.report.markup import Html, element

Raw = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its heading, how its values are written, and its colour in the chart."""

    head: str
    write: Callable[[float | None], str] | None = None
    """None if values are text."""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table; `places` gives each row's place in the chart (0..1), and is empty if there is no chart."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Raw]]
    places: Sequence[float] = ()


def numbers(table: Numbers) -> Html:
    """The table, collapsed."""
    head = element("tr", [_head(column) for column in table.columns])
    body = [
        element(
            "tr",
            [_cell(column, value) for column, value in zip(table.columns, row, strict=True)],
            data_x=f"{table.places[at]:.5f}" if table.places else None,
        )
        for at, row in enumerate(table.rows)
    ]
    return element(
        "details",
        element("summary", f"Numbers ({wording.many(len(table.rows), 'row')})"),
        element("div", element("button", "Save as CSV", type="button", class_="csv"), class_="tools"),
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
    return element(
        "th",
        column.head,
        scope="col",
        class_="number" if column.write else None,
        data_colour=column.colour or None,
    )


def _cell(column: Column, value: Raw) -> Html:
    if column.write is None or isinstance(value, str):
        text = wording.NONE if value is None else str(value)
        # <bdi>: a name written from right to left must not reorder the text next to it.
        return element("td", element("bdi", text), data_raw="" if value is None else None)
    text = column.write(value)
    raw = "" if value is None else repr(value)
    return element("td", text, class_="number", data_raw=None if raw == text else raw)
