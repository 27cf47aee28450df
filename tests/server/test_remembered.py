"""Remembered answers: they are charged for exactly the memory they hold, and match what the stream holds now."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from multidict import CIMultiDict

from gateway.engine.answer import Answer, BodyRun, NamedTail, Parts
from gateway.engine.route import HeaderRules
from gateway.protocol.cache_status import Outcome
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.mode import Mode
from gateway.server.header_meanings import Sections
from gateway.server.remembered import RememberedAnswer, RememberedAnswers, Repeatable
from gateway.tape.eviction import USE_S
from gateway.tape.origin_statements import Sighting
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.tape.tape import TapeReading
from gateway.telemetry.metrics import NoMetrics
from tests.effort import examples
from tests.engine.coding_bench import Bench

NAMES = st.sampled_from(["a", "b"])
OFFSETS = st.sampled_from(["-1", "00000001", "00000003"])
LIMITS = st.sampled_from([1, 20_000, 100_000])
FOR_EVER = Lifetime(None, None)


class Kept:
    """Ready answers and coded bytes over one library, as the engine puts them together."""

    def __init__(self, cache_bytes: int) -> None:
        self.bench = Bench(cache_bytes, cache_bytes)
        self.store, self.coder = self.bench.store, self.bench.coder
        self.sections = Sections([HeaderRules()])
        self.answers = RememberedAnswers(
            self.bench.clock, self.store, NoMetrics(), self.sections, self.store.touch, lambda _: False
        )
        self.coder.on_evict = self.answers.forget_stream
        self.store.on_forget = self._forget

    def _forget(self, stream: Stream) -> None:
        self.coder.forget_stream(stream)
        self.answers.forget_stream(stream)

    def stream(self, name: str) -> Stream:
        stream = self.bench.stream(name)
        stream.expiry.know(FOR_EVER)
        stream.content_type = "text/plain"
        stream.contacted_at = self.bench.clock.now()
        return stream

    def append(self, stream: Stream, *pieces: bytes) -> None:
        start = stream.tape.tail or "-1"
        end = f"{int(start) + 2:08d}"
        self.store.store(stream, start, end, pieces, self.bench.clock.now())
        stream.tape.reached(end)

    def read(self, stream: Stream, start: str, limit: int) -> tuple[TapeReading, BodyRun]:
        reading = stream.tape.read(start, limit)
        stream.confirm(start, self.bench.clock.now())
        return reading, BodyRun(stream, start, reading.end, stream.version.edition)

    def remember(self, request: bytes, reading: TapeReading, run: BodyRun) -> None:
        headers = CIMultiDict({"Content-Type": "text/plain"})
        pieces, copied = reading.pieces, reading.copied
        self.answers.remember(
            request,
            RememberedAnswer(
                Repeatable(run, Outcome.HIT, 200, headers, pieces, 0, copied, run.stream.shared_bytes()),
                60,
                None,
                Mode.CATCHUP,
                "route",
                None,
            ),
            HeaderRules(),
        )


def request(name: str, start: str, cookie: int = 0, visit: int = 0) -> bytes:
    lines = [f"GET /{name}?offset={start} HTTP/1.1", "Host: edge", f"Cookie: {visit}{'c' * cookie}", "", ""]
    return "\r\n".join(lines).encode()


def held_beside(remembered: RememberedAnswer) -> int:
    """Bytes that exist only because of the answer: those it holds beside the tape."""
    own = {id(piece) for block in remembered.stream.tape.blocks() for piece in block.pieces}
    pieces = {id(piece): len(piece) for piece in (*remembered.pieces, remembered.joined or b"") if id(piece) not in own}
    assert remembered.key is not None
    line, meaning = remembered.key
    return sum(pieces.values()) + len(line) + len(meaning.text) + len(remembered.request) + len(remembered.alias)


class LentBudget(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kept = Kept(300_000)
        self.earlier_reads: list[tuple[bytes, TapeReading, BodyRun]] = []

    @initialize()
    def begin(self) -> None:
        for name in ("a", "b"):
            for size in (300, 9_000, 90_000):
                self.kept.append(self.kept.stream(name), b"x" * size)

    @rule(name=NAMES, sizes=st.lists(st.sampled_from([1, 700, 9_000, 40_000]), min_size=1, max_size=3))
    def append(self, name: str, sizes: list[int]) -> None:
        self.kept.append(self.kept.stream(name), *(b"x" * size for size in sizes))

    @rule(name=NAMES, start=OFFSETS, limit=LIMITS, cookie=st.integers(0, 3_000))
    def read_and_remember(self, name: str, start: str, limit: int, cookie: int) -> None:
        sent = request(name, start, cookie)
        self.kept.remember(sent, *self.kept.read(self.kept.stream(name), start, limit))
        self.kept.answers.find(sent)

    @rule(name=NAMES, start=OFFSETS, limit=LIMITS, cookie=st.integers(0, 3_000))
    def read(self, name: str, start: str, limit: int, cookie: int) -> None:
        stream = self.kept.stream(name)
        self.earlier_reads.append((request(name, start, cookie), *self.kept.read(stream, start, limit)))

    @rule(data=st.data())
    def remember_an_earlier_read(self, data: st.DataObject) -> None:
        if self.earlier_reads:
            at = data.draw(st.integers(0, len(self.earlier_reads) - 1))
            sent, reading, run = self.earlier_reads.pop(at)
            self.kept.remember(sent, reading, run)
            self.kept.answers.find(sent)

    @rule(name=NAMES, start=OFFSETS, cookie=st.integers(0, 3_900), times=st.integers(1, 3))
    def find(self, name: str, start: str, cookie: int, times: int) -> None:
        for _ in range(times):
            self.kept.answers.find(request(name, start, cookie, visit=cookie % 7))

    @rule(name=NAMES, start=OFFSETS, coding=st.sampled_from(["gzip", "br"]))
    def code(self, name: str, start: str, coding: str) -> None:
        stream = self.kept.stream(name)
        parts = Parts()
        parts.add_pieces((b"coded " * 400,), 0, stream.shared_bytes())
        fields = CIMultiDict({"ETag": '"k"', "Content-Type": "text/plain"})
        run = BodyRun(stream, start, "9", stream.version.edition)
        answer = Answer(200, fields, Outcome.HIT, parts, stream=stream, run=run)
        self.kept.coder.code_now(self.kept.bench.read(stream, coding), answer)

    @rule(seconds=st.sampled_from([0.5, USE_S, 61.0]))
    def advance(self, seconds: float) -> None:
        self.kept.bench.clock.advance(seconds)

    @rule(name=NAMES)
    def forget_bytes(self, name: str) -> None:
        self.kept.store.forget_bytes(self.kept.stream(name))

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.kept.store.drop_stream(self.kept.stream(name), End.DELETED)

    @rule()
    def reset_answers(self) -> None:
        self.kept.answers.reset()

    @invariant()
    def lent_equals_held(self) -> None:
        store, answers = self.kept.store, self.kept.answers
        assert store.lent == answers.cost + self.kept.coder.cost
        assert answers.cost <= answers.budget_bytes
        remembered = {answer for answer, _ in answers.exact.values()}
        assert sum(answer.cost for answer in remembered) <= answers.cost
        for answer in remembered:
            assert held_beside(answer) <= answer.cost
            assert answer.edition == answer.stream.version.edition
            assert answer.stream.ended is None

    def teardown(self) -> None:
        for stream in list(self.kept.store):
            self.kept.store.drop_stream(stream, End.PURGED)
        assert self.kept.store.lent == self.kept.answers.cost == self.kept.coder.cost == 0
        assert not self.kept.answers.exact
        assert len(self.kept.answers) == 0


def test_the_budget_lent_equals_the_memory_held_in_every_order_of_events() -> None:
    run_state_machine_as_test(LentBudget, settings=settings(max_examples=examples(25, 120), stateful_step_count=30))


def cost_of(store: Callable[[Kept, Stream], str]) -> tuple[int, int]:
    """The cost of an answer from the offset that `store` returns, and the bytes that it holds beside the tape."""
    kept = Kept(10 << 20)
    stream = kept.stream("s")
    start = store(kept, stream)
    sent = request("s", start)
    kept.remember(sent, *kept.read(stream, start, 1 << 20))
    remembered = kept.answers.find(sent)
    assert remembered is not None
    return remembered.cost, held_beside(remembered)


def test_a_large_body_costs_only_bytes_not_shared_with_the_tape() -> None:
    def whole(kept: Kept, stream: Stream) -> str:
        kept.append(stream, *[b"w" * 100_000] * 5)
        return "-1"

    def from_inside_a_piece(kept: Kept, stream: Stream) -> str:
        kept.append(stream, *[b"w" * 100_000] * 5)
        tail = stream.tape.tail
        assert tail is not None
        # Another fetch with the same end shows where in the piece its beginning lies.
        kept.store.store(stream, "00000000", tail, [b"w" * 480_000], 0.0)
        return "00000000"

    cost, held = cost_of(whole)
    assert held < 1_000
    assert cost < 3_000
    cost, held = cost_of(from_inside_a_piece)
    assert 80_000 < held <= cost < 84_000


def test_an_answer_is_looked_up_by_the_bytes_of_the_request_that_renewed_it() -> None:
    kept = Kept(10 << 20)
    stream = kept.stream("s")
    kept.append(stream, b"body")
    first, other = request("s", "-1"), request("s", "-1", 3_900)
    kept.remember(first, *kept.read(stream, "-1", 1 << 20))
    before = kept.store.lent
    for sent in (other, first):
        kept.bench.clock.advance(1.0)
        answer = kept.answers.find(sent)
        assert answer is not None
        assert [(sent, answer)] == [(alias, found) for alias, (found, _) in kept.answers.exact.items()]
    assert kept.store.lent == before


@pytest.mark.parametrize("more", [b"Cookie: a=b\r\n", b"Cookie: a=b\r\n\r\n", b"\r\n", b"body"])
def test_a_head_with_further_bytes_is_not_found(more: bytes) -> None:
    kept = Kept(10 << 20)
    kept.append(stream := kept.stream("s"), b"body")
    kept.remember(request("s", "-1"), *kept.read(stream, "-1", 1 << 20))
    # The bytes after the head begin the next request, even if they look like a line without influence on the answer.
    for sent in (request("s", "-1", visit) for visit in (0, 0, 1, 1)):
        assert kept.answers.find(sent + more) is None
        assert kept.answers.find(sent) is not None


def test_an_answer_read_before_a_forget_is_not_remembered_after_it() -> None:
    kept = Kept(10 << 20)
    stream = kept.stream("s")
    kept.append(stream, b"old")
    old = kept.read(stream, "-1", 1 << 20)
    kept.store.forget_bytes(stream)
    kept.remember(request("s", "-1"), *old)
    assert kept.answers.find(request("s", "-1")) is None
    assert kept.store.lent == 0


def hit(kept: Kept, stream: Stream, *, names_tail: bool) -> RememberedAnswer:
    """An answer with all bytes of the stream, rendered now."""
    reading, run = kept.read(stream, "-1", 1 << 20)
    tail = NamedTail(reading.end, stream.version) if names_tail else None
    body = Repeatable(run, Outcome.HIT, 200, CIMultiDict(), reading.pieces, copied=reading.copied)
    answer = RememberedAnswer(body, 60, tail, Mode.CATCHUP, "route", None)
    kept.answers.remember(request("s", "-1"), answer, HeaderRules())
    clock = kept.bench.clock
    assert answer.render(clock.now(), clock.wall())
    return answer


def at_its_tail(kept: Kept) -> Stream:
    """A stream whose tail the origin has just named."""
    stream, now = kept.stream("s"), kept.bench.clock.now()
    kept.append(stream, b"ab")
    stream.saw_tail(Sighting(stream.tape.tail or "", now, now + 100, now + 100))
    return stream


def is_repeated(kept: Kept, answer: RememberedAnswer) -> bool:
    """Whether an equal request has the answer without a look at the stream's lifetime, trust and tail."""
    return kept.bench.clock.now() < answer.until and answer.is_unchanged()


@pytest.mark.parametrize("event", [Stream.lost_tail, Stream.followed])
@pytest.mark.parametrize("names_tail", [False, True])
def test_an_answer_that_names_the_tail_is_repeated_until_the_tail_may_have_moved(
    event: Callable[[Stream], None], names_tail: bool
) -> None:
    kept = Kept(1 << 20)
    stream = at_its_tail(kept)
    answer = hit(kept, stream, names_tail=names_tail)
    assert is_repeated(kept, answer)
    event(stream)
    assert is_repeated(kept, answer) is not names_tail


def test_an_answer_that_names_the_tail_is_repeated_until_a_write_is_acknowledged() -> None:
    kept = Kept(1 << 20)
    stream = at_its_tail(kept)
    answer = hit(kept, stream, names_tail=True)
    stream.acknowledged("00000009", is_closed=False, query="")
    assert not is_repeated(kept, answer)
    assert not kept.answers.is_current(answer, request("s", "-1"))


def test_an_answer_is_repeated_for_its_second_and_until_a_doubt() -> None:
    kept = Kept(1 << 20)
    answer = hit(kept, at_its_tail(kept), names_tail=False)
    kept.bench.clock.advance(0.99)
    assert is_repeated(kept, answer)
    kept.bench.clock.advance(0.01)
    assert not is_repeated(kept, answer)
    assert kept.answers.is_current(answer, request("s", "-1"))
    answer.stream.mark_stale(may_have_ended=False)
    assert not kept.answers.is_current(answer, request("s", "-1"))


@pytest.mark.parametrize("why", ["the tail", "its age", "trust", "the lifetime", "the bytes", "the end"])
def test_an_answer_is_rendered_again_only_while_memory_may_answer(why: str) -> None:
    kept = Kept(1 << 20)
    stream = at_its_tail(kept)
    answer, clock = hit(kept, stream, names_tail=True), kept.bench.clock
    match why:
        case "the tail":
            stream.lost_tail()
        case "its age":
            clock.advance(101)
            stream.contacted_at = clock.now()
            stream.confirm("-1", clock.now())
        case "trust":
            stream.contacted_at = clock.now() - 60
        case "the lifetime":
            stream.expiry.know(Lifetime(None, clock.wall()))
        case "the bytes":
            stream.caching = stream.caching._replace(fresh_s=0.0)
        case _:
            stream.ended = End.DELETED
    assert not answer.render(clock.now(), clock.wall())


@pytest.mark.parametrize("drop", ["the stream", "its bytes", "all answers"])
def test_an_answer_ends_with_its_stream_its_bytes_and_the_routes(drop: str) -> None:
    kept = Kept(1 << 20)
    answer = hit(kept, at_its_tail(kept), names_tail=False)
    sent = request("s", "-1")
    assert kept.answers.find(sent) is answer
    if drop == "the stream":
        kept.store.drop_stream(answer.stream, End.DELETED)
    elif drop == "its bytes":
        kept.store.forget_bytes(answer.stream)
    else:
        kept.answers.reset()
    assert kept.answers.find(sent) is None
    assert not kept.answers.exact


@pytest.mark.parametrize("drop", [TapeStore.forget_bytes, lambda store, stream: store.drop_stream(stream, End.DELETED)])
def test_an_answer_is_not_repeated_if_a_look_at_other_workers_writes_has_dropped_it(
    drop: Callable[[TapeStore, Stream], object],
) -> None:
    kept = Kept(1 << 20)
    kept.answers._look = lambda stream: drop(kept.store, stream)
    answer = hit(kept, at_its_tail(kept), names_tail=False)
    assert not kept.answers.is_current(answer, request("s", "-1"))
