"""The numbers behind a chart or a list, as a table that can be shown, sorted and taken away as CSV.

A cell has what people read and, where that says less, what was measured.  The script sorts by the latter and writes it
to CSV; it also shows a row's cells where the chart above is pointed at, which is why a row knows its place in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.pipeline.report import wording
from gateway.pipeline.report.markup import Html, element

Raw = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, how a value is written, and the colour that stands for it in the chart."""

    head: str
    write: Callable[[float | None], str] | None = None
    """None where values are text."""
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Numbers:
    """A table; `places` says where in the chart (0..1) each row is, and is empty where there is none to point at."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Raw]]
    places: Sequence[float] = ()


def numbers(table: Numbers) -> Html:
    """The table, folded up."""
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
        # <bdi>: a name that is written from right to left must not turn what stands beside it.
        return element("td", element("bdi", text), data_raw="" if value is None else None)
    text = column.write(value)
    raw = "" if value is None else repr(value)
    return element("td", text, class_="number", data_raw=None if raw == text else raw)
