from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import orjson
import pytest
from rich.console import Console

from loadtest.bench import chart
from loadtest.bench.catchup import benchmarks as catchup_benchmarks
from loadtest.bench.figures import GATEWAY, Growth, GrowthPoint, Relation, Row, Sample, Target
from loadtest.bench.live import benchmarks as live_benchmarks
from loadtest.bench.production import benchmarks as production_benchmarks
from loadtest.bench.readme import keep, tables
from loadtest.bench.report import PEERS, Result, foreign_share, show, to_json
from loadtest.bench.s2 import benchmarks as s2_benchmarks
from loadtest.bench.secure import every_benchmark as every_secure_benchmark
from loadtest.bench.stage import Benchmark
from loadtest.bench.turnover import benchmarks as turnover_benchmarks

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


def every_benchmark() -> list[Benchmark]:
    return [
        *catchup_benchmarks(),
        *live_benchmarks(),
        *turnover_benchmarks(),
        *production_benchmarks(),
        *every_secure_benchmark(),
        *s2_benchmarks(),
    ]


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


def test_a_whole_run_is_kept_with_its_tables_and_pictures(result: Result, tmp_path: Path) -> None:
    run, home = tmp_path / "run", tmp_path / "home"
    (home / "docs").mkdir(parents=True)
    run.mkdir()
    (run / "bench.json").write_bytes(to_json(result))
    for name in ("bench.svg", "growth.svg"):
        (run / name).write_text(name)
    (home / "docs" / "performance.md").write_text("before\n<!-- bench -->\nold\n<!-- /bench -->\nafter\n")
    keep(run, home)
    kept = tables(orjson.loads((home / "docs" / "bench.json").read_bytes()))
    assert (home / "docs" / "performance.md").read_text() == f"before\n<!-- bench -->\n{kept}<!-- /bench -->\nafter\n"
    assert (home / "docs" / "growth.svg").read_text() == "growth.svg"


def test_a_part_of_a_run_is_not_kept(result: Result, tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_bytes(to_json(replace(result, growth=[])))
    with pytest.raises(ValueError, match="not a whole run"):
        keep(tmp_path, tmp_path)
