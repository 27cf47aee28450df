from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import pyarrow as pa
import pytest

from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.errors import BadRow, DurableStreamsError, NotRepeatable, Refused, StreamClosed
from pyspark_durable_streams.producer import Producer, Sent
from pyspark_durable_streams.sender import Batch, Sender
from pyspark_durable_streams.write_options import WriteOptions
from tests.pyspark_durable_streams.beside import JSON, Beside, beside

QUERY = "0b5d5e9a"


@pytest.fixture
def origin() -> Iterator[Beside]:
    with beside() as running:
        yield running


def table(**streams: Sequence[object]) -> pa.Table:
    rows = [(stream, str(value).encode()) for stream, values in streams.items() for value in values]
    return pa.table(
        {
            "stream": pa.array([row[0] for row in rows], pa.large_string()),
            "key0": pa.array(range(len(rows))),
            "value": pa.array([row[1] for row in rows], pa.large_binary()),
        }
    )


def send(
    origin: Beside, messages: pa.Table, epoch: int = 0, *, write: str = QUERY, repeats: bool = True, **options: str
) -> dict[str, Sent]:
    given = WriteOptions.of({"url": origin.url, "orderBy": "n", **options}, is_streaming=False)
    with Sender(given) as sender:
        return sender.send(messages, Batch(write, epoch), may_come_again=repeats)


def test_messages_arrive_in_their_streams_in_order(origin: Beside) -> None:
    origin.create("a")
    origin.create("b")

    sent = send(origin, table(a=[1, 2, 3], b=[4]))

    assert origin.messages("a") == [1, 2, 3]
    assert origin.messages("b") == [4]
    assert sent == {"a": Sent(1, 0), "b": Sent(1, 0)}


def test_a_batch_that_is_brought_again_is_taken_once(origin: Beside) -> None:
    origin.create("a")
    thousand = table(a=list(range(1000)))

    first = send(origin, thousand, 3, maxBatchBytes="100")
    again = send(origin, thousand, 3, maxBatchBytes="100")

    assert origin.messages("a") == list(range(1000))
    assert first["a"].posts == again["a"].posts == again["a"].duplicates > 30


def test_a_batch_that_stopped_half_way_is_finished_by_the_next_attempt(origin: Beside) -> None:
    origin.create("a")
    made = [b"[%d,%d]" % (n, n + 1) for n in range(0, 1000, 2)]
    with closing(Client(ClientConfig(origin.url))) as client:
        Producer(client, "a", QUERY, 3, JSON, creates=False).send(made[:117])

        sent = Producer(client, "a", QUERY, 3, JSON, creates=False).send(made)

    assert sent == Sent(500, 117)
    assert origin.messages("a") == list(range(1000))


def test_a_stream_that_was_made_anew_half_way_is_told(origin: Beside) -> None:
    origin.create("a")
    with closing(Client(ClientConfig(origin.url))) as client:
        Producer(client, "a", QUERY, 3, JSON, creates=True).send([b"[1]", b"[2]"])
        assert origin.ask("DELETE", "a") == 204
        late = Producer(client, "a", QUERY, 3, JSON, creates=True)

        with pytest.raises(Refused, match=r"a: 409 .*re-created"):
            late.close(2)


def test_batches_follow_each_other_even_where_some_bring_a_stream_nothing(origin: Beside) -> None:
    origin.create("a")

    for epoch in (0, 1, 5, 17):
        send(origin, table(a=[epoch]), epoch)

    assert origin.messages("a") == [0, 1, 5, 17]


def test_a_run_that_was_overtaken_is_refused_and_writes_nothing(origin: Beside) -> None:
    origin.create("a")
    send(origin, table(a=[1]), 4)

    with pytest.raises(Refused, match="already has batch 4 of this query, and this is batch 3"):
        send(origin, table(a=[2]), 3)

    assert origin.messages("a") == [1]


def test_writes_of_their_own_do_not_disturb_each_other(origin: Beside) -> None:
    origin.create("a")

    send(origin, table(a=[1]), write="one")
    send(origin, table(a=[2]), write="other")

    assert origin.messages("a") == [1, 2]


def test_two_names_of_one_stream_are_two_producers(origin: Beside) -> None:
    origin.create("a")

    send(origin, table(**{"a": [1], "/a": [2]}))

    assert sorted(origin.messages("a")) == [1, 2]


def test_a_missing_stream_is_made_where_that_was_asked_for(origin: Beside) -> None:
    send(origin, table(a=["x", "y"]), create="text/plain", lineSep="\\n")

    assert origin.read("a") == b"x\ny\n"
    assert origin.content_type("a").startswith("text/plain")


def test_a_missing_stream_is_an_error_where_not(origin: Beside) -> None:
    with pytest.raises(Refused, match=r"a: 404 .*create"):
        send(origin, table(a=[1]), contentType="application/json")
    with pytest.raises(Refused, match=r"a: 404 .*create"):
        send(origin, table(a=[1]))


def test_a_closed_stream_takes_nothing(origin: Beside) -> None:
    origin.create("a")
    origin.close("a")

    with pytest.raises(StreamClosed, match="a: the stream is closed"):
        send(origin, table(a=[1]))


def test_a_stream_of_another_content_type_says_so(origin: Beside) -> None:
    origin.create("a", "text/plain")

    with pytest.raises(Refused, match="a: 409 Content-type mismatch"):
        send(origin, table(a=[1]), create="application/json")


def test_an_origin_that_cannot_for_a_while_gets_everything_once(origin: Beside) -> None:
    origin.create("a")
    origin.do(lambda found: found.faults.status(503, times=2, kind="append"))
    origin.do(lambda found: found.faults.refuse(times=1, kind="append"))

    send(origin, table(a=list(range(100))), maxBatchBytes="50")

    assert origin.messages("a") == list(range(100))


def test_a_message_that_nobody_can_take_is_found_before_its_stream_got_any(origin: Beside) -> None:
    origin.create("a")

    with pytest.raises(BadRow, match="a: a value is not one JSON value"):
        send(origin, table(a=[*range(1000), "no"]), maxBatchBytes="100")

    assert origin.messages("a") == []


def test_rows_without_an_order_must_fit_into_one_post_where_they_may_come_again(origin: Beside) -> None:
    origin.create("a")
    many = table(a=list(range(100))).drop_columns(["key0"])

    with pytest.raises(NotRepeatable, match=r"a: .*orderBy.*maxBatchBytes"):
        send(origin, many, orderBy="", maxBatchBytes="100")
    assert origin.messages("a") == []

    send(origin, many, orderBy="", maxBatchBytes="1000")
    send(origin, many, 1, orderBy="", maxBatchBytes="100", repeats=False)
    assert origin.messages("a") == [*range(100), *range(100)]


def test_the_first_failure_ends_the_rest(origin: Beside) -> None:
    streams = {f"s{number}": [number] for number in range(200)}

    with pytest.raises(DurableStreamsError):
        send(origin, table(**streams), contentType="application/json")

    assert origin.appends() < 200


def test_a_very_large_message_goes_alone(origin: Beside) -> None:
    origin.create("a", "text/plain")
    large = "x" * 3_000_000

    send(origin, table(a=["small", large, "small"]))

    assert origin.read("a").decode() == f"small{large}small"
    assert origin.appends() == 3
