from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest
from rich.console import Console

from loadtest.bench import chart
from loadtest.bench.catalogue import every_benchmark
from loadtest.bench.figures import GATEWAY, Growth, GrowthPoint, Relation, Row, Sample, Target
from loadtest.bench.readme import headlines, keep, tables
from loadtest.bench.report import PEERS, Result, foreign_share, show, to_json

MIB = 1 << 20


@pytest.fixture
def result() -> Result:
    rate = Row(
        "same",
        "cached 1 KB",
        "requests/s",
        (Target(Relation.AT_LEAST_TIMES, 1.7, "nginx"), Target(Relation.AT_LEAST_TIMES, 3, "fast path off")),
    )
    for value in (120_000.0, 118_000.0, 90_000.0):
        rate.add(GATEWAY, Sample(value, 0.98, 0.01, 8.25))
    rate.add("nginx", Sample(60_000.0, 0.5, 0.1, 16.5))
    delay = Row("delay", "delay, p99 & more", "ms", (Target(Relation.AT_MOST, 1),), digits=2, is_rate=False)
    delay.add(GATEWAY, Sample(1.234))
    growth = Growth("streams", [GrowthPoint(10, 1000.0, 0.9, 40 * MIB), GrowthPoint(10_000, 900.0, 0.9, 80 * MIB)])
    poll = Row("poll", "reading on", "answers/s", (Target(Relation.AT_MOST_CPU, 1, "nchan"),))
    poll.add(GATEWAY, Sample(5_000.0, 1.0, 0.0, 200.0))
    poll.add("nchan", Sample(13_000.0, 0.2, 0.0, 16.0))
    return Result({"cores": 2}, {"nginx": "1.22"}, {"rounds": 3}, [rate, delay, poll], [growth], ["nothing to note"])


def printed(result: Result) -> str:
    console = Console(file=io.StringIO(), width=120, soft_wrap=True, highlight=False)
    show(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line(text: str, start: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(start)).split()


def test_the_table_has_medians_ratios_and_verdicts(result: Result) -> None:
    text = printed(result)
    assert line(text, "gateway") == ["gateway", "118,000", "8.25"]
    assert line(text, "nginx")[:9] == ["nginx", "60,000~", "1.97", "x", "16.5", "0.50", "x", "≥", "1.7"]
    assert line(text, "nginx")[-1] == "yes"
    assert "1.23" in text
    assert "≤ 1" in text
    assert "nothing to note" in text
    assert "10,000" in text


def test_a_single_peers_figure_has_no_ratio(result: Result) -> None:
    assert line(printed(result).partition("more")[2], "gateway") == ["gateway", "1.23", "≤", "1", "no"]


def test_the_json_holds_every_sample_and_verdict(result: Result) -> None:
    document = orjson.loads(to_json(result))
    same, delay, poll = document["rows"]
    assert [sample["value"] for sample in same["peers"][GATEWAY]["samples"]] == [120_000, 118_000, 90_000]
    assert same["peers"]["nginx"]["gateway_ratio"] == pytest.approx(118 / 60)
    assert same["peers"]["nginx"]["gateway_cpu_ratio"] == 0.5
    assert poll["peers"][GATEWAY]["cpu_us"] == 200.0
    assert [target["is_reached"] for target in same["targets"]] == [True, None]
    assert [target["is_reached"] for target in delay["targets"]] == [False]
    assert document["growth"][0]["points"][1]["pss_bytes"] == 80 * MIB


def test_what_others_took_is_the_middle_of_all_samples(result: Result) -> None:
    assert foreign_share(result.rows) == pytest.approx(0.01)
    assert foreign_share([]) is None


def test_charts_are_well_formed_and_show_each_figure(result: Result) -> None:
    bars = chart.bars(result.rows)
    assert "118,000" in bars
    assert "gateway 1.97 x" in bars
    assert "p99" not in bars, "a row of the gateway alone is no comparison"
    assert "gateway 12.50 x" in bars, "what is judged by processor time is drawn by it"
    assert "5,000" not in bars
    for picture in (bars, chart.lines(result.growth), chart.bars([]), chart.lines([])):
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_every_peer_of_every_benchmark_has_a_column_and_a_colour() -> None:
    for benchmark in every_benchmark():
        for peer in benchmark.peers:
            assert peer == GATEWAY or peer in PEERS
            assert peer in chart.COLOURS


def test_names_of_benchmarks_and_rows_are_unique_and_targets_name_measured_peers() -> None:
    every = every_benchmark()
    names = [benchmark.name for benchmark in every]
    keys = [row.key for benchmark in every for row in benchmark.rows]
    assert len(names) == len(set(names))
    assert len(keys) == len(set(keys))
    for benchmark in every:
        for row in benchmark.rows:
            assert {target.reference for target in row.targets} <= {"", *benchmark.peers}
            assert {target.of for target in row.targets} <= {GATEWAY, *benchmark.peers}


def test_the_pages_table_has_rates_processor_time_and_aims(result: Result) -> None:
    shown = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in tables(orjson.loads(to_json(result))).splitlines()
        if line
    ]
    [same] = [cells for cells in shown if cells[0].startswith("cached 1 KB")]
    assert same[1:] == ["118,000", "8.25", "nginx", "60,000~", "16.50", "1.97 x", "0.50 x", "≥ 1.7", "yes"]
    [poll] = [cells for cells in shown if cells[0].startswith("reading on")]
    assert poll[1:] == ["5,000", "200", "nchan", "13,000~", "16", "0.38 x", "12.50 x", "cpu ≤ 1", "**no**"]
    [delay] = [cells for cells in shown if cells[0].startswith("delay")]
    assert delay[1:] == ["1.23", "", "", "", "", "", "", "≤ 1", "**no**"]


def kept_pages(home: Path) -> tuple[str, str]:
    """The README and the page with the figures, as they have to be."""
    document = orjson.loads((home / "docs" / "bench.json").read_bytes())
    short = f"before\n<!-- headlines -->\n{headlines(document)}<!-- /headlines -->\nafter\n"
    return short, f"{short}<!-- bench -->\n{tables(document)}<!-- /bench -->\n"


@pytest.fixture
def home(result: Result, tmp_path: Path) -> Path:
    """A project that shows a whole run."""
    run, home = tmp_path / "run", tmp_path / "home"
    (home / "docs").mkdir(parents=True)
    run.mkdir()
    (run / "bench.json").write_bytes(to_json(result))
    for name in ("bench.svg", "growth.svg"):
        (run / name).write_text(name)
    short = "before\n<!-- headlines -->\nold\n<!-- /headlines -->\nafter\n"
    (home / "README.md").write_text(short)
    (home / "docs" / "performance.md").write_text(f"{short}<!-- bench -->\nold\n<!-- /bench -->\n")
    keep(run, home)
    return home


def test_a_whole_run_is_kept_with_its_tables_and_pictures(home: Path) -> None:
    pages = (home / "README.md").read_text(), (home / "docs" / "performance.md").read_text()
    assert pages == kept_pages(home)
    assert "| cached 1 KB, same headers, requests/s | 118,000 | nginx | 60,000~ | 1.97 x |" in pages[0]
    assert (home / "docs" / "growth.svg").read_text() == "growth.svg"


def test_a_run_of_selected_benchmarks_replaces_their_rows_and_marks_them(
    result: Result, home: Path, tmp_path: Path
) -> None:
    hit = Row("production-hit", "cached 1 KB as in production", "requests/s")
    hit.add(GATEWAY, Sample(50_000, 0.9, 0.0, 9.0))
    hit.add("nginx", Sample(40_000, 0.9, 0.0, 12.0))
    (tmp_path / "bench.json").write_bytes(to_json(replace(result, rows=[hit], growth=[])))
    for _ in range(2):
        keep(tmp_path, home)
    document = orjson.loads((home / "docs" / "bench.json").read_bytes())
    assert document["rows"][0]["key"] == "production-hit"
    assert len(document["rows"]) == len(result.rows) + 1
    pages = (home / "README.md").read_text(), (home / "docs" / "performance.md").read_text()
    assert pages == kept_pages(home)
    assert "| cached 1 KB, processor time, µs ° | 9 | nginx | 12 | 0.75 x |" in pages[0]
    assert "| cached 1 KB as in production, requests/s ° | 50,000 | 9 |" in pages[1]
    assert "cached 1 KB as in production" in (home / "docs" / "bench.svg").read_text()
