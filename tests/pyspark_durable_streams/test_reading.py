"""What a task makes of stretches, before an origin that does what a test tells it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from random import Random
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_durable_streams import framing, reading, walk
from pyspark_durable_streams.client import ClientConfig, OpenReply
from pyspark_durable_streams.errors import DataLost, Unreachable
from pyspark_durable_streams.framing import Unit
from pyspark_durable_streams.places import Place, Stretch
from pyspark_durable_streams.plan import Share
from pyspark_durable_streams.reading import Run, Task, fragments
from pyspark_durable_streams.spool import Extent


class Replies:
    """One reply for each offset: its body, and where it ends."""

    def __init__(self, replies: Mapping[str, tuple[bytes, str]], tail: str) -> None:
        self.replies = replies
        self.tail = tail

    def close(self) -> None:
        pass

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        body, end = self.replies[path.partition("offset=")[2]]
        told = {"Content-Type": "application/json", "Stream-Next-Offset": end}
        if end == self.tail:
            told["Stream-Up-To-Date"] = "true"
        yield OpenReply(200, told, iter([body]))


def stretch(lines: bytes, *, behind: str | None = None) -> Stretch:
    return Stretch(Place(), lines.count(b"\n"), len(lines), zlib.crc32(lines), behind)


def read(
    replies: Replies, planned: Stretch, monkeypatch: pytest.MonkeyPatch, *, fails_on_loss: bool = True
) -> Iterator[bytes]:
    monkeypatch.setattr(reading, "Client", lambda config: replies)
    task = Task([Run(Share("s", Unit.ELEMENT, planned), None)])
    found = fragments(
        task, ClientConfig("http://nowhere"), as_chunks=False, fails_on_loss=fails_on_loss, warn=lambda text: None
    )
    return (fragment.piece.data for fragment in found)


@pytest.mark.parametrize("body", [b'[{"a":1},{"a":2}]', b"[1,2]"], ids=["objects", "numbers"])
def test_where_nothing_follows_an_end_may_have_got_another_name(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies({"-1": (body, "0_2"), "0_2": (b"[]", "1_0")}, tail="1_0")
    lines = body[1:-1].replace(b',{"', b'\n{"').replace(b"1,2", b"1\n2") + b"\n"
    assert b"".join(read(replies, stretch(lines, behind="0_2"), monkeypatch)) == lines


def test_an_end_that_more_is_behind_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = Replies({"-1": (b"[1,2]", "2"), "1": (b"[2]", "2"), "2": (b"[]", "2")}, tail="2")
    with pytest.raises(DataLost, match=r"does not end at 1, as the gateway said"):
        list(read(replies, stretch(b"1\n2\n", behind="1"), monkeypatch))
    assert b"".join(read(replies, stretch(b"1\n2\n", behind="2"), monkeypatch)) == b"1\n2\n"


def test_nothing_of_a_short_stretch_is_handed_out_before_it_is_seen_to_be_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies = Replies({"-1": (b"[1,3]", "2")}, tail="2")
    found = read(replies, stretch(b"1\n2\n"), monkeypatch)
    with pytest.raises(DataLost, match="differs from what it was"):
        next(found)
    # Where loss is no error, what is there is taken.
    assert list(read(replies, stretch(b"1\n2\n"), monkeypatch, fails_on_loss=False)) == [b"1\n3\n"]


class Scattered:
    """A stream that answers each request with a reply of some length or other, some of which break off."""

    def __init__(self, random: Random, unit: Unit, messages: Sequence[bytes], raw: bytes) -> None:
        self.random = random
        self.unit = unit
        self.messages = messages
        self.raw = raw
        self.open_replies = 0
        self.was_broken = False
        self.breaks = random.choice([0.0, 0.2])
        self.longest = random.choice([1, 3, 20, 200])
        self.comma = random.choice([b",", b",", b" , ", b",\n"])

    def close(self) -> None:
        pass

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        token = path.partition("offset=")[2]
        begin = 0 if token == "-1" else int(token)
        most = len(self.messages) if self.unit is Unit.ELEMENT else len(self.raw)
        end = min(begin + self.random.randint(1, self.longest), most)
        body, kind = self.raw[begin:end], "text/plain" if self.unit is Unit.LINE else "application/octet-stream"
        if self.unit is Unit.ELEMENT:
            body, kind = b"[" + self.comma.join(self.messages[begin:end]) + b"]", "application/json"
        told = {"Content-Type": kind, "Stream-Next-Offset": f"{end:06}"}
        if end == most:
            told["Stream-Up-To-Date"] = "true"
        self.open_replies += 1
        try:
            yield OpenReply(200, told, self.chunks(body))
        finally:
            self.open_replies -= 1

    def chunks(self, body: bytes) -> Iterator[bytes]:
        # Each second one at most: where nothing comes again and again it is an error.
        self.was_broken = not self.was_broken and self.random.random() < self.breaks
        breaks_at = self.random.randint(0, len(body)) if self.was_broken else None
        at = 0
        while at < len(body):
            size = self.random.randint(1, len(body))
            yield body[at : at + size]
            at += size
            if breaks_at is not None and at >= breaks_at and at < len(body):
                raise Unreachable("broken off")


class Kept:
    """What the driver has of a stretch."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def read(self) -> bytes:
        return self.data


def plan(random: Random, unit: Unit, lines: Sequence[bytes]) -> list[tuple[Run, bytes]]:
    """Stretches over all of it, counted by a gateway, or read by a driver, who may have kept it; and what is there."""
    cuts = sorted({0, len(lines), *(random.randint(0, len(lines)) for _ in range(random.randint(0, 8)))})
    at = [0]
    for line in lines:
        at.append(at[-1] + (1 if unit is Unit.ELEMENT else len(line)))
    found = []
    for begin, end in pairwise(cuts):
        data = b"".join(lines[begin:end])
        is_counted = unit is not Unit.LINE and random.random() < 0.6
        token = at[begin] if is_counted else max(0, at[begin] - random.choice([0, 0, 1, 5]))
        place = Place(f"{token:06}" if token else "-1", at[begin] - token, 1_000 + begin)
        planned = Stretch(place, end - begin, len(data), zlib.crc32(data), f"{at[end]:06}" if is_counted else None)
        extent = None if is_counted or random.random() < 0.5 else cast("Extent", Kept(data))
        found.append((Run(Share("s", unit, planned), extent), data))
    return found


_MAKES: Final[Sequence[Callable[[int], bytes]]] = (
    lambda n: b'{"n":%d}' % n,
    lambda n: b"%d" % n,
    lambda n: b'{"n":%d,"a":[{"x":1},{"y":2}]}' % n,
    lambda n: b'{"n":"},{%d"}' % n,
)


@settings(max_examples=500)
@given(st.integers(0, 1 << 48), st.sampled_from(list(Unit)), st.integers(1, 60))
def test_tasks_read_what_was_planned_however_stream_and_plan_are_cut(seed: int, unit: Unit, count: int) -> None:
    # By a seed: what finds something here is many cuts at once, which drawing one by one seldom comes to.
    random = Random(seed)
    makes = random.choice([[make] for make in _MAKES] + [_MAKES])
    messages = [random.choice(makes)(number) for number in range(count)]
    if unit is Unit.BYTE:
        messages = [bytes([random.randrange(256)]) for _ in range(count)]
    lines = messages if unit is Unit.BYTE else [message + b"\n" for message in messages]
    stream = Scattered(random, unit, messages, b"".join(lines))
    planned = plan(random, unit, lines)
    block = random.choice([8, 40, 200, 1 << 20])
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(reading, "Client", lambda config: stream)
        for module in (framing, reading, walk):
            monkeypatch.setattr(module, "BLOCK_BYTES", block)
        at, left = 1_000, planned
        while left:
            size = random.randint(1, len(left))
            task, left = left[:size], left[size:]
            found = list(
                fragments(
                    Task([run for run, _ in task]),
                    ClientConfig("http://nowhere"),
                    as_chunks=unit is Unit.BYTE,
                    fails_on_loss=True,
                    warn=print,
                )
            )
            assert b"".join(fragment.piece.data for fragment in found) == b"".join(data for _, data in task)
            for fragment in found:
                assert fragment.pos == at
                at += fragment.piece.count
            assert not stream.open_replies
    assert at == 1_000 + count
