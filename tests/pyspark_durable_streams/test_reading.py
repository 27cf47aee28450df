"""What a task makes of stretches, before an origin that does what a test tells it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from pyspark_durable_streams import reading
from pyspark_durable_streams.client import ClientConfig, OpenReply
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.framing import Unit
from pyspark_durable_streams.places import Place, Stretch
from pyspark_durable_streams.plan import Share
from pyspark_durable_streams.reading import Run, Task, fragments


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
    with pytest.raises(DataLost, match=r"does not end at 1, where the gateway had it end"):
        list(read(replies, stretch(b"1\n2\n", behind="1"), monkeypatch))
    assert b"".join(read(replies, stretch(b"1\n2\n", behind="2"), monkeypatch)) == b"1\n2\n"


def test_nothing_of_a_short_stretch_is_handed_out_before_it_is_seen_to_be_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replies = Replies({"-1": (b"[1,3]", "2")}, tail="2")
    found = read(replies, stretch(b"1\n2\n"), monkeypatch)
    with pytest.raises(DataLost, match="reads otherwise"):
        next(found)
    # Where loss is no error, what is there is taken.
    assert list(read(replies, stretch(b"1\n2\n"), monkeypatch, fails_on_loss=False)) == [b"1\n3\n"]
