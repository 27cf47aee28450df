"""Options of a read, and the error for any other."""

from __future__ import annotations

import pickle

import pytest

from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.formats import Format
from pyspark_durable_streams.options import ReadOptions, read_options

_URL = {"url": "http://127.0.0.1:4437/v1"}
_STREAM = {**_URL, "stream": "a"}


def read(**options: str) -> ReadOptions:
    return read_options({**_STREAM, **options}, is_streaming=True)


def test_names_of_options_are_matched_in_any_case() -> None:
    options = read_options(
        {"URL": "http://h/", "Streams": " a, /b ", "MAXROWSPERTRIGGER": "7", "failondataloss": "False"},
        is_streaming=True,
    )
    assert options.streams == ("a", "b")
    assert options.client.url == "http://h"
    assert options.most_rows == 7
    assert not options.fails_on_loss


def test_starting_offsets_are_those_of_the_kafka_source() -> None:
    assert read().starting.of("a") == "latest"
    assert read_options(_STREAM, is_streaming=False).starting.of("a") == "-1"
    assert read(startingOffsets="EARLIEST").starting.of("a") == "-1"
    assert read(startingOffsets='{"a": "0_7"}').starting.of("a") == "0_7"
    assert read(startingOffsets='{"a": "Latest"}').starting.of("a") == "latest"


def test_a_path_is_a_stream() -> None:
    assert read_options({**_URL, "path": "a/b"}, is_streaming=False).streams == ("a/b",)


def test_names_of_the_kafka_source_that_mean_the_same_work() -> None:
    assert read(maxOffsetsPerTrigger="7").most_rows == 7
    assert read_options({**_URL, "subscribe": "a,b"}, is_streaming=True).streams == ("a", "b")


def test_a_query_pauses_between_looks_for_a_second_at_most() -> None:
    assert read().most_poll_s == 1
    assert read(maxPollDelay="250ms").most_poll_s == 0.25


def test_without_any_option_the_error_says_what_spark_does_not_pass_on() -> None:
    with pytest.raises(BadOption, match="CREATE TEMPORARY VIEW"):
        read_options({}, is_streaming=False)


def test_sizes_may_have_a_unit() -> None:
    assert read(maxBytesPerTrigger="2m").max_bytes == 2 << 20
    assert read(format="chunks", chunkBytes="4k").chunk_bytes == 4096


def test_headers_are_sent_and_never_shown() -> None:
    options = read(**{"headers.Authorization": "Bearer secret"})
    assert options.client.headers == {"authorization": "Bearer secret"}
    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"startingOffset": "latest"}, "option startingoffset is unknown; did you mean startingOffsets?"),
        ({"foo": "1"}, "option foo is unknown"),
        ({"maxOffsetsPerTrigger": "1", "maxRowsPerTrigger": "1"}, "maxOffsetsPerTrigger and maxRowsPerTrigger are one"),
        ({"kafka.bootstrap.servers": "h:1"}, "option kafka.bootstrap.servers is of Kafka: url is"),
        ({"kafka.group.id": "g"}, "option kafka.group.id is of Kafka: there are no consumer groups"),
        ({"kafka.sasl.mechanism": "PLAIN"}, "option kafka.sasl.mechanism is of Kafka: the protocol is HTTP"),
        ({"subscribePattern": "a.*"}, "option subscribepattern is of Kafka: streamsPrefix"),
        ({"maxPollDelay": "often"}, "option maxPollDelay: a number with"),
        ({"streams": "b"}, "there are stream and streams"),
        ({"maxRowsPerTrigger": "0"}, "option maxRowsPerTrigger: a whole number of at least 1"),
        ({"maxRowsPerTrigger": "1k"}, "option maxRowsPerTrigger: a whole number"),
        ({"minPartitions": "many"}, "option minPartitions"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss: true or false"),
        ({"format": "rows"}, "option format: one of messages, typed, chunks"),
        ({"mode": "FAILFAST"}, "option mode requires format=typed"),
        ({"chunkBytes": "7"}, "option chunkBytes requires format=chunks"),
        ({"endingOffsets": "latest"}, "option endingOffsets is only for batches"),
        ({"startingOffsets": "first"}, "option startingOffsets: earliest, latest or"),
        ({"startingOffsets": '{"b": "1"}'}, "option startingOffsets: every stream needs an offset"),
        ({"startingOffsets": '{"a": 1}'}, "option startingOffsets: earliest, latest or"),
        ({"tails": "catalogue"}, "option tails=catalogue needs catalogue"),
        ({"catalogueStream": "names"}, "catalogueStream requires streamsPrefix"),
        ({"url": "ftp://h"}, "url: http"),
        ({"url": "http://u:secret@h/"}, "url: credentials belong in the header Authorization"),
        ({"url": "http://[::1/"}, "url: http://host"),
        ({"url": "http://h:99999/"}, "url: http://host"),
        ({"catalogue": "http://[::1"}, "option catalogue: http://host"),
        ({"catalogue": "http://u:secret@h"}, "option catalogue: credentials belong in the header Authorization"),
        ({"maxRowsPerTrigger": "9" * 5_000}, "option maxRowsPerTrigger: a whole number"),
        ({"startingOffsets": "[" * 100_000}, "option startingOffsets: earliest, latest or"),
        ({"headers.Authorization: Basic secret": ""}, "option headers.authorization: not the name of a header"),
        ({"Authorization: Basic secret": ""}, "option authorization is unknown"),
        ({"url": " "}, "option url is missing"),
        ({"requestTimeout": "0"}, "option requestTimeout: seconds"),
        ({"headers.A b": "x"}, "not the name of a header"),
        ({"headers.A": "x\ny"}, "cannot be sent in a header"),
    ],
)
def test_what_cannot_be_is_one_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption) as caught:
        read(**options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (_URL, "none is given"),
        ({**_URL, "streamsPrefix": "a"}, "streamsPrefix needs a list of the streams"),
        ({**_URL, "streams": "a,,b"}, "a name is empty"),
        ({**_URL, "streams": "a,/a"}, "named twice"),
        ({**_STREAM, "maxRowsPerTrigger": "1"}, "option maxRowsPerTrigger is only for streaming"),
        ({**_STREAM, "startingOffsets": "latest"}, "a batch cannot start at latest"),
        ({**_STREAM, "endingOffsets": "earliest"}, "not earliest"),
        ({**_URL, "streamsPrefix": "", "catalogue": "admin:9"}, "option catalogue: http"),
        ({**_URL, "streamsPrefix": "", "catalogue": "http://h:1", "catalogueStream": "n"}, "exclude each other"),
    ],
)
def test_what_a_batch_cannot_be_is_one_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        read_options(options, is_streaming=False)


def test_a_prefix_has_its_catalogue() -> None:
    options = read_options(
        {
            **_URL,
            "streamsPrefix": "a/",
            "catalogue": "http://h:9437",
            "catalogueHeaders.Authorization": "Bearer s3cret",
        },
        is_streaming=False,
    )
    assert options.prefix == "a/"
    assert options.catalogue is not None
    assert options.catalogue.admin is not None
    assert options.catalogue.admin.headers == {"authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(options)
    assert options.format is Format.MESSAGES
