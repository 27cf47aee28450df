from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_durable_streams.errors import BadRow
from pyspark_durable_streams.producer import Step, judge, path_of, producer_id

CLOSED = {"Stream-Closed": "true"}
STALE = {"Producer-Epoch": "9"}
GAP = {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "4"}


@pytest.mark.parametrize(
    ("status", "headers", "step"),
    [
        (200, {}, Step.NEXT),
        (201, {}, Step.NEXT),
        (204, {}, Step.NEXT),
        (404, {}, Step.CREATE),
        (409, CLOSED, Step.CLOSED),
        (409, {**CLOSED, **GAP}, Step.CLOSED),
        (409, {"Stream-Closed": "false"}, Step.FAIL),
        (409, GAP, Step.FAIL),
        (409, {}, Step.FAIL),
        (403, STALE, Step.FAIL),
        (403, {}, Step.FAIL),
        (400, {}, Step.FAIL),
        (401, {}, Step.FAIL),
        (405, {}, Step.FAIL),
        (410, {}, Step.FAIL),
        (413, {}, Step.FAIL),
        (301, {}, Step.FAIL),
    ],
)
def test_what_an_answer_means(status: int, headers: dict[str, str], step: Step) -> None:
    assert judge(status, headers, 7).step is step


def test_only_a_204_says_that_the_stream_had_it_already() -> None:
    assert judge(204, {}, 7).is_duplicate
    assert not judge(200, {}, 7).is_duplicate


def test_a_stale_epoch_is_told_by_the_two_batches() -> None:
    assert "batch 9" in judge(403, STALE, 7).text
    assert "batch 7" in judge(403, STALE, 7).text


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_a_producer_is_one_write_and_one_stream(one: tuple[str, str], other: tuple[str, str]) -> None:
    surrogates = any("\ud800" <= letter <= "\udfff" for text in (*one, *other) for letter in text)
    if surrogates or any("\0" in text for text in (*one, *other)):
        return
    assert (producer_id(*one) == producer_id(*other)) == (one == other)
    assert producer_id(*one).isascii()


def test_a_name_is_a_path_below_the_url() -> None:
    assert path_of("a/b") == path_of("/a/b") == "/a/b"


@pytest.mark.parametrize("name", ["", "/", "a?offset=-1", "a#b", "..", "../up", "a/./b", "a/../../up", "a/%2e%2E/up"])
def test_what_is_no_name_is_told(name: str) -> None:
    with pytest.raises(BadRow, match="not a valid name of a stream"):
        path_of(name)
