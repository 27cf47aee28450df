"""Everything that may happen to a stream, in any order, on the whole system."""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.invariant.world import PollReader, SseReader, World, going_on, ignoring_result

HUNT = int(os.environ.get("INVARIANT_EXAMPLES", "0"))
"""Examples for each machine in a run by hand, other ones each time; without it always the same, few ones."""
PICK = st.integers(0, 1 << 16)
"""Which of however many there are: what Hypothesis draws must not depend on how the network was timed."""
CREDENTIALS = st.sampled_from([None, None, "Bearer a"])
READ_KINDS = st.sampled_from(["catchup", "longpoll", "sse", "head", None])
WRITE_KINDS = st.sampled_from(["create", "append", "delete"])
SPINS = st.sampled_from([1, 5, 20])


class SystemAgainstLog(RuleBasedStateMachine):
    """One stream, any number of lives; `content_type` and who may delete are fixed by subclasses.

    Rules are few and wide, because each is drawn as often as any other: what fills a stream and who reads it live has
    to happen in nearly every run.
    """

    content_type = "application/octet-stream"
    is_out_of_band = False

    def __init__(self) -> None:
        super().__init__()
        self.begun: World | None = None

    @property
    def world(self) -> World:
        assert self.begun is not None
        return self.begun

    @initialize(
        cache_bytes=st.sampled_from([1 << 20, 1 << 20, 2_600, 1_500, 0]),
        max_chunk_bytes=st.sampled_from([1 << 20, 40]),
        trust_s=st.sampled_from([60.0, 0.0, 1.0]),
        tail=st.sampled_from(["followed", "asked"]),
        messages=st.integers(0, 8),
        is_nameless=st.booleans(),
        live=st.lists(st.tuples(PICK, st.booleans(), CREDENTIALS), max_size=3),
    )
    def begin(
        self,
        cache_bytes: int,
        max_chunk_bytes: int,
        trust_s: float,
        tail: str,
        messages: int,
        is_nameless: bool,
        live: list[tuple[int, bool, str | None]],
    ) -> None:
        # Nothing but its name tells a stream that was re-created behind the gateway's back from one that has grown.
        is_nameless = is_nameless and not self.is_out_of_band
        self.begun = World(self.content_type, cache_bytes, max_chunk_bytes, trust_s, tail, is_nameless)
        self.world.run(self.world.create(messages=messages))
        for pick, is_sse, credentials in live:
            self.follow(pick, is_sse, credentials)

    def do(self, work: Coroutine[Any, Any, Any], *, is_awaited: bool = True) -> None:
        """Do it to the end, or as far as it gets when something is held."""
        task = self.world.spawn(ignoring_result(work))
        self.world.run(_awaiting(task) if is_awaited and not self.world.holds else going_on())

    # -- writers

    def append(self, sizes: list[int], is_direct: bool, is_closing: bool, is_awaited: bool) -> None:
        for number, messages in enumerate(sizes):
            is_last = is_closing and number == len(sizes) - 1
            work = self.world.append(messages, is_direct=is_direct, is_closing=is_last)
            self.do(work, is_awaited=is_awaited or not is_direct)

    @rule(sizes=st.lists(st.integers(1, 8), min_size=1, max_size=3), is_direct=st.booleans(), is_awaited=st.booleans())
    def append_some(self, sizes: list[int], is_direct: bool, is_awaited: bool) -> None:
        self.append(sizes, is_direct, False, is_awaited)

    @rule(sizes=st.lists(st.integers(0, 4), min_size=1, max_size=2), is_direct=st.booleans(), ends=st.integers(0, 3))
    def append_and_perhaps_close(self, sizes: list[int], is_direct: bool, ends: int) -> None:
        self.append([*filter(None, sizes[:-1]), sizes[-1] or int(ends != 3)], is_direct, ends == 3, True)

    @rule(
        what=st.sampled_from(["delete", "create", "both", "both", "both", "both with a read between"]),
        is_direct=st.booleans(),
        messages=st.integers(0, 8),
        is_closed=st.sampled_from([False, False, False, True]),
    )
    def end_or_begin(self, what: str, is_direct: bool, messages: int, is_closed: bool) -> None:
        if what != "create":
            self.do(self.world.delete(is_direct=is_direct and self.is_out_of_band))
        if what == "both with a read between":
            self.do(self.world.catch_up(None))
        if what != "delete":
            self.do(self.world.create(is_direct=is_direct, messages=messages, is_closed=is_closed))

    # -- readers

    def read(self, place: str, pick: int, is_conditional: bool, is_awaited: bool, credentials: str | None) -> None:
        world, alive = self.world, self.world.log.alive
        offset: str | None = None
        match place:
            case "to the end":
                self.do(_walking(world), is_awaited=is_awaited)
                return
            case "together":
                for _ in range(3):
                    self.do(world.catch_up("-1"), is_awaited=False)
                return
            case "tail" if alive is not None:
                offset = alive.tail.token
            case "known":
                offset = picked(world.tokens, pick)
        reading = world.catch_up(offset, is_conditional=is_conditional, credentials=credentials)
        self.do(reading, is_awaited=is_awaited)

    @rule(
        place=st.sampled_from(["start", "tail", "known", "known", "to the end", "together"]),
        pick=PICK,
        is_conditional=st.booleans(),
        is_awaited=st.sampled_from([True, True, False]),
        credentials=CREDENTIALS,
    )
    def catch_up(self, place: str, pick: int, is_conditional: bool, is_awaited: bool, credentials: str | None) -> None:
        self.read(place, pick, is_conditional, is_awaited, credentials)

    @rule(is_head=st.booleans(), is_awaited=st.booleans())
    def ask_for_the_tail(self, is_head: bool, is_awaited: bool) -> None:
        self.do(self.world.head() if is_head else self.world.now(), is_awaited=is_awaited)

    @rule(pick=PICK, is_sse=st.booleans(), credentials=CREDENTIALS)
    def follow(self, pick: int, is_sse: bool, credentials: str | None) -> None:
        alive = self.world.log.alive
        if alive is None or len(self.world.readers) > 8:
            return
        known = [token for token in self.world.tokens if alive.place(token) is not None]
        offset = picked([*known, alive.tail.token], pick)
        (SseReader if is_sse else PollReader)(self.world, offset, credentials)
        self.world.run(going_on())

    @rule(pick=PICK, spins=st.integers(1, 12), is_live=st.booleans())
    def disconnect(self, pick: int, spins: int, is_live: bool) -> None:
        staying = [one for one in self.world.readers if not one.has_left]
        if is_live and staying:
            staying[pick % len(staying)].leave()
        else:
            task = self.world.spawn(ignoring_result(self.world.catch_up(picked(self.world.tokens, pick))))
            self.world.run(going_on(spins))
            task.cancel()

    # -- bad luck

    @rule(
        how=st.sampled_from(["status", "truncate", "chunked", "drop", "refuse", "lose a write"]),
        kind=READ_KINDS,
        write=WRITE_KINDS,
        status=st.sampled_from([500, 502, 503]),
        number=st.integers(0, 60),
    )
    def fail(self, how: str, kind: str | None, write: str, status: int, number: int) -> None:
        self.world.cause_trouble()
        faults = self.world.origin.faults
        match how:
            case "status":
                faults.status(status, kind=kind, times=1 + number % 3)
            case "drop":
                faults.drop(number, kind=kind)
            case "refuse":
                faults.refuse(kind=kind)
            case "lose a write":
                faults.refuse(kind=write)
            case _:
                faults.truncate(number, is_chunked=how == "chunked", kind=kind)

    @rule(
        kind=st.sampled_from(["catchup", "catchup", "head", "append", "delete", "create", "longpoll", "sse"]),
        when=st.sampled_from(["request", "reply", "stall"]),
        after=st.integers(0, 60),
    )
    def hold(self, kind: str, when: str, after: int) -> None:
        if len(self.world.holds) >= 3:
            return
        faults = self.world.origin.faults
        is_stall = when == "stall" and kind in ("catchup", "longpoll", "sse")
        self.world.holds.append(
            faults.stall(after, kind=kind)
            if is_stall
            else faults.hold(kind=kind, when="request" if when == "stall" else when, times=1)
        )

    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        if self.world.holds:
            self.world.release(pick)
            self.world.run(going_on())

    @rule()
    def restart_the_origin(self) -> None:
        self.world.run(self.world.restart_origin())

    # -- time

    @rule(how=st.sampled_from(["go on", "go on", "rest", "settle"]), spins=SPINS)
    def let_time_go_by(self, how: str, spins: int) -> None:
        match how:
            case "rest":
                self.world.run(self.world.rest())
            case "settle":
                self.world.run(self.world.settle())
            case _:
                self.world.run(going_on(spins))

    def teardown(self) -> None:
        if self.begun is not None:
            self.begun.end()


async def _awaiting(task: "asyncio.Task[None]") -> None:
    await asyncio.wait({task})


def picked(tokens: Sequence[str], pick: int) -> str:
    known = sorted(set(tokens))
    return known[pick % len(known)]


async def _walking(world: World) -> None:
    """From the start to the tail, as a client does that keeps nothing."""
    offset: str | None = None
    while True:
        answer = await world.catch_up(offset)
        if answer.status != 200 or answer.is_up_to_date:
            return
        offset = answer.end


class Json(SystemAgainstLog):
    content_type = "application/json"


class Text(SystemAgainstLog):
    content_type = "text/plain"


class Binary(SystemAgainstLog):
    content_type = "application/octet-stream"
