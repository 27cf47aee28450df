"""The step: curves from silver, the same by Spark as without it, with bounded work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gateway.pipeline import tables
from gateway.pipeline.curve import measure
from gateway.pipeline.curve.measure import grid_of, measure_curve
from gateway.pipeline.curve.sampling import SPACE
from gateway.pipeline.curve.simulate import Read, play
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.lake import Lake
from gateway.tape.costs import ANSWER_SHARE, CODED_SHARE, TOKEN_COST, USUAL_COST
from gateway.tape.eviction import POLICIES
from tests.pipeline.curve.silver import Asked, lake_of
from tests.pipeline.curve.traces import skewed, trace_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 1_500


def asked() -> list[tuple[int, int]]:
    """Stream and size of each read."""
    trace = trace_of(skewed(np.random.default_rng(5), 400, COUNT))
    names = np.unique(trace.keys, return_inverse=True)[1]
    return list(zip(names.tolist(), trace.sizes.tolist(), strict=True))


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    log = [Asked(2 * number, f"/{name}", 0, size) for number, (name, size) in enumerate(asked())]
    return lake_of(spark, str(tmp_path_factory.mktemp("lake")), log)


def curves(spark: SparkSession, lake: Lake) -> dict[str, list[tuple[int, float, float, float | None]]]:
    out: dict[str, list[tuple[int, float, float, float | None]]] = {}
    for row in lake.read(spark, tables.CURVE).orderBy("policy", "cache_bytes").collect():
        out.setdefault(row.policy, []).append((row.cache_bytes, row.miss_ratio, row.byte_miss_ratio, row.error))
    return out


def test_the_whole_log_gives_the_policies_own_ratios(spark: SparkSession, lake: Lake) -> None:
    told: list[str] = []
    found = measure_curve(spark, lake, progress=told.append)
    assert found.rate == 1
    assert found.placement.counted == COUNT
    assert "1,500 catch-up reads" in str(found)
    assert len(told) == 2
    rows = curves(spark, lake)
    assert set(rows) == set(POLICIES)
    extents = dict(asked())
    reads = [
        Read(2_000_000 * number, name, 0, size, 1 + 2 * TOKEN_COST / size, 1, 1, plain=size, is_alone=True)
        for number, (name, size) in enumerate(asked())
    ]
    for policy in POLICIES:
        assert len(rows[policy]) == found.points
        for cache, miss, byte_miss, error in rows[policy][:: max(1, found.points // 4)]:
            expected = play(policy, cache, reads)
            assert miss == pytest.approx(expected.reads / COUNT)
            assert byte_miss == pytest.approx(expected.bytes / sum(size for _, size in asked()))
            assert error is None
    # Everything fits: only first reads miss.
    for policy in rows:
        assert rows[policy][-1][2] == pytest.approx(sum(extents.values()) / sum(size for _, size in asked()), abs=0.002)
    working_bytes = sum(extents.values()) + len(extents) * (USUAL_COST + 2 * TOKEN_COST)
    assert rows["lru"][-1][0] == pytest.approx(working_bytes / (1 - 1 / CODED_SHARE - 1 / ANSWER_SHARE), abs=1)


def test_the_same_lake_gives_the_same_table_from_a_sample(spark: SparkSession, lake: Lake) -> None:
    sizes = [200_000, 1_000_000]
    found = measure_curve(spark, lake, sizes=sizes, rate=0.5, policies=["s3-fifo"])
    assert found.points == 2
    assert found.rate == 0.5
    first = curves(spark, lake)
    measure_curve(spark, lake, sizes=sizes, rate=0.5, policies=["s3-fifo"])
    assert curves(spark, lake) == first
    for rows in first.values():
        assert [row[0] for row in rows] == sizes
        assert all(0 <= miss <= 1 and error is not None and error > 0 for _, miss, _, error in rows)


def test_the_replayed_sample_is_bounded(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_USES", 600)
    found = measure_curve(spark, lake, sizes=[1_000_000], policies=["lru"])
    assert 1 / SPACE < found.rate < 0.5


def test_a_few_tapes_with_very_many_reads_are_all_replayed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_USES", 10)
    lake = lake_of(spark, str(tmp_path / "lake"), [Asked(2 * at, f"/{at % 3}", 0, 50_000) for at in range(90)])
    assert measure_curve(spark, lake, policies=["lru"], sizes=[60_000, 1 << 20]).rate == 1
    (small, large) = curves(spark, lake)["lru"]
    assert (small[1], large[1]) == (1, 3 / 90)
    with pytest.raises(PipelineFailed, match=r"^rate: none of 3 tapes is in a sample of 0\.01%"):
        measure_curve(spark, lake, policies=["lru"], rate=1e-4)


def test_two_gateways_need_the_same_memory_each(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    log = [Asked(2 * n, f"/{name}", 0, size, node="a") for n, (name, size) in enumerate(asked()[:300])]
    twice = log + [Asked(one.at + 1, one.stream, 0, one.high, node="b") for one in log]
    of_one, of_two = (lake_of(spark, str(tmp_path / name), rows) for name, rows in (("one", log), ("two", twice)))
    sizes = [100_000, 400_000, 1_000_000]
    for each in (of_one, of_two):
        measure_curve(spark, each, sizes=sizes, policies=["lru"])
    one, two = curves(spark, of_one), curves(spark, of_two)
    assert one.keys() == two.keys()
    for policy in one:
        for left, right in zip(one[policy], two[policy], strict=True):
            assert left[1:3] == pytest.approx(right[1:3], abs=0.01)


def test_a_log_without_catch_up_reads_gives_an_empty_curve(spark: SparkSession, tmp_path: Path) -> None:
    lake = lake_of(spark, str(tmp_path / "lake"), [Asked(1, "/a", 0, 10, "longpoll")])
    found = measure_curve(spark, lake)
    assert str(found) == "curve: no catch-up reads that tapes have a part in, so no curve"
    assert curves(spark, lake) == {}
    assert measure_curve(spark, Lake(str(tmp_path / "none"))).points == 0


def test_invalid_arguments_are_refused_in_one_line(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    bad: list[dict[str, Any]] = [
        {"rate": 0.0},
        {"rate": 1.1},
        {"sizes": []},
        {"sizes": [0]},
        {"policies": ["lfu"]},
    ]
    for arguments in bad:
        with pytest.raises(PipelineFailed) as told:
            measure_curve(spark, lake, **arguments)
        assert "\n" not in str(told.value)


def test_the_grid_ends_with_room_for_the_working_set_and_all_copies() -> None:
    for working in (1, 1_000, 5 << 20, 3 << 40):
        grid = grid_of(working)
        assert grid == sorted(set(grid))
        assert grid[-1] == pytest.approx(1.6 * working, abs=1)
        assert grid[0] >= 1
