"""Records and what is made of them, for properties.  Numbers are often at the edges of their range."""

from __future__ import annotations

from hypothesis import strategies as st

from gateway.s2.records import (
    MAX_U64,
    AppendAck,
    AppendInput,
    AppendRecord,
    Header,
    ReadBatch,
    Record,
    StreamPosition,
)

numbers = st.integers(0, MAX_U64) | st.sampled_from([0, 1, 2**53, 2**63, MAX_U64])
data = st.binary(max_size=40)
text = st.text(max_size=20).map(str.encode)

positions = st.builds(StreamPosition, numbers, numbers)
acks = st.builds(AppendAck, positions, positions, positions)


def _headers(parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[Header, ...]]:
    return st.lists(st.builds(Header, parts, parts), max_size=4).map(tuple)


def appends(parts: st.SearchStrategy[bytes] = data) -> st.SearchStrategy[AppendInput]:
    """Appends whose bodies, names and values are drawn from `parts`."""
    records = st.builds(AppendRecord, parts, _headers(parts), st.none() | numbers)
    return st.builds(
        AppendInput,
        st.lists(records, max_size=5).map(tuple),
        st.none() | numbers,
        st.none() | st.text(max_size=12),
    )


def batches(parts: st.SearchStrategy[bytes] = data, min_size: int = 0) -> st.SearchStrategy[ReadBatch]:
    """Batches whose bodies, names and values are drawn from `parts`."""
    records = st.builds(Record, numbers, numbers, _headers(parts), parts)
    return st.builds(ReadBatch, st.lists(records, min_size=min_size, max_size=5).map(tuple), st.none() | positions)
