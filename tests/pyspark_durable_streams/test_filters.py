from __future__ import annotations

import pytest
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, In, IsNotNull, Not, StringStartsWith

from pyspark_durable_streams.filters import StreamFilter


@pytest.mark.parametrize(
    ("filters", "allowed"),
    [
        ([], ["a", "ab", "b"]),
        ([EqualTo(("stream",), "a")], ["a"]),
        ([EqualNullSafe(("stream",), "b"), IsNotNull(("stream",))], ["b"]),
        ([In(("stream",), ("a", "b", None))], ["a", "b"]),
        ([In(("stream",), ("a", "b")), EqualTo(("stream",), "b")], ["b"]),
        ([EqualTo(("stream",), "a"), EqualTo(("stream",), "b")], []),
        ([StringStartsWith(("stream",), "a")], ["a", "ab"]),
        ([StringStartsWith(("stream",), "a"), In(("stream",), ("ab", "b"))], ["ab"]),
        ([EqualTo(("stream",), 7)], []),
        # Of other columns, of fields of a column, and with a meaning of their own.
        ([EqualTo(("value",), "a"), EqualTo(("stream", "x"), "a")], ["a", "ab", "b"]),
        ([Not(EqualTo(("stream",), "a"))], ["a", "ab", "b"]),
    ],
)
def test_only_streams_that_every_filter_allows_are_read(filters: list[Filter], allowed: list[str]) -> None:
    wanted = StreamFilter()
    wanted.add(filters, "stream")
    assert [name for name in ("a", "ab", "b") if wanted.allows(name)] == allowed
