"""How the report reads the lake: columns of a table as Arrow record batches, one table at a time.

The report needs nothing else of the lake, so that any store of Arrow data can stand in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from gateway.pipeline.tables import Table

if TYPE_CHECKING:
    from gateway.pipeline.lake import Lake

Gold = Callable[[Table, Sequence[str]], pa.RecordBatchReader]
"""All rows of a table, with these columns in the types of `arrow_schema`; no rows if there is no such table yet."""


def gold_of(lake: Lake) -> Gold:
    """The tables of a lake.  They are read file by file: a file has a day at most, and sketches are large."""

    def read(table: Table, columns: Sequence[str]) -> pa.RecordBatchReader:
        return lake.snapshot(table).arrow(columns)

    return read
