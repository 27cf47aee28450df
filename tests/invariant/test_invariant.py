"""The invariant, on the whole system: what a client has received from an offset is what the origin holds from there.

Nothing lost, repeated or reordered; no false up-to-date or closed; no offset ahead of the bytes; and when all is quiet
again, nothing left behind.  `World` judges every answer as it comes; the machine makes life hard.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.invariant.world import PollReader, SseReader, World, going_on, ignoring_result

EXAMPLES = int(os.environ.get("INVARIANT_EXAMPLES", "60"))
PICK = st.integers(0, 1 << 16)
"""Which of however many there are: what Hypothesis draws must not depend on how the network was timed."""
CREDENTIALS = st.sampled_from([None, None, "Bearer a"])
READ_KINDS = st.sampled_from(["catchup", "longpoll", "sse", "head", None])


class SystemAgainstLog(RuleBasedStateMachine):
    """One stream, any number of lives; `content_type` and who may delete are fixed by subclasses."""

    content_type = "application/octet-stream"
    is_out_of_band = False

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @initialize(
        cache_bytes=st.sampled_from([1 << 20, 2_600, 1_500, 0]),
        max_chunk_bytes=st.sampled_from([1 << 20, 40]),
        trust_s=st.sampled_from([60.0, 0.0, 1.0]),
        messages=st.integers(0, 3),
        is_nameless=st.booleans(),
    )
    def begin(self, cache_bytes: int, max_chunk_bytes: int, trust_s: float, messages: int, is_nameless: bool) -> None:
        # Nothing but its name tells a stream that was re-created behind the gateway's back from one that has grown.
        is_nameless = is_nameless and not self.is_out_of_band
        self.world = World(self.content_type, cache_bytes, max_chunk_bytes, trust_s, is_nameless)
        self.world.run(self.world.create(messages=messages))

    def do(self, work: Any, *, is_awaited: bool = True) -> None:
        """Do it to the end, or as far as it gets when something is held."""
        assert self.world is not None
        task = self.world.spawn(ignoring_result(work))
        self.world.run(_awaiting(task) if is_awaited and not self.world.holds else going_on())

    # -- writers

    @rule(messages=st.integers(1, 8), is_direct=st.booleans(), is_closing=st.sampled_from([False, False, False, True]))
    def append(self, messages: int, is_direct: bool, is_closing: bool) -> None:
        assert self.world is not None
        self.do(self.world.append(messages, is_direct=is_direct, is_closing=is_closing))

    @rule(is_direct=st.booleans())
    def close(self, is_direct: bool) -> None:
        assert self.world is not None
        self.do(self.world.append(0, is_direct=is_direct, is_closing=True))

    @rule(is_direct=st.booleans())
    def delete(self, is_direct: bool) -> None:
        assert self.world is not None
        self.do(self.world.delete(is_direct=is_direct and self.is_out_of_band))

    @rule(is_direct=st.booleans(), messages=st.integers(0, 8), is_closed=st.booleans())
    def create(self, is_direct: bool, messages: int, is_closed: bool) -> None:
        assert self.world is not None
        self.do(self.world.create(is_direct=is_direct, messages=messages, is_closed=is_closed and messages > 4))

    @rule(is_direct=st.booleans(), messages=st.integers(0, 8), gap=st.booleans())
    def delete_and_create(self, is_direct: bool, messages: int, gap: bool) -> None:
        self.delete(is_direct)
        if gap:
            self.read_from_the_start(False)
        self.create(is_direct, messages, False)

    # -- readers

    @rule(is_conditional=st.booleans())
    def read_from_the_start(self, is_conditional: bool) -> None:
        assert self.world is not None
        self.do(self.world.catch_up(None, is_conditional=is_conditional))

    @rule(pick=PICK, is_conditional=st.booleans(), is_awaited=st.booleans(), credentials=CREDENTIALS)
    def read(self, pick: int, is_conditional: bool, is_awaited: bool, credentials: str | None) -> None:
        assert self.world is not None
        offset = picked(self.world.tokens, pick)
        reading = self.world.catch_up(offset, is_conditional=is_conditional, credentials=credentials)
        self.do(reading, is_awaited=is_awaited)

    @rule(is_conditional=st.booleans())
    def read_at_the_tail(self, is_conditional: bool) -> None:
        assert self.world is not None
        alive = self.world.log.alive
        if alive is not None:
            self.do(self.world.catch_up(alive.tail.token, is_conditional=is_conditional))

    @rule()
    def read_to_the_end(self) -> None:
        assert self.world is not None
        self.do(_walking(self.world))

    @rule(count=st.integers(2, 4))
    def read_together(self, count: int) -> None:
        assert self.world is not None
        for _ in range(count):
            self.world.spawn(ignoring_result(self.world.catch_up("-1")))
        self.world.run(going_on())

    @rule()
    def read_now(self) -> None:
        assert self.world is not None
        self.do(self.world.now())

    @rule()
    def head(self) -> None:
        assert self.world is not None
        self.do(self.world.head())

    @rule(pick=PICK, is_sse=st.booleans(), credentials=CREDENTIALS)
    def follow(self, pick: int, is_sse: bool, credentials: str | None) -> None:
        assert self.world is not None
        alive = self.world.log.alive
        if alive is None or len(self.world.readers) > 8:
            return
        known = [token for token in self.world.tokens if alive.place(token) is not None]
        offset = picked([*known, alive.tail.token], pick)
        (SseReader if is_sse else PollReader)(self.world, offset, credentials)
        self.world.run(going_on())

    @rule(pick=PICK)
    def disconnect(self, pick: int) -> None:
        assert self.world is not None
        if staying := [one for one in self.world.readers if not one.has_left]:
            staying[pick % len(staying)].leave()
            self.world.run(going_on())

    @rule(pick=PICK, spins=st.integers(1, 12))
    def read_and_disconnect(self, pick: int, spins: int) -> None:
        assert self.world is not None
        task = self.world.spawn(ignoring_result(self.world.catch_up(picked(self.world.tokens, pick))))
        self.world.run(going_on(spins))
        task.cancel()

    # -- bad luck

    @rule(status=st.sampled_from([500, 502, 503]), kind=READ_KINDS, times=st.integers(1, 3))
    def fail(self, status: int, kind: str | None, times: int) -> None:
        assert self.world is not None
        self.world.cause_trouble()
        self.world.origin.faults.status(status, kind=kind, times=times)

    @rule(after=st.integers(0, 60), kind=READ_KINDS, how=st.sampled_from(["truncate", "chunked", "drop", "refuse"]))
    def break_off(self, after: int, kind: str | None, how: str) -> None:
        assert self.world is not None
        self.world.cause_trouble()
        faults = self.world.origin.faults
        if how == "drop":
            faults.drop(after, kind=kind)
        elif how == "refuse":
            faults.refuse(kind=kind)
        else:
            faults.truncate(after, is_chunked=how == "chunked", kind=kind)

    @rule(kind=st.sampled_from(["create", "append", "delete"]))
    def lose_a_writes_answer(self, kind: str) -> None:
        assert self.world is not None
        self.world.cause_trouble()
        self.world.origin.faults.refuse(kind=kind)

    @rule(
        kind=st.sampled_from(["catchup", "catchup", "head", "append", "delete", "create", "longpoll", "sse"]),
        when=st.sampled_from(["request", "reply"]),
    )
    def hold(self, kind: str, when: str) -> None:
        assert self.world is not None
        if len(self.world.holds) < 3:
            self.world.holds.append(self.world.origin.faults.hold(kind=kind, when=when, times=1))

    @rule(after=st.integers(0, 60), kind=st.sampled_from(["catchup", "longpoll", "sse"]))
    def stall(self, after: int, kind: str) -> None:
        assert self.world is not None
        if len(self.world.holds) < 3:
            self.world.holds.append(self.world.origin.faults.stall(after, kind=kind))

    @rule(pick=PICK)
    def release(self, pick: int) -> None:
        assert self.world is not None
        if holds := self.world.holds:
            holds.pop(pick % len(holds)).release()
            self.world.run(going_on())

    @rule()
    def restart_the_origin(self) -> None:
        assert self.world is not None
        self.world.run(self.world.restart_origin())

    # -- time

    @rule(spins=st.sampled_from([1, 5, 20]))
    def go_on(self, spins: int) -> None:
        assert self.world is not None
        self.world.run(going_on(spins))

    @rule()
    def rest(self) -> None:
        assert self.world is not None
        self.world.run(self.world.rest())

    @rule()
    def settle(self) -> None:
        assert self.world is not None
        self.world.run(self.world.settle())

    def teardown(self) -> None:
        if self.world is not None:
            self.world.end()


def picked(tokens: Sequence[str], pick: int) -> str:
    known = sorted(set(tokens))
    return known[pick % len(known)]


async def _awaiting(task: "asyncio.Task[None]") -> None:
    await asyncio.wait({task})


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


class JsonBehindTheGatewaysBack(Json):
    is_out_of_band = True


class BinaryBehindTheGatewaysBack(Binary):
    is_out_of_band = True


@pytest.mark.parametrize("machine", [Json, Text, Binary, JsonBehindTheGatewaysBack, BinaryBehindTheGatewaysBack])
def test_every_client_has_exactly_the_streams_bytes(machine: type[SystemAgainstLog]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            deadline=None,
        ),
    )
