from __future__ import annotations

import io
from xml.etree import ElementTree

import orjson
import pytest
from rich.console import Console

from loadtest.bench import chart
from loadtest.bench.catchup import benchmarks as catchup_benchmarks
from loadtest.bench.figures import GATEWAY, Growth, GrowthPoint, Relation, Row, Sample, Target
from loadtest.bench.live import benchmarks as live_benchmarks
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
        rate.add(GATEWAY, Sample(value, 0.98, 0.01))
    rate.add("nginx", Sample(60_000.0, 0.5, 0.1))
    delay = Row("delay", "delay, p99 & more", "ms", (Target(Relation.AT_MOST, 1),), digits=2, is_rate=False)
    delay.add(GATEWAY, Sample(1.234))
    growth = Growth("streams", [GrowthPoint(10, 1000.0, 0.9, 40 * MIB), GrowthPoint(10_000, 900.0, 0.9, 80 * MIB)])
    return Result({"cores": 2}, {"nginx": "1.22"}, {"rounds": 3}, [rate, delay], [growth], ["nothing to note"])


def printed(result: Result) -> str:
    console = Console(file=io.StringIO(), width=120, soft_wrap=True, highlight=False)
    show(result, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def line(text: str, start: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(start)).split()


def test_the_table_has_medians_ratios_and_verdicts(result: Result) -> None:
    text = printed(result)
    assert line(text, "gateway") == ["gateway", "118,000"]
    assert line(text, "nginx")[:8] == ["nginx", "60,000~", "1.97", "x", "1.00", "x", "≥", "1.7"]
    assert line(text, "nginx")[-1] == "yes"
    assert "1.23" in text
    assert "≤ 1" in text
    assert "nothing to note" in text
    assert "10,000" in text


def test_a_single_peers_figure_has_no_ratio(result: Result) -> None:
    assert "x" not in line(printed(result).partition("more")[2], "gateway")


def test_the_json_holds_every_sample_and_verdict(result: Result) -> None:
    document = orjson.loads(to_json(result))
    same, delay = document["rows"]
    assert [sample["value"] for sample in same["peers"][GATEWAY]["samples"]] == [120_000, 118_000, 90_000]
    assert same["peers"]["nginx"]["gateway_ratio"] == pytest.approx(118 / 60)
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
    for picture in (bars, chart.lines(result.growth), chart.bars([]), chart.lines([])):
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_every_peer_of_every_benchmark_has_a_column_and_a_colour() -> None:
    for benchmark in (*catchup_benchmarks(), *live_benchmarks()):
        for peer in benchmark.peers:
            assert peer == GATEWAY or peer in PEERS
            assert peer in chart.COLOURS


def test_names_of_benchmarks_and_rows_are_unique_and_targets_name_measured_peers() -> None:
    every = [*catchup_benchmarks(), *live_benchmarks()]
    names = [benchmark.name for benchmark in every]
    keys = [row.key for benchmark in every for row in benchmark.rows]
    assert len(names) == len(set(names))
    assert len(keys) == len(set(keys))
    for benchmark in every:
        for row in benchmark.rows:
            assert {target.reference for target in row.targets} <= {"", *benchmark.peers}
