"""An S2 path of which streams for many tokens are held: writes look at few of them, and each hears of it before it is
read."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import count
from typing import Any, Final

import orjson
import pytest
from multidict import CIMultiDict

from gateway.engine.relayed_request import RelayedRequest
from gateway.engine.s2.writes import S2Writes, TellAppended
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.s2.records import Record
from gateway.tape import paths
from gateway.tape.eviction import POLICIES
from gateway.tape.record_stream import RecordStream
from gateway.tape.record_tape import RecordTape
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import NoMetrics

AWAKE: Final = 4
STREAMS: Final = 60
ORIGIN, PATH = "http://o", "/v1/streams/chat"
FIRST, OWN = "token 0", "token 5"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few streams of a path are awake."""
    monkeypatch.setattr(paths, "MOST_AWAKE", AWAKE)


def key(token: str, basin: str = "b") -> StreamKey:
    return StreamKey(Group(ORIGIN, PATH), f"s2-basin={basin}", Partition("r", readers=token))


@pytest.fixture
def store() -> TapeStore:
    """A store with one record for each token."""
    store = TapeStore(1 << 20, POLICIES["s3-fifo"](), map(str, count()).__next__, NoMetrics())
    for number in range(STREAMS):
        stream = store.open_as(RecordStream, key(f"token {number}"), 0.0)
        store.store_records(stream, 0, (Record(0, 1, (), b"x"),), 0.0)
    return store


def request(mode: Mode, token: str = "stranger", *basins: str) -> RelayedRequest:
    fields: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(RelayedRequest))
    fields |= {
        "group": Group(ORIGIN, f"{PATH}/records" if mode is Mode.APPEND else PATH),
        "mode": mode,
        "headers": CIMultiDict([("s2-basin", basin) for basin in basins or ("b",)]),
        "partition": Partition("r", readers=token),
        "client": "",
    }
    return RelayedRequest(**fields)


def is_doubted(store: TapeStore, token: str, basin: str = "b") -> bool | None:
    """Whether the stream is in doubt when it is looked up; None if it is not held."""
    stream = store.find(key(token, basin))
    return stream.is_doubted if isinstance(stream, RecordStream) else None


def acknowledge(store: TapeStore, token: str, start: int, tell: TellAppended | None = None) -> None:
    """An append by this token gets this number."""
    writes = S2Writes(store)
    writes.tell = tell
    acks = writes.appends(request(Mode.APPEND, token))
    assert acks is not None
    positions = {name: {"seq_num": start + (name != "start"), "timestamp": 1} for name in ("start", "end", "tail")}
    acks.read_head(200, {"Content-Type": "application/json"})
    acks.see(orjson.dumps(positions))
    acks.finish()


@pytest.mark.parametrize("is_held", [False, True])
def test_the_number_given_to_an_append_is_reported_to_other_workers(is_held: bool) -> None:
    store = TapeStore(1 << 20, POLICIES["s3-fifo"](), map(str, count()).__next__, NoMetrics())
    if is_held:
        store.open_as(RecordStream, key(OWN), 0.0)
    told: list[object] = []
    acknowledge(store, OWN, 7, lambda *what: told.append(what))
    assert told == [(Group(ORIGIN, PATH), {"", "s2-basin=b"}, 7)]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many streams have been looked at."""
    looks: Counter[str] = Counter()
    end, doubt = RecordTape.end_seq_num.fget, TapeStore.doubt_records  # type: ignore[attr-defined]

    def counted_end(tape: RecordTape) -> int:
        looks["end"] += 1
        return end(tape)  # type: ignore[no-any-return]

    def counted_doubt(store: TapeStore, stream: Stream) -> None:
        looks["doubt"] += 1
        doubt(store, stream)

    monkeypatch.setattr(RecordTape, "end_seq_num", property(counted_end))
    monkeypatch.setattr(TapeStore, "doubt_records", counted_doubt)
    return looks


@pytest.mark.parametrize("status", [403, 404, 409])
def test_a_refused_append_looks_at_a_bounded_number_of_streams(
    store: TapeStore, looks: Counter[str], status: int
) -> None:
    looks.clear()
    writes = S2Writes(store)
    assert writes.appends(request(Mode.APPEND)) is not None
    writes.written(request(Mode.APPEND), status)
    assert looks["end"] > 0
    assert max(looks.values()) <= AWAKE + 1, looks


@pytest.mark.parametrize("is_created_again", [False, True])
def test_an_append_to_the_stream_that_is_held_looks_at_a_bounded_number_of_streams(
    store: TapeStore, looks: Counter[str], is_created_again: bool
) -> None:
    if is_created_again:
        # This once, all have to be looked at.
        acknowledge(store, "stranger", 0)
    looks.clear()
    acknowledge(store, "stranger", 1)
    assert looks["end"] > 0
    assert max(looks.values()) <= AWAKE + 1, looks


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.DELETE])
def test_a_stream_that_slept_through_a_refused_write_is_in_doubt_when_it_is_looked_up(
    store: TapeStore, mode: Mode
) -> None:
    S2Writes(store).written(request(mode), 404)
    assert all(is_doubted(store, f"token {number}") for number in range(STREAMS))


@pytest.mark.parametrize("status", [202, None])
def test_a_delete_drops_the_writers_own_stream_that_slept_and_doubts_the_others(
    store: TapeStore, status: int | None
) -> None:
    S2Writes(store).written(request(Mode.DELETE, OWN), status)
    own = store.find(key(OWN))
    assert own is None if status is not None else own is not None and own.needs_revalidation
    assert is_doubted(store, FIRST)


def test_streams_of_other_basins_are_left_alone(store: TapeStore) -> None:
    S2Writes(store).written(request(Mode.DELETE, "stranger", "another"), 404)
    S2Writes(store).written(request(Mode.DELETE, "stranger", "a-third"), 404)
    assert is_doubted(store, FIRST) is False


def test_refused_writes_that_name_many_basins_evict_nothing(store: TapeStore) -> None:
    for number in range(2 * paths.MOST_EVENTS):
        S2Writes(store).written(request(Mode.DELETE, "stranger", f"basin-{number}"), 404)
    assert is_doubted(store, FIRST) is not None


def test_a_delete_that_names_no_single_basin_is_of_each(store: TapeStore) -> None:
    S2Writes(store).written(request(Mode.DELETE, OWN, "another", "b"), 202)
    assert is_doubted(store, OWN)
    assert is_doubted(store, FIRST)


def test_an_acknowledgement_of_a_stream_created_again_is_seen_by_sleeping_streams(store: TapeStore) -> None:
    acknowledge(store, OWN, 0)
    assert store.find(key(OWN)) is None
    assert is_doubted(store, FIRST)


def test_an_acknowledgement_behind_the_held_records_doubts_nothing(store: TapeStore) -> None:
    acknowledge(store, OWN, 1)
    assert [is_doubted(store, token) for token in (OWN, FIRST)] == [False, False]


def test_records_that_are_read_after_a_doubt_are_doubted_again(store: TapeStore) -> None:
    acknowledge(store, "stranger", 0)
    stream = store.find(key(FIRST))
    assert stream is not None
    assert isinstance(stream, RecordStream)
    stream.settled = stream.doubts
    for number in range(STREAMS):
        store.find(key(f"token {number}"))
    acknowledge(store, "stranger", 0)
    assert is_doubted(store, FIRST)


def test_streams_of_many_basins_are_doubted_by_an_acknowledgement_in_theirs(store: TapeStore) -> None:
    for number in range(2 * paths.MOST_QUERIES):
        stream = store.open_as(RecordStream, key("reader", f"basin-{number}"), 0.0)
        store.store_records(stream, 0, (Record(0, 1, (), b"x"),), 0.0)
    acknowledge(store, "stranger", 0)
    assert is_doubted(store, FIRST)
    assert is_doubted(store, "reader", "basin-0") is False


def test_a_stream_that_wakes_between_the_append_and_its_acknowledgement_is_looked_at(store: TapeStore) -> None:
    acks = S2Writes(store).appends(request(Mode.APPEND))
    assert acks is not None
    assert is_doubted(store, FIRST) is False
    acks.read_head(200, {"Content-Type": "application/json"})
    acks.see(
        b'{"start":{"seq_num":0,"timestamp":1},"end":{"seq_num":1,"timestamp":1},"tail":{"seq_num":1,"timestamp":1}}'
    )
    acks.finish()
    assert is_doubted(store, FIRST)


def test_an_acknowledgement_is_seen_where_no_stream_of_the_path_is_awake(store: TapeStore) -> None:
    for stream in store.awake(Group(ORIGIN, PATH)):
        store.drop_stream(stream, End.EVICTED)
    acknowledge(store, "stranger", 0)
    assert is_doubted(store, FIRST)
