"""How much of large replies one turn of the loop reads, on connections whose transports are in memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from gateway.upstream.connection import ConnectionOwner, OriginConnection
from gateway.upstream.incoming import HIGH_WATER_BYTES, MOST_READ_BYTES, IncomingReply, Intake
from gateway.upstream.kept_connections import KeepAlive
from gateway.upstream.origin_call import endpoint_of
from tests.waiting import pass_turns

HOST = endpoint_of("http://a.test")


class Socket(asyncio.Transport):
    """A transport whose origin has always more to send."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        pass

    def abort(self) -> None:
        pass


class Reading:
    """Connections that receive large bodies at the same time; each turn, each of them that reads gets `size` bytes."""

    def __init__(self, count: int) -> None:
        self.intake = Intake()
        nothing = SimpleNamespace(keep_alive=KeepAlive(), intake=self.intake, freed=self._ignore, lost=self._ignore)
        self.sockets = [Socket() for _ in range(count)]
        self.connections = [
            OriginConnection(asyncio.get_running_loop(), cast(ConnectionOwner, nothing), HOST) for _ in range(count)
        ]
        self.replies: list[IncomingReply] = []
        for connection, socket in zip(self.connections, self.sockets, strict=True):
            connection.connection_made(socket)
            self.replies.append(connection.ask(b"GET / HTTP/1.1\r\n\r\n", None, 1e9, is_head=False))
            connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")

    @staticmethod
    def _ignore(connection: OriginConnection) -> None:
        pass

    def receive(self, size: int = MOST_READ_BYTES) -> list[int]:
        """Let each connection that reads get a part of its body, and its reader take the part; return their numbers."""
        got = [number for number, socket in enumerate(self.sockets) if socket.reads]
        for number in got:
            self.connections[number].data_received(b"x" * size)
        for number in got:
            assert self.replies[number].take() == b"x" * size
        return got

    def end(self) -> None:
        for connection in self.connections:
            connection.drop()


async def test_of_many_large_bodies_one_part_is_read_in_a_turn_and_each_body_in_turn() -> None:
    reading = Reading(4)
    assert reading.receive() == [0, 1, 2, 3]
    assert reading.receive() == [], "a connection never reads on in the turn in which its data was taken"
    turns = []
    for _ in range(8):
        await pass_turns(1)
        turns.append(reading.receive())
    assert turns == [[0], [1], [2], [3]] * 2
    reading.end()


async def test_a_body_that_arrives_in_small_parts_never_stops() -> None:
    reading = Reading(4)
    for _ in range(8):
        assert reading.receive(HIGH_WATER_BYTES - 1) == [0, 1, 2, 3]
    assert repr(reading.intake) == "<Intake 0 waiting>"
    reading.end()


async def test_a_connection_that_ends_while_it_waits_does_not_stop_the_others() -> None:
    reading = Reading(3)
    reading.receive()
    reading.connections[0].drop()
    reading.connections[1].connection_lost(None)
    await pass_turns(3)
    assert [socket.reads for socket in reading.sockets] == [False, False, True]
    assert repr(reading.intake) == "<Intake 0 waiting>"
    reading.end()


async def test_what_is_not_taken_is_not_read_on() -> None:
    reading = Reading(1)
    reading.connections[0].data_received(b"x" * HIGH_WATER_BYTES)
    await pass_turns(3)
    assert not reading.sockets[0].reads
    reading.end()
