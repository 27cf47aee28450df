"""Outcomes as Cache-Status values."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.cache_status import Outcome, cache_status

_ITEM = r'(?:[A-Za-z*][!#$%&\'*+\-.^_`|~0-9A-Za-z:/]*|"(?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*")'
_MEMBER = re.compile(rf"{_ITEM}(?:; [a-z\-]+(?:=(?:{_ITEM}|[0-9]+))?)*")
_FWD = {"bypass", "method", "uri-miss", "vary-miss", "miss", "request", "stale", "partial"}


@pytest.mark.parametrize(
    ("outcome", "value"),
    [
        (Outcome.HIT, "gw; hit"),
        (Outcome.REVALIDATED, "gw; fwd=stale; fwd-status=200"),
        (Outcome.JOINED, "gw; fwd=partial; fwd-status=200"),
        (Outcome.MISS, "gw; fwd=uri-miss; fwd-status=200"),
        (Outcome.COLLAPSED, "gw; fwd=uri-miss; fwd-status=200; collapsed"),
        (Outcome.FOLLOWED, "gw; fwd=stale; fwd-status=200; collapsed; detail=followed"),
        (Outcome.STALE_IF_ERROR, "gw; fwd=stale; fwd-status=200; detail=stale_if_error"),
        (Outcome.PASS, "gw; fwd=bypass; fwd-status=200"),
        (Outcome.REFUSED, "gw; detail=refused"),
        (Outcome.FAILED, "gw; fwd=miss; fwd-status=200; detail=failed"),
        (Outcome.ABORTED, "gw; fwd=miss; fwd-status=200; detail=aborted"),
    ],
)
def test_each_outcome_has_its_value(outcome: Outcome, value: str) -> None:
    assert cache_status("gw", outcome, fwd_status=200) == value


def test_every_outcome_is_in_the_table_above_and_is_a_metric_label() -> None:
    assert len(Outcome) == 11
    assert all(outcome.value == outcome.name.lower() for outcome in Outcome)


def test_stored_follows_the_status() -> None:
    assert cache_status("gw", Outcome.MISS, fwd_status=200, stored=True) == "gw; fwd=uri-miss; fwd-status=200; stored"


def test_a_relayed_write_names_its_method_as_the_reason() -> None:
    assert cache_status("gw", Outcome.PASS, fwd_status=204, by_method=True) == "gw; fwd=method; fwd-status=204"


def test_a_hit_does_not_mention_the_origin() -> None:
    assert cache_status("gw", Outcome.HIT, fwd_status=200, stored=True) == "gw; hit"


def test_a_given_detail_replaces_the_default_and_is_quoted_if_needed() -> None:
    assert cache_status("gw", Outcome.FAILED, detail="connect timeout") == 'gw; fwd=miss; detail="connect timeout"'
    assert cache_status("gw", Outcome.HIT, detail='a"b\\c\n') == 'gw; hit; detail="a\\"b\\\\c?"'


def test_a_node_name_that_is_not_a_token_is_quoted() -> None:
    assert cache_status("edge 1", Outcome.HIT) == '"edge 1"; hit'


@given(
    st.sampled_from(Outcome),
    st.one_of(st.none(), st.integers(100, 599)),
    st.booleans(),
    st.one_of(st.none(), st.text(max_size=20)),
    st.booleans(),
)
def test_every_value_is_a_well_formed_structured_field_with_hit_or_fwd_but_not_both(
    outcome: Outcome, status: int | None, stored: bool, detail: str | None, by_method: bool
) -> None:
    value = cache_status("gw", outcome, fwd_status=status, stored=stored, detail=detail, by_method=by_method)
    assert _MEMBER.fullmatch(value)
    head = value.partition("; detail=")[0]
    fwd = re.findall("fwd=([a-z-]+)", head)
    assert set(fwd) <= _FWD
    assert len(fwd) + ("; hit" in head) <= 1
