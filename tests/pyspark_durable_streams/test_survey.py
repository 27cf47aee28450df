"""A count at a token that lies inside a reply, before an origin that does what a test tells it."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest

from pyspark_durable_streams import survey
from pyspark_durable_streams.admin import AdminApi, CountedRun
from pyspark_durable_streams.batch_slice import Allowance
from pyspark_durable_streams.client import Client, OpenReply, Reply
from pyspark_durable_streams.errors import BadOption, DataLost, Unreachable
from pyspark_durable_streams.news import Target
from pyspark_durable_streams.survey import Surveyor
from pyspark_durable_streams.walk import Gone


def surveyor(client: object, *, fails_on_loss: bool = True) -> Surveyor:
    return Surveyor(cast("Client", client), as_chunks=False, fails_on_loss=fails_on_loss, warn=print)


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


class Obliging(Told):
    """Ten numbers, at an origin that takes any token beyond their tail for the tail."""

    def __init__(self) -> None:
        super().__init__({})

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        if offset_of(path) > "010":
            yield reply(iter([b"[]"]), offset_of(path), **{"Stream-Up-To-Date": "true"})
            return
        with super().open(path, headers) as opened:
            yield opened

    def request(self, method: str, path: str, *_: Any) -> Reply:
        return Reply(200, {"Stream-Next-Offset": "010"}, b"")


def test_a_token_beyond_the_tail_is_refused_though_the_origin_takes_it() -> None:
    with pytest.raises(BadOption, match=r"stream s has no offset 011: it ends before$"):
        surveyor(Obliging()).enter("s", "011")
    for token in ("004", "010"):
        entered = surveyor(Obliging()).enter("s", token)
        assert entered is not None
        assert entered.place.token == token


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


class Changing:
    """Three replies of five numbers each, the same tokens whatever stream it is; another stream, or a shorter one,
    whenever a script of requests says so."""

    def __init__(self, changes_at: set[int], *, trims: bool = False) -> None:
        self.changes_at = changes_at
        self.trims = trims
        self.asked = 0
        self.life = 0

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        self.asked += 1
        self.life += self.asked in self.changes_at
        offset = offset_of(path)
        begin = 0 if offset == "-1" else int(offset)
        end = begin + 5
        numbers = [number if self.trims else number + 100 * self.life for number in range(begin, end)]
        if self.trims and begin == 0:
            numbers = numbers[self.life :]
        body = json.dumps(numbers).encode()
        yield reply(iter([body]), f"{end:03}", **({"Stream-Up-To-Date": "true"} if end == 15 else {}))


def _crc(*numbers: int) -> int:
    return zlib.crc32("".join(f"{number}\n" for number in numbers).encode())


def _crcs(client: object) -> list[int]:
    news = surveyor(client).news("s", None, Allowance())
    assert news is not None
    return [stretch.crc for stretch in news.stretches]


@pytest.mark.parametrize("request_", [2, 3])
def test_a_stream_made_anew_while_its_first_batch_is_planned_is_walked_again(request_: int) -> None:
    assert _crcs(Changing({request_})) == [_crc(*range(100, 115))]
    assert _crcs(Changing({2, 6})) == [_crc(*range(200, 215))]


def test_a_stream_that_is_cut_meanwhile_is_read_from_where_it_begins() -> None:
    assert _crcs(Changing({3}, trims=True)) == [_crc(*range(1, 15))]


def test_a_stream_that_never_begins_as_it_did_is_an_error_or_taken_as_it_is() -> None:
    news = surveyor(Changing(set(range(2, 99))), fails_on_loss=False).news("s", None, Allowance())
    assert news is not None
    assert news.units == 15
    with pytest.raises(DataLost, match="re-created"):
        _crcs(Changing(set(range(2, 99))))


def test_a_stream_that_stays_is_asked_for_its_beginning_once_more_and_one_of_one_reply_is_not() -> None:
    client = Changing(set())
    assert _crcs(client) == [_crc(*range(15))]
    assert client.asked == 4
    told = Told({"-1": [(10, True), (10, True)]})
    assert _crcs(told) == [_crc(*range(10))]
    assert len(told.script["-1"]) == 1


class Counted(Changing):
    """The same, with an admin port that has counted the first two replies for as long as the stream is the first."""

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        with super().open(path, headers) as said:
            yield OpenReply(said.status, {**said.headers, "ETag": '"one"'}, said.chunks)

    def begin_batch(self) -> None:
        pass

    def runs(self, stream: str, token: str, size: int, etag: str, *, is_json: bool) -> Iterator[CountedRun]:
        if self.life:
            return
        for at in range(0 if token == "-1" else int(token), 10, 5):
            lines = "".join(f"{number}\n" for number in range(at, at + 5)).encode()
            yield CountedRun(f"{at:03}" if at else "-1", f"{at + 5:03}", 5, len(lines), zlib.crc32(lines))


@pytest.mark.parametrize("request_", range(2, 8))
def test_a_stream_made_anew_around_what_was_counted_is_walked_again(
    request_: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_WORTH_BYTES", 1)
    client = Counted({request_})
    driver = Surveyor(cast("Client", client), cast("AdminApi", client), as_chunks=False, fails_on_loss=True, warn=print)
    news = driver.news("s", None, Allowance())
    assert news is not None
    lives = [[number + 100 * life for number in range(15)] for life in (0, 1)]
    expected = [[_crc(*life), _crc(*life[:5])] for life in lives]
    # Six requests: the first reply, the run that is confirmed, what follows it and what is behind its end, the rest,
    # and the look at the beginning.
    assert news.stretches[0].crc in expected[request_ <= 6]
    assert news.units == 15
    assert client.asked >= 6
    if request_ > 6:
        assert client.asked == 6
        assert [stretch.next for stretch in news.stretches] == ["005", "010", None]


class Vanishing:
    """Five numbers, and then something else than the next five: nothing any more, or another and shorter stream."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.asked = 0

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        self.asked += 1
        is_begin, is_first = offset_of(path) == "-1", self.asked == 1
        if self.statuses and not is_first:
            yield OpenReply(self.statuses.pop(0), {}, iter([b"no"]))
        elif is_begin and is_first:
            yield reply(iter([elements(0, 5)]), "005")
        else:
            numbers = elements(100, 103) if is_begin else b"[]"
            yield reply(iter([numbers]), "003", **{"Stream-Up-To-Date": "true"})


@pytest.mark.parametrize("statuses", [(), (404,), (410,), (400,)])
@pytest.mark.parametrize("fails_on_loss", [False, True])
def test_a_stream_that_became_another_before_anything_was_planned_of_it_is_read(
    statuses: tuple[int, ...], fails_on_loss: bool
) -> None:
    news = surveyor(Vanishing(*statuses), fails_on_loss=fails_on_loss).news("s", None, Allowance())
    assert news is not None
    assert [stretch.crc for stretch in news.stretches] == [_crc(100, 101, 102)]


@pytest.mark.parametrize("status", [404, 410])
def test_a_stream_that_goes_away_before_anything_was_planned_of_it_is_said_to_be_gone(status: int) -> None:
    with pytest.raises(Gone, match=f"stream s .*: {status} no"):
        surveyor(Vanishing(*[status] * 9)).news("s", None, Allowance())


class Denser:
    """Ten tokens: behind each of them is one number, and in the stream's next life, which begins when its beginning is
    looked at again, so many more.
    """

    def __init__(self, density: int, trimmed: int) -> None:
        self.density = density
        self.trimmed = trimmed
        self.begun = 0

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        is_begin = offset_of(path) == "-1"
        self.begun += is_begin
        is_new = self.begun > 1
        factor = self.density if is_new else 1
        begin = self.trimmed * is_new if is_begin else int(offset_of(path))
        end = 3 if is_begin else 10
        more = {"Stream-Up-To-Date": "true"} if end == 10 else {}
        yield reply(iter([elements(begin * factor + 100 * is_new, end * factor + 100 * is_new)]), f"{end:03}", **more)


@pytest.mark.parametrize(("density", "trimmed"), [(1, 2), (2, 0), (3, 1)])
def test_a_count_at_a_target_is_not_that_of_a_life_before(density: int, trimmed: int) -> None:
    client = Denser(density, trimmed)
    driver = surveyor(client)
    news = driver.news("s", None, Allowance(), Target("006"))
    assert news is not None
    assert news.units == (6 - trimmed) * density
    rest = driver.news("s", news.position, Allowance())
    assert rest is not None
    assert rest.units == 4 * density


class Endless:
    """Numbers without end, ten in a reply, of which an admin port has always counted two replies more."""

    def __init__(self) -> None:
        self.asked = 0

    @contextmanager
    def open(self, path: str, headers: Any = None) -> Iterator[OpenReply]:
        self.asked += 1
        assert self.asked < 1_000
        offset = offset_of(path)
        begin = 0 if offset == "-1" else int(offset)
        yield reply(iter([elements(begin, begin + 10)]), f"{begin + 10:06}", ETag='"one"')

    def request(self, method: str, path: str) -> Reply:
        # The tail, as it is at that moment: somewhat further than anybody has read.
        self.asked += 1
        return Reply(200, {"Stream-Next-Offset": f"{20 * self.asked:06}"}, b"")

    def begin_batch(self) -> None:
        pass

    def runs(self, stream: str, token: str, size: int, etag: str, *, is_json: bool) -> Iterator[CountedRun]:
        begin = 0 if token == "-1" else int(token)
        for at in (begin, begin + 10):
            lines = "".join(f"{number}\n" for number in range(at, at + 10)).encode()
            start = token if at == begin else f"{at:06}"
            yield CountedRun(start, f"{at + 10:06}", 10, len(lines), zlib.crc32(lines))


@pytest.mark.parametrize("is_counted", [False, True])
def test_a_stream_that_is_written_faster_than_it_is_planned_is_left_somewhere(
    is_counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "_CHASED_BYTES", 1_000)
    monkeypatch.setattr(survey, "_WORTH_BYTES", 1)
    client = Endless()
    admin = cast("AdminApi", client) if is_counted else None
    driver = Surveyor(cast("Client", client), admin, as_chunks=False, fails_on_loss=True, warn=print)
    news = driver.news("s", None, Allowance())
    assert news is not None
    numbers = "".join(f"{number}\n" for number in range(news.units)).encode()
    assert 1_000 <= news.size == len(numbers) < 20_000
    at = 0
    for stretch in news.stretches:
        assert stretch.crc == zlib.crc32(numbers[at : at + stretch.size])
        at += stretch.size
