"""A count at a token that lies inside a reply, before an origin that does what a test tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from pyspark_durable_streams.client import Client, OpenReply
from pyspark_durable_streams.errors import Unreachable
from pyspark_durable_streams.survey import Surveyor, Target
from pyspark_durable_streams.taken import Allowance


def surveyor(client: object) -> Surveyor:
    return Surveyor(cast("Client", client), as_chunks=False, fails_on_loss=True, warn=print)


def units(client: object, token: str) -> int:
    news = surveyor(client).news("s", None, Allowance(), Target(token))
    assert news is not None
    return news.units


def offset_of(path: str) -> str:
    return path.partition("offset=")[2]


def reply(chunks: Iterator[bytes], end: str, **more: str) -> OpenReply:
    headers = {"Content-Type": "application/json", "Stream-Next-Offset": end, **more}
    return OpenReply(200, headers, chunks)


def elements(begin: int, end: int) -> bytes:
    return json.dumps(list(range(begin, end))).encode()


class Told:
    """Numbers from 0, a token behind each; replies end where a script says, and may break off."""

    def __init__(self, script: Mapping[str, list[tuple[int, bool]]]) -> None:
        self.script = {offset: list(replies) for offset, replies in script.items()}

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        offset = offset_of(path)
        begin = 0 if offset == "-1" else int(offset)
        replies = self.script.get(offset, [])
        end, is_whole = replies.pop(0) if replies else (10, True)

        def chunks() -> Iterator[bytes]:
            # So many spaces that what is there before the break is looked at.
            yield elements(begin, end)[: None if is_whole else 8] + b" " * (2 << 20 if not is_whole else 0)
            if not is_whole:
                raise Unreachable("broken off")

        yield reply(chunks(), f"{end:03}", **({"Stream-Up-To-Date": "true"} if end == 10 else {}))


def test_a_reply_that_broke_off_and_came_again_shorter() -> None:
    told = Told({"-1": [(5, True), (5, True)], "004": [(8, False), (5, True)]})
    assert units(told, "004") == 4


class Closing:
    """A text that is closed without an append while it is looked at."""

    def __init__(self, closed_from: int) -> None:
        self.closed_from = closed_from
        self.asked = 0

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        offset = offset_of(path)
        begin = 0 if offset == "-1" else int(offset)
        self.asked += 1
        data = b"a\nb\nc\nrest"
        more = {"Content-Type": "text/plain", "Stream-Up-To-Date": "true"}
        if self.asked >= self.closed_from:
            more["Stream-Closed"] = "true"
        yield reply(iter([data[begin:]]), f"{len(data):03}", **more)


def test_a_last_line_that_closing_ends_counts_in_no_walk_or_in_both() -> None:
    for closed_from in range(1, 6):
        assert units(Closing(closed_from), "004") == 2


class Growing:
    """A stream that is longer by one whenever somebody asks alone, as one is that grows faster than requests travel."""

    def __init__(self) -> None:
        self.length = 50
        self.asked = 0
        self.together = threading.Barrier(2)

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        offset = offset_of(path)
        begin = 0 if offset == "-1" else int(offset)
        self.asked += 1
        assert self.asked < 20
        try:
            self.together.wait(0.2)
        except threading.BrokenBarrierError:
            self.together.reset()
            self.length += 1
        end = self.length
        yield reply(iter([elements(begin, end)]), f"{end:03}", **{"Stream-Up-To-Date": "true"})


def test_a_stream_that_never_stands_still() -> None:
    assert units(Growing(), "040") == 40
