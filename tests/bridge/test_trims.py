"""Trims and runs of commands, at an origin that removes at once and at one that takes its time."""

from __future__ import annotations

import pytest

from gateway.bridge.content import CLOSE_TOKEN
from gateway.bridge.reads import MOST_ANSWER_PAGES
from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf, session
from gateway.s2.records import AppendRecord, Fence, ReadBatch, Record, StreamPosition, Trim, command_record
from tests.bridge.clients import STREAM, Bridged, Reader
from tests.s2.edge.clients import BASIN

PROTOBUF = {"content-type": protobuf.CONTENT_TYPE}
PLAIN = f"{BASIN}/{STREAM}"


def at(seq_num: int) -> str:
    return f"{seq_num:020d}"


def lingering(*appended: AppendRecord | bytes) -> bytes:
    """Records that an origin still has, with the trim that has removed some of them."""
    records = [one if isinstance(one, AppendRecord) else AppendRecord(one) for one in appended]
    return protobuf.encode_read_batch(
        ReadBatch(
            tuple(Record(number, 1, one.headers, one.body) for number, one in enumerate(records)),
            StreamPosition(len(records), 1),
        )
    )


async def test_a_trim_counts_from_when_it_is_read(bridged: Bridged) -> None:
    """S2 removes what was trimmed after a while, and gives it to readers until then."""
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1", b"2")
    bridged.faults.replace(200, PROTOBUF, lingering(b"0", b"1", b"2", command_record(Trim(2))), kind=Call.READ)
    first = await bridged.reader.read()
    await bridged.writer.command(Trim(2))
    assert (first.json, first.end) == ([2], at(4))
    assert (await bridged.reader.read(at(0))).status == 410
    assert (await bridged.reader.read()).json == [2]


async def test_a_read_from_before_a_trim_that_it_meets_is_gone(bridged: Bridged, plain: Reader) -> None:
    await bridged.writer.create()
    for live in ("", "long-poll"):
        batch = lingering(b"0", b"1", b"2", command_record(Trim(2)))
        bridged.faults.replace(200, PROTOBUF, batch, kind=Call.READ)
        assert (await plain.read(at(0), PLAIN, live)).status == 410
    frame = session.encode_message(lingering(b"0", b"1", b"2", command_record(Trim(2))))
    bridged.faults.replace(200, {"content-type": session.CONTENT_TYPE}, frame, kind=Call.READ_SESSION)
    assert (await plain.read(at(0), PLAIN, "sse")).status == 410
    bridged.faults.replace(200, {"content-type": session.CONTENT_TYPE}, frame, kind=Call.READ_SESSION)
    events = await plain.events("-1", PLAIN)
    assert await events.messages(1) == [2]
    events.close()


@pytest.mark.parametrize(("trim", "left"), [(1, [1]), (2, []), (9, [])])
async def test_a_trim_of_a_closed_stream_is_met_by_a_read_of_its_tail(
    bridged: Bridged, trim: int, left: list[object]
) -> None:
    await bridged.writer.create()
    await bridged.writer.append(b"0", b"1")
    await bridged.writer.command(Fence(CLOSE_TOKEN))
    assert (await bridged.reader.read()).json == [0, 1]
    await bridged.writer.command(Trim(trim))
    bridged.clock.advance(120)
    head = await bridged.reader.send("HEAD")
    assert (head.end, head.is_closed) == (at(2), True)
    assert (await bridged.reader.read(at(0))).status == 410
    read = await bridged.reader.read()
    assert (read.json, read.end, read.is_closed) == (left, at(2), True)
    assert (await bridged.reader.read(at(2))).is_closed


@pytest.fixture
async def commands(bridged: Bridged) -> int:
    """A stream of a record, more commands than a few pages hold, and a record."""
    await bridged.writer.create()
    await bridged.writer.append(b"0")
    count = 20
    for _ in range(count):
        await bridged.writer.commands(*[Fence("")] * 1000)
    await bridged.writer.append(b"1")
    return 1000 * count + 2


async def test_a_run_of_commands_takes_several_answers(bridged: Bridged, commands: int) -> None:
    before = bridged.counters.requests[Call.READ]
    first = await bridged.reader.read()
    assert bridged.counters.requests[Call.READ] - before == MOST_ANSWER_PAGES
    assert not first.is_up_to_date
    assert await bridged.reader.all() == [0, 1]
    assert (await bridged.reader.send("HEAD")).end == at(commands)


@pytest.mark.usefixtures("commands")
async def test_a_long_poll_in_a_run_of_commands_is_not_up_to_date(bridged: Bridged, plain: Reader) -> None:
    first = await plain.read(at(1), PLAIN, "long-poll")
    assert (first.status, first.json, first.is_up_to_date) == (200, [], False)
    assert (await plain.read(first.end, PLAIN, "long-poll")).json == [1]


async def test_many_small_records_take_several_answers(bridged: Bridged) -> None:
    await bridged.writer.create()
    for _ in range(20):
        await bridged.writer.append(*[b"1"] * 1000)
    before = bridged.counters.requests[Call.READ]
    first = await bridged.reader.read()
    # Each page but the first begins with the last record of the preceding page.
    assert (len(first.json), first.is_up_to_date) == (999 * MOST_ANSWER_PAGES + 1, False)
    assert bridged.counters.requests[Call.READ] - before == MOST_ANSWER_PAGES
    assert len(await bridged.reader.all()) == 20_000
