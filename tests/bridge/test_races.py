"""What happens at the origin between two requests of one answer."""

from __future__ import annotations

import asyncio

from gateway.origin.s2.calls import Call
from gateway.s2.records import Trim
from tests.bridge.clients import STREAM, Bridged
from tests.s2.edge.clients import BASIN

JSON = "application/json"
PLAIN = f"{BASIN}/{STREAM}"


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


async def test_a_record_that_comes_while_the_tail_of_a_trimmed_stream_is_asked_for_is_read(bridged: Bridged) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    await bridged.writer.command(Trim(3))
    first = bridged.faults.hold(kind=Call.READ, times=1)
    read = asyncio.ensure_future(bridged.reader.read())
    await first.waiting(1)
    second = bridged.faults.hold(kind=Call.READ, times=1)
    first.release()
    await second.waiting(1)
    await bridged.writer.append(b"3")
    second.release()
    answer = await read
    assert (answer.json, answer.end) == ([3], at(4))
