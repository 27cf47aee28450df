from __future__ import annotations

import pytest

from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.write_options import WriteOptions

URL = {"url": "http://127.0.0.1:4437/v1/"}


def options(**given: str) -> WriteOptions:
    return WriteOptions.of({**URL, **given}, is_streaming=False)


def test_names_are_taken_in_any_case() -> None:
    found = WriteOptions.of({"URL": "http://h", "MAXBATCHBYTES": "7", "orderby": "a, b"}, is_streaming=True)

    assert (found.client.url, found.max_batch_bytes, found.order) == ("http://h", 7, ("a", "b"))


def test_headers_go_along_and_are_never_shown() -> None:
    found = options(**{"headers.Authorization": "Bearer secret"})

    assert dict(found.client.headers) == {"authorization": "Bearer secret"}
    assert "secret" not in repr(found)


def test_bytes_can_be_counted_in_larger_units() -> None:
    assert options(maxBatchBytes="64k").max_batch_bytes == 65_536
    assert options(maxDriverBytes="1g").max_driver_bytes == 1 << 30


def test_a_path_is_a_stream() -> None:
    assert options(path="a").stream == options(stream="a").stream == "a"


def test_a_separator_can_be_spelt() -> None:
    assert options(lineSep="\\n").separator == b"\n"
    assert options(lineSep="").separator == b""
    assert options().separator is None


def test_create_says_the_content_type_too() -> None:
    assert options(create="text/plain").content_type == "text/plain"
    assert options(contentType="text/plain").create is None


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"url": ""}, "url"),
        ({"maxBatchByte": "7"}, "option maxbatchbyte is unknown"),
        ({"maxBatchBytes": "0"}, "maxBatchBytes"),
        ({"maxBatchBytes": "1x"}, "maxBatchBytes"),
        ({"maxBatchBytes": "k"}, "maxBatchBytes"),
        ({"path": "a", "stream": "a"}, "exclude each other"),
        ({"requestTimeout": "-1"}, "requestTimeout"),
        ({"maxDriverBytes": "-1"}, "maxDriverBytes"),
        ({"close": "yes"}, "close"),
        ({"stream": " "}, "option stream is empty"),
        ({"create": "text/plain", "contentType": "application/json"}, "different content types"),
    ],
)
def test_what_cannot_be_is_one_line(given: dict[str, str], text: str) -> None:
    with pytest.raises(BadOption, match=text) as raised:
        options(**given)

    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["close", "writeId"])
def test_a_streaming_query_has_no_end_and_no_other_id(name: str) -> None:
    with pytest.raises(BadOption, match="is only for batches"):
        WriteOptions.of({**URL, name: "true"}, is_streaming=True)
