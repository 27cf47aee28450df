"""The channel between the supervisor and a worker, over real pairs of sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import selectors
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from gateway.cli.supervisor.forking import Workers
from gateway.cli.supervisor.slots import Slot
from gateway.workers.control import MOST_WAITING, ChannelEnd, Control, Message, SupervisorGone
from gateway.workers.shared_memory import SharedMemory
from tests.waiting import eventually, pass_turns

BOUND_S = 30.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def heard(end: ChannelEnd) -> list[Message] | None:
    assert select.select([end.sock], [], [], BOUND_S)[0], "nothing more arrives"
    return end.receive()


def test_a_message_brings_an_open_file(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = map(ChannelEnd, pair)
    file = os.memfd_create("test")
    os.write(file, b"content")
    assert here.send({"kind": "first"})
    assert here.send({"kind": "second"}, file)
    os.close(file)
    messages: list[Message] = []
    while len(messages) < 2:
        messages += heard(there) or []
    assert [one["kind"] for one in messages] == ["first", "second"]
    assert os.pread(messages[1]["descriptor"], 100, 0) == b"content"
    os.close(messages[1]["descriptor"])


def test_a_message_longer_than_the_queue_arrives_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    waits: list[bool] = []
    here, there = ChannelEnd(pair[0], waits.append), ChannelEnd(pair[1])
    names = [f"route.{number}" for number in range(50_000)]
    assert here.send({"names": names})
    assert here.send({"names": []})
    assert waits == [True]
    messages: list[Message] = []
    while len(messages) < 2:
        found = heard(there)
        assert found is not None
        messages += found
        here.flush()
    assert messages == [{"names": names}, {"names": []}]
    assert waits == [True, False]


def test_messages_wait_in_their_order_until_the_other_end_reads(pair: tuple[socket.socket, socket.socket]) -> None:
    here, there = map(ChannelEnd, pair)
    sent = 0
    while here.send({"kind": "configuration refused"}):
        sent += 1
    file = os.memfd_create("test")
    os.write(file, b"content")
    kinds = ["accept", "configuration", "all empty", "answer", "end"]
    for kind in kinds:
        assert here.send({"kind": kind}, file if kind == "configuration" else None)
    os.close(file)
    assert sum(here.send({"kind": "answer"}) for _ in range(2 * MOST_WAITING)) == MOST_WAITING - 1
    messages: list[Message] = []
    while len(messages) < sent + len(kinds) + MOST_WAITING - 1:
        here.flush()
        messages += heard(there) or []
    found = [one["kind"] for one in messages]
    assert found == ["configuration refused"] * sent + kinds + ["answer"] * (MOST_WAITING - 1)
    (descriptor,) = [one["descriptor"] for one in messages if "descriptor" in one]
    assert os.pread(descriptor, 100, 0) == b"content"
    os.close(descriptor)


def test_messages_that_wait_for_an_end_that_is_gone_are_lost(pair: tuple[socket.socket, socket.socket]) -> None:
    waits: list[bool] = []
    here = ChannelEnd(pair[0], waits.append)
    assert here.send({"names": "x" * 4_000_000})
    pair[1].close()
    here.flush()
    assert waits == [True, False]
    assert not here.send({"kind": "end"})
    assert waits == [True, False]


@pytest.mark.parametrize("good_sends", [0, 1])
def test_a_message_that_is_sent_in_part_ends_the_channel(
    pair: tuple[socket.socket, socket.socket], good_sends: int
) -> None:
    """A message that is lost as a whole is missing, and the next one can still be read."""
    sends = 0

    class Failing(socket.socket):
        def send(self, data: Any, flags: int = 0, /) -> int:
            nonlocal sends
            sends += 1
            if sends == good_sends + 1:
                raise OSError(errno.ENOBUFS, "No buffer space available")
            return super().send(data[:1_000], flags)

    there = ChannelEnd(pair[1])
    with Failing(fileno=pair[0].detach()) as failing:
        here = ChannelEnd(failing)
        assert not here.send({"kind": "answer", "text": "x" * 2_000})
        assert here.send({"kind": "end"}) is (good_sends == 0)
        found = heard(there)
        if good_sends == 0:
            assert found == [{"kind": "end"}]
        else:
            assert found == []
            assert heard(there) is None, "the other end notices the end of the channel"


def test_a_worker_that_was_stopped_gets_the_order_to_end(pair: tuple[socket.socket, socket.socket]) -> None:
    """Its channel is full of messages that it has not read."""
    slot, heard_by_supervisor = Slot(0, pid=1), list[Message]()
    with selectors.DefaultSelector() as selector:
        workers = Workers(
            1,
            SharedMemory.create(1),
            selector,
            lambda: 0.0,
            lambda _slot, message: heard_by_supervisor.append(message),
            lambda _slot, _how: None,
        )
        slot.channel = ChannelEnd(pair[0], partial(workers._watch, slot, pair[0]))
        selector.register(pair[0], selectors.EVENT_READ, partial(workers._attend, slot))
        while workers.tell(slot, "configuration refused"):
            pass
        assert workers.tell(slot, "end", inherited=[])
        assert not selector.select(0.0), "the supervisor does not spin"
        worker, kinds = ChannelEnd(pair[1]), list[str]()
        worker.send({"kind": "empty"})
        while "end" not in kinds:
            kinds += [message["kind"] for message in heard(worker) or []]
            for key, _ in selector.select(0.0):
                key.data()
        assert not selector.select(0.0)
        assert heard_by_supervisor == [{"kind": "empty"}]
        workers._close_channel(slot)


async def test_a_request_waits_for_a_supervisor_that_reads_nothing(pair: tuple[socket.socket, socket.socket]) -> None:
    supervisor, worker = ChannelEnd(pair[0]), Control(pair[1])
    worker.start(lambda: None)
    assert worker.tell("configured", names="x" * 4_000_000)
    asking = asyncio.create_task(worker.ask("reload"))
    await pass_turns()
    messages: list[Message] = []

    def is_read() -> bool:
        messages.extend(supervisor.receive() or [])
        return len(messages) == 2

    await eventually(is_read)
    supervisor.send({"kind": "answer", "request": messages[1]["request"]})
    await asyncio.wait_for(asking, BOUND_S)
    worker.close()


async def test_each_request_gets_its_own_answer(pair: tuple[socket.socket, socket.socket]) -> None:
    supervisor, worker = ChannelEnd(pair[0]), Control(pair[1])
    ends: list[bool] = []
    worker.start(lambda: ends.append(True))
    asking = [asyncio.create_task(worker.ask("reload")) for _ in range(3)]
    await pass_turns()
    requests = [message["request"] for message in supervisor.receive() or []]
    for request in reversed(requests[:2]):
        supervisor.send({"kind": "answer", "request": request, "text": f"answer {request}"})
    assert [(await one)["text"] for one in asking[:2]] == [f"answer {request}" for request in requests[:2]]
    assert not asking[2].done()
    supervisor.close()
    with pytest.raises(SupervisorGone):
        await asking[2]
    with pytest.raises(SupervisorGone):
        await worker.ask("reload")
    await eventually(lambda: ends == [True])
