"""Filters on the column that names the stream, so that a batch reads the streams that they allow and no others.

Spark evaluates every filter again, so a filter that is not understood here only costs reads.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, StringStartsWith


class StreamFilter:
    """The streams that a query's filters allow; all of them before `add`."""

    def __init__(self) -> None:
        self._names: frozenset[str] | None = None
        self._prefixes: tuple[str, ...] = ()

    def add(self, filters: Iterable[Filter], column: str) -> None:
        """Apply the filters, all of which rows must pass, on the column that names the stream."""
        for one in filters:
            match one:
                case EqualTo((name,), value) | EqualNullSafe((name,), value) if name == column:
                    self._keep({value})
                case In((name,), values) if name == column:
                    self._keep(set(values))
                case StringStartsWith((name,), value) if name == column:
                    self._prefixes += (value,)

    def _keep(self, names: set[object]) -> None:
        found = frozenset(name for name in names if isinstance(name, str))
        self._names = found if self._names is None else self._names & found

    def allows(self, stream: str) -> bool:
        """Whether rows of the stream may pass."""
        return (self._names is None or stream in self._names) and all(map(stream.startswith, self._prefixes))
