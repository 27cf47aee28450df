"""Access logs as container runtimes keep them: lines are unwrapped, and parts of a long line are joined."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.log_files import SPOOL, LogFiles
from gateway.pipeline.manifest import Manifest
from gateway.pipeline.store import Store
from gateway.pipeline.wrapped import unwrapped
from tests.pipeline.access_log import access_log

AT = "2026-11-28T03:00:00.123456789Z"


def cri(*lines: str, stream: str = "stdout", part: int = 1_000_000) -> str:
    """Lines as Kubernetes keeps them, in parts of `part` characters."""
    out = []
    for line in lines:
        parts = [line[at : at + part] for at in range(0, len(line), part)] or [""]
        tags = ["P"] * (len(parts) - 1) + ["F"]
        out += [f"{AT} {stream} {tag} {text}\n" for tag, text in zip(tags, parts, strict=True)]
    return "".join(out)


def docker(*lines: str, stream: str = "stdout", part: int = 1_000_000) -> str:
    """Lines as Docker's json-file keeps them, in parts of `part` characters."""
    out = []
    for line in lines:
        text = f"{line}\n"
        parts = [text[at : at + part] for at in range(0, len(text), part)]
        out += [json.dumps({"log": piece, "stream": stream, "time": AT}) + "\n" for piece in parts]
    return "".join(out)


class Reading:
    """Repeated ingests of one folder, without Spark."""

    def __init__(self, tmp_path: Path) -> None:
        self.log = tmp_path / "0.log"
        self._store = Store(str(tmp_path / "lake"))
        self._manifest = Manifest()

    def new(self, *paths: Path) -> list[str]:
        """The lines that are new."""
        files = LogFiles(self._store, self._manifest)
        found: list[str] = []
        for spool in files.batches(paths or [self.log]):
            for path in spool.paths:
                found += pq.read_table(f"{self._store.url}/{SPOOL.place}/{path}")["line"].to_pylist()
        assert not files.unreadable, files.unreadable
        return found


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    return Reading(tmp_path)


WANTED = access_log(6).splitlines()


@pytest.mark.parametrize("wrap", [cri, docker])
@pytest.mark.parametrize("part", [1_000_000, 100])
def test_wrapped_lines_are_read_as_the_gateway_printed_them(reading: Reading, wrap: object, part: int) -> None:
    assert callable(wrap)
    reading.log.write_text(wrap(*WANTED, part=part))
    assert reading.new() == WANTED
    assert reading.new() == []


@pytest.mark.parametrize("wrap", [cri, docker])
def test_a_line_in_parts_waits_for_its_last_part(reading: Reading, wrap: object) -> None:
    assert callable(wrap)
    text = wrap(*WANTED, part=100)
    lines = text.splitlines(keepends=True)
    found: list[str] = []
    for count in range(len(lines)):
        # The last line of the file is cut, too.
        reading.log.write_text("".join(lines[:count]) + lines[count][:30])
        found += reading.new()
        assert found == WANTED[: len(found)]
    reading.log.write_text(text)
    assert found + reading.new() == WANTED


def test_parts_of_both_streams_may_take_turns(reading: Reading) -> None:
    printed = cri(WANTED[0], part=60).splitlines(keepends=True)
    told = cri("starting " * 20, stream="stderr", part=60).splitlines(keepends=True)
    turns = [line for pair in zip(told[:3], printed[:3], strict=True) for line in pair]
    reading.log.write_text("".join([*turns, told[3] if len(told) > 3 else "", *printed[3:-1]]))
    assert reading.new() == []
    reading.log.write_text("".join([*turns, *told[3:], *printed[3:]]))
    assert sorted(reading.new()) == sorted([WANTED[0], "starting " * 20])


def test_a_line_whose_last_part_cannot_come_is_kept_torn(reading: Reading, tmp_path: Path) -> None:
    torn = [cri(line, part=100).splitlines(keepends=True)[:-1] for line in WANTED[:2]]
    aside = tmp_path / "0.log.20261128-030000"
    aside.write_text("".join(torn[0]))
    packed = tmp_path / "0.log.20261128-020000.gz"
    packed.write_bytes(gzip.compress("".join([*torn[1], "x"]).encode()))
    assert reading.new(aside) == [WANTED[0][: 100 * len(torn[0])]]
    assert sorted(reading.new(packed)) == sorted(["x", WANTED[1][: 100 * len(torn[1])]])


@pytest.mark.parametrize(
    "line",
    [
        '2026-11-28T03:00:00Z {"time":1795262400.0,"id":"a.0","v":1}',
        'gateway-1  | {"time":1795262400.0,"id":"a.0","v":1}',
        "<134>1 2026-11-28T03:00:00Z host gateway - - - " + '{"time":1795262400.0,"id":"a.0","v":1}',
        json.dumps({"MESSAGE": '{"time":1795262400.0,"id":"a.0","v":1}', "PRIORITY": "6"}),
    ],
)
def test_lines_inside_another_format_are_refused_once(reading: Reading, tmp_path: Path, line: str) -> None:
    reading.log.write_text(f"{line}\n" * 5)
    files = LogFiles(Store(str(tmp_path / "lake")), Manifest())
    assert [spool.paths for spool in files.batches([reading.log])] == []
    (said,) = files.unreadable
    assert said.startswith(f"{reading.log}: its lines hold the gateway's inside another format")


def test_nuls_of_a_truncated_file_spoil_one_line_only(reading: Reading) -> None:
    line = '{"time":1795262400.0,"id":"a.0","v":1}'
    reading.log.write_text("\0" * 1_000 + f"{line}\n" * 3)
    assert reading.new() == ["\0" * 1_000 + line, line, line]


def test_a_line_of_the_gateway_that_names_a_stream_of_a_container_is_no_wrapped_line(reading: Reading) -> None:
    lines = [line.replace("reader/1", 'a stdout F {\\"log\\": 1} \\"stdout\\"') for line in WANTED]
    reading.log.write_text("".join(f"{line}\n" for line in lines))
    assert reading.new() == lines


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text("ab {}", max_size=12)), max_size=8),
    st.integers(1, 5),
    st.sampled_from([cri, docker]),
    st.data(),
)
def test_any_cut_between_lines_gives_the_same_lines(
    printed: Sequence[tuple[str, str]], part: int, wrap: object, data: st.DataObject
) -> None:
    assert callable(wrap)
    lines = [line for stream, text in printed for line in wrap(text, stream=stream, part=part).splitlines(True)]
    cut = data.draw(st.integers(0, len(lines)))
    first, taken = unwrapped("".join(lines[:cut]).encode(), is_all=False)
    rest, _ = unwrapped("".join(lines).encode()[taken:], is_all=True)
    assert (first + rest).decode() == "".join(f"{text}\n" for _, text in printed)
