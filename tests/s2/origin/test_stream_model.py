"""A stream, its readers and a list in a model of them go through the same steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.origin.s2.config import StreamConfig, TimestampingMode
from gateway.origin.s2.reading import Pause, Reading
from gateway.origin.s2.refusals import FencingTokenMismatch, Refusal, SeqNumMismatch, Unwritten
from gateway.origin.s2.stream import Stream
from gateway.s2.read_query import FromSeqNum, FromTailOffset, FromTimestamp, ReadQuery, Start
from gateway.s2.records import (
    AppendInput,
    AppendRecord,
    Fence,
    InvalidAppend,
    Record,
    StreamPosition,
    Trim,
    command_record,
)
from tests.effort import examples
from tests.s2.origin.appends import NOW, NOW_MS, read

RETENTION_S = 100
TIMESTAMPS = st.none() | st.integers(NOW_MS - 50, NOW_MS + 500_000)
STARTS: st.SearchStrategy[Start] = (
    st.builds(FromSeqNum, st.integers(0, 30))
    | st.builds(FromTailOffset, st.integers(0, 30))
    | st.builds(FromTimestamp, st.integers(NOW_MS - 60, NOW_MS + 500_000))
)
QUERIES = st.builds(
    ReadQuery,
    start=STARTS,
    count=st.none() | st.integers(0, 5),
    bytes=st.none() | st.integers(0, 60),
    until=st.none() | st.integers(NOW_MS - 60, NOW_MS + 500_000),
    wait_s=st.none() | st.integers(0, 1),
    is_clamped=st.booleans(),
)


@dataclass
class Follower:
    """A read from the beginning that never ends, and what it was given."""

    reading: Reading
    given: list[Record] = field(default_factory=list)


class StreamMachine(RuleBasedStateMachine):
    @initialize(mode=st.sampled_from(TimestampingMode), is_uncapped=st.booleans())
    def begin(self, mode: TimestampingMode, is_uncapped: bool) -> None:
        self.now = NOW
        config = StreamConfig(retention_s=RETENTION_S, mode=mode, is_uncapped=is_uncapped)
        self.stream = Stream("s", config, self.now)
        self.all: list[Record] = []
        self.arrivals: list[float] = []
        self.first = 0
        self.token = ""
        self.followers: list[Follower] = []

    def timestamps(self, given: list[int | None]) -> list[int] | None:
        """What the records get; None if the mode forbids one of them."""
        now_ms, config = int(self.now * 1000), self.stream.config
        latest = self.all[-1].timestamp if self.all else 0
        found = []
        for one in given:
            if config.mode is TimestampingMode.CLIENT_REQUIRE and one is None:
                return None
            own = now_ms if one is None or config.mode is TimestampingMode.ARRIVAL else one
            own = own if config.is_uncapped else min(own, now_ms)
            latest = max(latest, own)
            found.append(latest)
        return found

    @rule(
        given=st.lists(TIMESTAMPS, min_size=1, max_size=4),
        match=st.none() | st.integers(0, 12),
        matches=st.booleans(),
        token=st.none() | st.sampled_from(["", "a", "b"]),
    )
    def append(self, given: list[int | None], match: int | None, matches: bool, token: str | None) -> None:
        if match is not None and matches:
            match = len(self.all)
        records = tuple(AppendRecord(b"r%d" % number, (), at) for number, at in enumerate(given))
        self.add(AppendInput(records, match, token), given)

    @rule(token=st.sampled_from(["", "a", "b"]))
    def fence(self, token: str) -> None:
        now_ms = int(self.now * 1000)
        self.add(AppendInput((command_record(Fence(token), now_ms),)), [now_ms])
        self.token = token

    @rule(to=st.integers(0, 40))
    def trim(self, to: int) -> None:
        now_ms = int(self.now * 1000)
        self.add(AppendInput((command_record(Trim(to), now_ms),)), [now_ms])
        self.first = max(self.first, min(to, len(self.all)))

    def add(self, append: AppendInput, given: list[int | None]) -> None:
        stamps = self.timestamps(given)
        before = len(self.all)
        try:
            ack = self.stream.append(append, self.now)
        except FencingTokenMismatch as refused:
            assert append.fencing_token not in (None, self.token)
            assert refused.actual == self.token
        except SeqNumMismatch as refused:
            assert append.match_seq_num not in (None, before)
            assert refused.actual == before
        except InvalidAppend:
            assert stamps is None
        else:
            assert stamps is not None
            assert append.fencing_token in (None, self.token)
            assert append.match_seq_num in (None, before)
            added = zip(append.records, stamps, strict=True)
            for seq_num, (record, stamp) in enumerate(added, before):
                self.all.append(Record(seq_num, stamp, record.headers, record.body))
                self.arrivals.append(self.now)
            assert (ack.start.seq_num, ack.start.timestamp) == (before, stamps[0])
            assert ack.end == ack.tail == StreamPosition(len(self.all), stamps[-1])

    @rule(seconds=st.integers(1, 60))
    def age(self, seconds: int) -> None:
        self.now += seconds
        self.stream.expire(self.now)
        while self.first < len(self.all) and self.arrivals[self.first] <= self.now - RETENTION_S:
            self.first += 1

    @rule()
    def follow(self) -> None:
        self.followers.append(Follower(Reading(self.stream, ReadQuery(FromSeqNum(0), is_clamped=True))))

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        follower = data.draw(st.sampled_from(self.followers))
        batch = follower.reading.advance()
        if isinstance(batch, Pause):
            assert batch is Pause.WAITING
            return
        follower.given += batch.records
        if batch.tail is not None:
            # A client resumes here: it must have been given everything before it.
            assert batch.tail.seq_num == len(self.all)
            missing = {r.seq_num for r in self.all[self.first :]} - {r.seq_num for r in follower.given}
            assert not missing

    @rule(query=QUERIES)
    def read(self, query: ReadQuery) -> None:
        left = self.all[self.first :]
        tail = StreamPosition(len(self.all), self.all[-1].timestamp if self.all else 0)
        try:
            found = read(self.stream, query)
        except Unwritten as refused:
            assert refused.tail == tail
            may_wait = bool(query.wait_s) or (query.count is None and query.bytes is None and query.until is None)
            assert not self.wanted(query.start, left)
            assert not (may_wait and query.is_clamped)
            return
        expected: list[Record] = []
        for record in self.wanted(query.start, left):
            size = sum(8 + len(one.body) + sum(len(h.name + h.value) + 2 for h in one.headers) for one in expected)
            own = 8 + len(record.body) + sum(len(h.name + h.value) + 2 for h in record.headers)
            if query.until is not None and record.timestamp >= query.until:
                break
            if query.count is not None and len(expected) >= query.count:
                break
            if query.bytes is not None and size + own > query.bytes:
                break
            expected.append(record)
        assert found == expected

    def wanted(self, start: Start, left: list[Record]) -> list[Record]:
        match start:
            case FromSeqNum(seq_num):
                return [record for record in left if record.seq_num >= seq_num]
            case FromTailOffset(tail_offset):
                return [record for record in left if record.seq_num >= len(self.all) - tail_offset]
            case FromTimestamp(timestamp):
                return [record for record in left if record.timestamp >= timestamp]

    @rule()
    def delete_and_create_again(self) -> None:
        old, config = self.stream, self.stream.config
        old.delete()
        for follower in self.followers:
            try:
                follower.reading.advance()
            except Refusal as refused:
                assert refused.status == 503
            else:
                raise AssertionError("a reader of a deleted stream goes on")
        self.stream = Stream("s", config, self.now)
        self.all, self.arrivals, self.first, self.token, self.followers = [], [], 0, "", []

    @invariant()
    def followers_never_skip_or_repeat(self) -> None:
        for follower in getattr(self, "followers", []):
            numbers = [record.seq_num for record in follower.given]
            assert numbers == sorted(set(numbers))
            assert all(record == self.all[record.seq_num] for record in follower.given)

    @invariant()
    def the_tail_is_behind_the_last_record(self) -> None:
        if hasattr(self, "stream"):
            assert self.stream.tail.seq_num == len(self.all)
            assert self.stream.fencing_token == self.token
            assert self.stream.first_seq_num == self.first


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(max_examples=examples(30, 120), stateful_step_count=30)
