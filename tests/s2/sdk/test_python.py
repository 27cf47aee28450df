"""PyPI's `s2-sdk`, unmodified, with each of its compressions."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from s2_sdk import S2, Compression, S2Stream

from tests.effort import some
from tests.s2.sdk import python_control_rows, python_rows
from tests.s2.sdk.conftest import BOUND_S
from tests.s2.sdk.python_matrix import CALLS, OPTIONS, ROWS, given_options

ALL = list(product(["origin", "gateway"], Compression))
SHORT = [("origin", Compression.GZIP), *product(["gateway"], Compression)]
"""The origin is there for comparison: the SDK and the rows are the same in each case."""


def test_no_call_of_the_sdk_is_left_out() -> None:
    assert {name.partition(":")[0] for name in ROWS} == CALLS


def test_no_option_of_a_call_is_left_out() -> None:
    assert OPTIONS - given_options(python_rows.__file__, python_control_rows.__file__) == set()


@pytest.mark.parametrize(("url", "compression"), some(SHORT, ALL), indirect=True)
@pytest.mark.parametrize("name", ROWS)
async def test_a_call(s2: S2, stream: S2Stream, name: str) -> None:
    async with asyncio.timeout(BOUND_S):
        await ROWS[name](s2, stream)
