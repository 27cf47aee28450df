"""What S2's CI asks of its open-source server in Rust, asked of the in-memory origin and through a gateway."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import aiohttp
import pytest
from s2_sdk import S2, Compression

from tests.s2.edge.clients import Client
from tests.s2.sdk import selection_control_rows, selection_read_rows, selection_rows
from tests.s2.sdk.conftest import BOTH_WAYS, BOUND_S
from tests.s2.sdk.selection_rows import BASIN, ROWS, Here

TABLE = Path(__file__).with_name("selection.md").read_text(encoding="utf-8")
TESTS = Path(__file__).parents[3]
FILES = (selection_rows, selection_read_rows, selection_control_rows)


@pytest.fixture
def compression() -> Compression:
    """No compression: `test_python.py` has each."""
    return Compression.NONE


@BOTH_WAYS
async def test_each_behaviour_of_the_rust_suite(url: str, s2: S2) -> None:
    async with aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=32)) as http:
        client = Client(http, url)
        assert (await client.send("POST", "/v1/basins", {"basin": BASIN})).status in (200, 201)
        async with asyncio.timeout(BOUND_S):
            work = [run(Here(client, s2, name.replace("_", "-"))) for name, run in ROWS.items()]
            ended = await asyncio.gather(*work, return_exceptions=True)
        client.close()
    assert {name: repr(found) for name, found in zip(ROWS, ended, strict=True) if found is not None} == {}


def test_the_table_names_each_row_and_tests_that_exist() -> None:
    covered = re.findall(r"^\| `(\w+)`[^|]*\| ([^|]+) \|", TABLE, re.MULTILINE)
    rows = {name for name, by in covered if by == "row"}
    assert rows == ROWS.keys()
    assert all(any(hasattr(file, name) for file in FILES) for name in rows)
    for name, by in covered:
        if by == "row":
            continue
        file, _, function = by.strip("`").partition("::")
        assert f"def {function}(" in (TESTS / file).read_text(encoding="utf-8"), name
