"""The channel between the supervisor and a worker, over real pairs of sockets."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from gateway.workers import control
from gateway.workers.control import ChannelEnd, Control, Message, SupervisorGone
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
    here, there = map(ChannelEnd, pair)
    names = [f"route.{number}" for number in range(50_000)]
    sending = threading.Thread(target=here.send, args=({"names": names},))
    sending.start()
    messages: list[Message] = []
    while not messages:
        found = heard(there)
        assert found is not None
        messages += found
    sending.join()
    assert messages == [{"names": names}]


def test_a_message_of_which_only_a_part_is_sent_ends_the_channel(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_REST_MS", 1)
    here, there = map(ChannelEnd, pair)
    assert not here.send({"names": "x" * 4_000_000})
    while (found := heard(there)) == []:
        pass
    assert found is None


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
