"""What a worker makes of the writes that another one has relayed: the same as of its own."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import count
from typing import NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.aio.clock import ManualClock
from gateway.config.gateway import GatewayConfig
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.others_writes import OthersWrites
from gateway.engine.pending_writes import PendingWrites
from gateway.engine.relayed_request import RelayedRequest, SentRequest
from gateway.engine.route import Route
from gateway.engine.writes import Writes
from gateway.errors import UpstreamBroken, UpstreamUnreachable
from gateway.limits.accounts import Accounts, client_nets
from gateway.live.topics import LiveTopics
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.protocol.names import START
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.target import parse_target
from gateway.s2.records import Record
from gateway.tape.eviction import POLICIES
from gateway.tape.origin_statements import Sighting
from gateway.tape.record_stream import RecordStream
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import NoMetrics
from gateway.upstream.flight import OriginError
from gateway.upstream.reply import Reply
from gateway.workers.removals import Removals, Removed
from gateway.workers.shared_memory import RECORDS, SharedMemory
from gateway.workers.worker_owners import Owners
from gateway.workers.write_log import MOST_TEXT, WriteLog

PARTIES = "writer", "other"
PATHS = "/s", "/t"


class Head(NamedTuple):
    status: int
    headers: CIMultiDict[str]


class Live:
    """Stands in for the live readers."""

    def __init__(self, store: TapeStore) -> None:
        self.drop_stream = store.drop_stream

    def revalidate(self, stream: Stream) -> None: ...

    restart = expect = revalidate


class Worker:
    """One worker, or one gateway of a single process, which holds the bytes of two streams for two parties."""

    def __init__(self, clock: ManualClock, shared: SharedMemory | None = None, slot: int = 0) -> None:
        self.clock = clock
        self.route = Route(GatewayConfig.for_origin("http://origin.test").routes[0], "edge", clock)
        self.store = TapeStore(1 << 20, POLICIES["s3-fifo"](), map(str, count()).__next__, NoMetrics())
        pending = PendingWrites()
        self.absent = NegativeCache(clock.now, pending, Accounts(client_nets(32, 64), clock.now))
        self.writes = Writes(
            self.store,
            cast(LiveTopics, Live(self.store)),
            pending,
            self.absent,
            clock,
            lambda request, status, body: None,
        )
        if shared is not None:
            log, owners = WriteLog(shared, slot, clock.now), Owners(shared, slot)
            self.others = self.writes.others = OthersWrites(
                log, owners, self.store, self.absent, generation=1, removals=Removals(shared, slot)
            )
            self.others.applying, self.others.routes = self.writes, {self.route.name: self.route}.get
            self.store.others = self.others
            for path in PATHS:
                self.look(path)
        self.streams = [self.held(path, party) for path in PATHS for party in PARTIES]

    def look(self, path: str) -> None:
        self.others.look(self.route.key(parse_target(path), self.route.public).group)

    def held(self, path: str, party: str) -> Stream:
        now = self.clock.now()
        partition = self.route.partition(CIMultiDict(Authorization=party))
        stream = self.store.open(self.route.key(parse_target(path), partition), now)
        stream.learn_type("application/octet-stream")
        stream.expiry.know(Lifetime(None, None))
        self.store.store(stream, START, "4", [b"abcd"], now)
        stream.tape.reached("4")
        stream.saw_tail(Sighting("4", now, now + 100, now + 100))
        return stream

    def send(self, mode: Mode, path: str = "/s") -> SentRequest:
        partition = self.route.partition(CIMultiDict(Authorization="writer"))
        key = self.route.key(parse_target(path), partition)
        request = RelayedRequest(
            self.route, key.group, key, mode, mode.name, path, "", "", CIMultiDict(), "net", partition=partition
        )
        sent = SentRequest(request, self.store.find(key), self.clock.now())
        self.writes.write_started(sent)
        return sent

    def answer(self, sent: SentRequest, status: int, fields: dict[str, str]) -> None:
        if status == 0:
            self.writes.write_failed(sent, UpstreamBroken())
        elif status == 1:
            self.writes.write_failed(sent, UpstreamUnreachable(is_unsent=True))
        else:
            self.writes.write_answered(sent, cast(Reply, Head(status, CIMultiDict(fields))))

    def state(self) -> list[tuple[object, ...]]:
        """What this worker knows of the streams that it held."""
        return [
            (
                stream.ended,
                stream.acked.tail,
                stream.acked.is_closed,
                stream.needs_revalidation,
                stream.version.may_have_ended,
                stream.expiry.is_lost,
                stream.tape.tail,
                stream.block_count,
                stream.tail_until("4") > self.clock.now(),
            )
            for stream in self.streams
        ]


def count_notes(worker: Worker) -> list[bytes]:
    """The texts that the worker records from now on, which are no writes."""
    told: list[bytes] = []
    log = worker.others._log
    note = log.note

    def noted(index: int, text: bytes) -> None:
        told.append(text)
        note(index, text)

    log.note = noted  # type: ignore[method-assign]
    return told


def crew(workers: int = 2) -> tuple[ManualClock, SharedMemory, list[Worker]]:
    clock, shared = ManualClock(), SharedMemory.create(3)
    return clock, shared, [Worker(clock, shared, slot) for slot in range(workers)]


ANSWERS = st.tuples(
    st.sampled_from([0, 1, 200, 201, 204, 400, 404, 410, 500]),
    st.fixed_dictionaries(
        {}, optional={"Stream-Next-Offset": st.sampled_from("468"), "Stream-Closed": st.just("true")}
    ),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([Mode.APPEND, Mode.CREATE, Mode.DELETE]),
        st.sampled_from(PATHS),
        ANSWERS,
        st.integers(0, 2),
        st.sampled_from(["", "look", "answer late"]),
    ),
    max_size=7,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_worker_knows_after_a_look_what_it_would_know_of_its_own_writes(
    steps: list[tuple[Mode, str, tuple[int, dict[str, str]], int, str]],
) -> None:
    clock, _, workers = crew(3)
    alone = Worker(clock)
    late = []
    for mode, path, answer, slot, how in steps:
        clock.advance(0.001)
        # A worker looks at the arrival of each request.
        workers[slot].look(path)
        of_alone, of_crew = alone.send(mode, path), workers[slot].send(mode, path)
        late.append((of_alone, of_crew, slot, answer))
        if how == "look":
            workers[(slot + 1) % 3].look(path)
        if how != "answer late":
            for of_alone, of_crew, at, (status, fields) in late:
                clock.advance(0.001)
                alone.answer(of_alone, status, fields)
                workers[at].answer(of_crew, status, fields)
            late.clear()
    for worker in workers:
        for path in PATHS:
            worker.look(path)
        assert worker.state() == alone.state()


def test_a_worker_that_has_the_bytes_of_an_append_before_it_looks_keeps_them() -> None:
    clock, _, [writer, other] = crew()
    sent = writer.send(Mode.APPEND)
    [stream, *_] = other.streams
    # The follower has brought this append and a later one.
    other.store.store(stream, "4", "9", [b"efghi"], clock.now())
    stream.tape.reached("9")
    writer.answer(sent, 204, {"Stream-Next-Offset": "6"})
    other.look("/s")
    assert stream.tape.knows_after("4")


@pytest.mark.parametrize("knows", ["the worker that writes", "the other worker"])
def test_an_append_through_another_worker_shows_that_the_stream_was_re_created(knows: str) -> None:
    clock, _, [writer, other] = crew()
    for worker in (writer, other):
        stream = worker.streams[0]
        worker.store.store(stream, "4", "9", [b"efghi"], clock.now())
        stream.tape.reached("9")
        stream.saw_tail(Sighting("9", clock.now(), clock.now() + 100, clock.now() + 100))
    if knows == "the other worker":
        writer.store.drop_stream(writer.streams[0], End.PURGED)
    clock.advance(5)
    sent = writer.send(Mode.APPEND)
    if knows == "the worker that writes":
        sent.tail = "9"
        # The other worker may take this tail for one that lies behind the write.
        other.streams[0].saw_tail(Sighting("9", clock.now() + 1, clock.now() + 100, clock.now() + 100))
    writer.answer(sent, 204, {"Stream-Next-Offset": "6"})
    other.look("/s")
    assert other.streams[0].needs_revalidation or not other.streams[0].tape.knows_after("4")


@pytest.mark.parametrize("is_shown_by_origin", [True, False])
def test_a_worker_doubts_a_stream_that_the_origin_has_shown_to_another_worker_to_be_over(
    is_shown_by_origin: bool,
) -> None:
    """A purge or another worker's statement ends a record at one worker only."""
    _, _, [one, two] = crew()
    assert one.store.drop_stream(one.streams[0], End.DELETED, is_by_origin=is_shown_by_origin)
    two.look("/s")
    own, others, elsewhere, _ = two.streams
    assert own.tape.knows_after(START) is not is_shown_by_origin
    assert own.version.may_have_ended is own.version.may_be_another is is_shown_by_origin
    assert all(stream.tape.knows_after(START) for stream in (others, elsewhere))


@pytest.mark.parametrize(
    ("mode", "is_doubted"), [(Mode.HEAD, "bytes dropped"), (Mode.CATCHUP, "asks again"), (Mode.APPEND, "asks again")]
)
@pytest.mark.parametrize("is_held", [True, False])
def test_a_worker_doubts_a_stream_after_a_404_for_a_request_that_another_one_has_relayed(
    mode: Mode, is_doubted: str, is_held: bool
) -> None:
    """A 404 for a GET may concern this reader alone.  That of a write is in the record of the write."""
    _, _, [one, two] = crew()
    key, stream = one.streams[0].key, one.streams[0] if is_held else None
    if stream is None:
        one.store.drop_stream(one.streams[0], End.EVICTED)
    request = RelayedRequest(
        one.route, key.group, key, mode, mode.name, "/s", "", "", CIMultiDict(), "net", partition=key.partition
    )
    sent = SentRequest(request, stream, one.clock.now())
    if mode is Mode.APPEND:
        one.writes.write_started(sent)
        one.answer(sent, 404, {})
    else:
        one.writes.missing(sent, Head(404, CIMultiDict()))
    two.look("/s")
    own = two.streams[0]
    assert own.ended is not None or own.version.may_have_ended
    assert own.tape.knows_after(START) is (own.ended is None and is_doubted == "asks again")
    assert own.version.may_be_another is (own.ended is None and mode is Mode.HEAD)


def test_ends_that_any_client_can_cause_are_told_at_a_limited_rate() -> None:
    """The log has room for few records.  Ends of known streams need a stream, and are always told."""
    clock, _, [one, two] = crew()
    told = count_notes(one)
    key = one.streams[0].key
    for number in range(1_000):
        one.others.ended(key._replace(query=f"{number}={'x' * 2_000}"), was_known=False, is_certain=True)
        one.others.ended(key, was_known=True, is_certain=False)
    assert len(told) == 2 * 64
    assert max(map(len, told)) <= MOST_TEXT
    clock.advance(1)
    for number in range(1_000):
        one.others.ended(key._replace(query=f"{number}"), was_known=False, is_certain=True)
    assert len(told) == 2 * 64 + 16
    one.others.ended(key, was_known=True, is_certain=True)
    assert len(told) == 2 * 64 + 17
    two.look("/s")
    assert two.streams[0].version.may_have_ended
    assert not two.streams[1].version.may_have_ended


@pytest.mark.parametrize("length", [1, 100, 400, 8_000])
def test_the_end_of_a_stream_with_a_key_of_any_length_is_told(length: int) -> None:
    _, _, [one, two] = crew()
    query = "\u00e9" * length
    stream, other = two.held(f"/s?{query}", "other"), two.held(f"/s?{query}x", "other")
    one.others.ended(stream.key, was_known=True, is_certain=True)
    two.look("/s")
    assert (stream.block_count, other.block_count) == (0, 1)


def test_a_late_404_for_a_head_does_not_drop_the_stream_that_was_created_since() -> None:
    _, _, [one, two] = crew()
    key = one.streams[0].key
    request = RelayedRequest(
        one.route, key.group, key, Mode.HEAD, "HEAD", "/s", "", "", CIMultiDict(), "net", partition=key.partition
    )
    one.writes.missing(SentRequest(request, None, one.clock.now()), Head(404, CIMultiDict()))
    two.look("/s")
    for worker in (one, two):
        assert worker.streams[0].needs_revalidation
        assert worker.streams[0].tape.knows_after(START)


def test_an_end_of_one_stream_wakes_no_other_stream_of_its_path() -> None:
    _, _, [one, two] = crew()
    two.store.budget_bytes = 1 << 24
    streams = [two.held(f"/s?{number}", "other") for number in range(600)]
    asleep = [stream for stream in streams if not stream.is_awake]
    assert asleep
    for number in range(70):
        one.others.ended(one.streams[0].key._replace(query=f"zz={number}"), was_known=False, is_certain=True)
    two.look("/s")
    assert not any(stream.is_awake for stream in asleep)
    assert all(two.store.paths.find(stream.key) is stream for stream in streams)


@pytest.mark.parametrize("is_told_before", [False, True])
def test_a_told_end_does_not_overtake_a_request_for_a_stream_without_bytes(is_told_before: bool) -> None:
    """The reply to this request may be the statement that is told."""
    _, _, [one, two] = crew()
    stream = two.streams[0] if is_told_before else two.store.open(one.streams[0].key._replace(query="q"), 0.0)
    if is_told_before:
        one.others.ended(stream.key, was_known=True, is_certain=True)
        two.look("/s")
    before = stream.version
    one.others.ended(stream.key, was_known=False, is_certain=True)
    two.look("/s")
    assert stream.version.same_incarnation_as(before)
    assert stream.version.may_have_ended


def test_a_404_is_not_repeated_after_another_worker_has_begun_a_write() -> None:
    _, _, (one, two) = crew()
    key, headers = two.streams[0].key, CIMultiDict[str]()
    two.absent.remember(key, None, OriginError.of_ended(404), headers, two.route, two.clock.now())
    assert two.absent.find(key, None, headers) is not None
    sent = one.send(Mode.CREATE)
    two.look("/s")
    assert two.absent.find(key, None, headers) is None
    # While the write is under way, nothing is remembered.
    two.absent.remember(key, None, OriginError.of_ended(404), headers, two.route, two.clock.now())
    assert two.absent.find(key, None, headers) is None
    one.answer(sent, 201, {})
    two.look("/s")
    two.absent.remember(key, None, OriginError.of_ended(404), headers, two.route, two.clock.now())
    assert two.absent.find(key, None, headers) is not None


@pytest.mark.parametrize(
    ("start", "queries", "is_doubted"),
    [(0, None, True), (0, {"", "s2-basin=b"}, True), (0, {"", "s2-basin=c"}, False), (1, None, False)],
)
def test_the_records_that_another_workers_append_shows_to_be_of_an_earlier_stream_are_doubted(
    start: int, queries: set[str] | None, is_doubted: bool
) -> None:
    _, _, (one, two) = crew()
    key = StreamKey(Group("http://origin.test", "/v1/streams/s"), "s2-basin=b", Partition("default"))
    two.others.look_at_s2(key.group)
    stream = two.store.open_as(RecordStream, key, two.clock.now())
    two.store.store_records(stream, 0, (Record(0, 1, (), b"old"),), two.clock.now())
    one.others.appended(key.group, queries, start)
    two.others.look_at_s2(key.group)
    assert stream.is_doubted is is_doubted


@pytest.mark.parametrize("is_dead", [False, True])
def test_a_lost_record_says_that_anything_may_have_happened(is_dead: bool) -> None:
    clock, shared, (one, two) = crew()
    sent = one.send(Mode.DELETE)
    if is_dead:
        WriteLog(shared, 2, clock.now).settle(0)
    else:
        one.answer(sent, 204, {})
        for _ in range(RECORDS):
            one.answer(one.send(Mode.APPEND, "/t"), 400, {})
    two.look("/s")
    own, other, *rest = two.streams
    for stream in (own, other):
        assert (stream.ended, stream.block_count, stream.version.may_have_ended) == (None, 0, True)
    assert [stream.block_count for stream in rest] == [1, 1]


def test_a_lost_record_is_no_reason_to_search_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, (one, two) = crew()
    # Streams that have left memory are found no more, and those of other paths are not looked at.
    two.store.drop_stream(two.streams[1], End.EVICTED)
    group = two.streams[0].key.group
    assert two.store.paths.in_row(two.others.index_of(group)) == {group}
    monkeypatch.setattr(TapeStore, "__iter__", None)
    sent = one.send(Mode.APPEND)
    one.others._log.note(one.others.index_of(group), b"x" * (MOST_TEXT + 1))
    one.answer(sent, 400, {})
    two.look("/s")
    assert [stream.block_count for stream in two.streams] == [0, 0, 1, 1]
    two.store.drop_stream(two.streams[0], End.EVICTED)
    assert two.store.paths.in_row(two.others.index_of(group)) == set()


def test_a_worker_that_has_just_started_knows_which_writes_are_under_way() -> None:
    clock, shared, (one, two) = crew()
    one.answer(one.send(Mode.APPEND), 204, {"Stream-Next-Offset": "6"})
    deleted = one.send(Mode.DELETE)
    made = two.send(Mode.CREATE)
    three = Worker(clock, shared, 2)
    own = three.streams[0]
    assert own.acked.tail is None
    two.answer(made, 201, {})
    one.answer(deleted, 204, {})
    three.look("/s")
    # Nobody knows which of the two writes came last, so the bytes may be the earlier stream's.
    assert own.ended is not None or own.version.may_have_ended
    assert own.ended in (None, End.RECREATED, End.PURGED)
    assert own.block_count == 0


class Kept:
    """Stands in for a store on disk: which paths it has dropped."""

    def __init__(self, worker: Worker) -> None:
        self.dropped: list[Group] = []
        worker.store.keeper = self

    def stored(self, stream: Stream, size: int) -> None: ...

    def leaving(self, stream: Stream) -> None: ...

    def withdraw(self, stream: Stream) -> None: ...

    def withdraw_group(self, group: Group) -> None:
        self.dropped.append(group)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_what_a_write_takes_from_the_disk_of_its_worker_it_takes_from_every_disk_and_is_counted(
    steps: list[tuple[Mode, str, tuple[int, dict[str, str]], int, str]],
) -> None:
    clock, shared, (one, two) = crew()
    kept, others = Kept(one), Kept(two)
    for stream in two.streams:
        # They are on disk alone.
        two.store.drop_stream(stream, End.EVICTED)
    removals = Removals(shared, 0)
    for mode, path, answer, after_s, _ in steps:
        clock.advance(after_s)
        before = removals.total
        kept.dropped.clear()
        one.answer(one.send(mode, path), *answer)
        assert removals.total.under_way == 0
        assert removals.total.ended - before.ended == len(kept.dropped)
        others.dropped.clear()
        two.look(path)
        assert set(others.dropped) >= {group for group in kept.dropped if group.path == path}
        assert removals.total.ended - before.ended == len(kept.dropped), "a told removal is not counted again"


@pytest.mark.parametrize("dies", ["", "before its record", "after its record"])
def test_a_removal_is_counted_after_its_record(dies: str) -> None:
    """It is counted without a store on disk, too: a later version may have one."""
    clock, shared, (one, _) = crew()
    removals, log = Removals(shared, 1), WriteLog(shared, 1, clock.now)
    row = one.others.index_of(one.streams[0].key.group)
    seen = log.read(row, log.blank)
    found: list[tuple[Removed, int]] = []
    end = one.others._log.end

    def look() -> None:
        found.append((removals.of(row), len(log.read(row, seen.row).records)))

    def ended(index: int, text: bytes) -> bytes:
        look()
        if dies == "before its record":
            raise SystemExit
        cell = end(index, text)
        look()
        if dies:
            raise SystemExit
        return cell

    one.others._log.end = ended  # type: ignore[method-assign]
    sent = one.send(Mode.DELETE)
    with pytest.raises(SystemExit) if dies else nullcontext():
        one.answer(sent, 204, {})
    if dies:
        WriteLog(shared, 2, clock.now).settle(0)
    look()
    assert [counted for counted, _ in found[:-1]] == [Removed(0, 1)] * len(found[:-1])
    assert (found[-1][0].ended > 0, found[-1][0].under_way) == (True, 0)
    assert found[-1][1] == 2


def test_a_lost_record_takes_streams_that_are_on_disk_alone() -> None:
    _, _, (one, two) = crew()
    kept = Kept(two)
    group = two.streams[0].key.group
    for stream in two.streams[:2]:
        two.store.drop_stream(stream, End.EVICTED)
    row = two.others.index_of(group)
    two.others.keep_on_disk(lambda index: {group} if index == row else ())
    one.others._log.note(row, b"x" * (MOST_TEXT + 1))
    two.others.look_at_row(row)
    assert kept.dropped == [group]


@pytest.mark.parametrize("length", [1, MOST_TEXT])
def test_the_end_of_a_stream_takes_it_from_every_disk(length: int) -> None:
    _, shared, (one, two) = crew()
    Kept(one)
    kept = Kept(two)
    key = one.streams[0].key._replace(query="q" * length)
    two.look("/s")
    row = two.others.index_of(key.group)
    two.others.keep_on_disk(lambda index: {key.group} if index == row else ())
    one.others.ended(key, was_known=True, is_certain=True)
    two.others.look_at_row(row)
    assert kept.dropped == [key.group]
    assert Removals(shared, 1).of(row) == Removed(1, 0)
    one.others.ended(key, was_known=True, is_certain=False)
    two.others.look_at_row(row)
    assert kept.dropped == [key.group], "an uncertain end takes nothing"


@pytest.mark.parametrize("is_certain", [True, False])
def test_the_end_of_a_stream_on_an_unknown_route_may_be_that_of_any_stream_of_its_path(is_certain: bool) -> None:
    """During an upgrade or a reload, two workers may have different routes to one origin."""
    _, _, (one, two) = crew()
    kept = Kept(two)
    stream = two.streams[0]
    group = stream.key.group
    two.look("/s")
    two.others.routes = lambda name: None
    one.others.ended(stream.key, was_known=True, is_certain=is_certain)
    two.others.look(group)
    assert kept.dropped == [group] * is_certain
    assert (stream.ended is not None or stream.version.may_have_ended) is is_certain


def test_writes_through_other_members_of_a_fleet_add_no_removal_to_one_that_has_no_record_yet() -> None:
    shared, clock = SharedMemory.create(2), ManualClock()
    worker = Worker(clock, shared)
    removals, before = Removals(shared, 0), Removals(shared, 0).total
    group = worker.streams[0].key.group
    for _ in range(3):
        worker.writes.apply_anything(group)
    assert removals.total == Removed(before.ended, 1)
    worker.answer(worker.send(Mode.DELETE, "/t"), 204, {})
    assert removals.total == Removed(before.ended + 2, 0)
