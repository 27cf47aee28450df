"""The merged metrics of several workers."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge, histogram
from gateway.ops.figures import Histogram
from gateway.ops.gathering.ended_counts import EndedCounts
from gateway.ops.gathering.families import (
    AT_EVERY_WORKER,
    GAUGES,
    merge_families,
    raw_family,
    read_families,
)
from gateway.ops.gathering.worker_families import worker_families
from reference_pages.metrics import every_family


def values(families: list[Metric]) -> dict[str, float]:
    return {
        f"{sample.name}{''.join(sorted(sample.labels.values()))}": sample.value
        for family in families
        for sample in family.samples
    }


def merged(*workers: list[Metric]) -> list[Metric]:
    """The merged families, after their way between workers."""
    return list(merge_families(read_families(orjson.dumps(list(map(raw_family, one)))) for one in workers))


def connections(n: float) -> Metric:
    return gauge("durable_gateway_connections", "text", (), [((), n)])


def requests(**counts: float) -> Metric:
    return counter("durable_gateway_requests", "text", ("route",), [((route,), n) for route, n in counts.items()])


def delays(*seconds: float, trace: str = "") -> Metric:
    spread = Histogram((0.1, 1.0))
    for number, one in enumerate(seconds):
        if trace:
            spread.observe_traced(one, trace, 100.0 + number)
        else:
            spread.observe(one)
    return histogram("durable_gateway_delay_seconds", "text", (), [((), spread)])


def test_each_gauge_says_how_it_is_merged() -> None:
    alone = {"durable_gateway_worker_up", "durable_gateway_worker_connections", "durable_gateway_worker_resident_bytes"}
    families = [family for family in every_family() if family.name not in alone]
    assert {one.name for one in families if one.type == "gauge"} == set(GAUGES)
    assert {one.name for one in families if one.type == "counter"} >= AT_EVERY_WORKER


def test_counters_are_summed_by_their_labels() -> None:
    assert values(merged([requests(a=1, b=2)], [requests(b=3, c=4)])) == {
        "durable_gateway_requests_totala": 1,
        "durable_gateway_requests_totalb": 5,
        "durable_gateway_requests_totalc": 4,
    }


def test_histograms_are_summed_and_keep_the_latest_exemplar() -> None:
    families = merged([delays(0.05, 0.5, trace="a" * 32)], [delays(0.05, 0.06, 5, trace="b" * 32)])
    found = values(families)
    assert found["durable_gateway_delay_seconds_bucket0.1"] == 3
    assert found["durable_gateway_delay_seconds_bucket1.0"] == 4
    assert found["durable_gateway_delay_seconds_count"] == 5
    first = families[0].samples[0]
    assert first.exemplar is not None
    assert (first.exemplar.labels, first.exemplar.timestamp) == ({"trace_id": "b" * 32}, 101.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("durable_gateway_connections", 5),
        ("durable_gateway_ready", 0),
        ("durable_gateway_lag_most_bytes", 3),
        ("durable_gateway_upstream_connection_mean_seconds", 2.5),
    ],
)
def test_a_gauge_is_merged_by_its_rule(name: str, expected: float) -> None:
    workers = [[gauge(name, "text", (), [((), n)])] for n in (2, 0, 3)]
    assert [sample.value for sample in merged(*workers)[0].samples] == [expected]


def test_a_reload_of_all_workers_counts_once() -> None:
    one = counter("durable_gateway_reloads", "text", ("result",), [(("taken",), 1)])
    assert list(values(merged([one], [one], [one])).values()) == [1]


def test_a_family_of_one_worker_is_shown_unchanged() -> None:
    families = [connections(3), requests(a=1), delays(0.05, trace="c" * 32)]
    found = merged(families)
    assert [(one.name, one.documentation, one.type, one.samples) for one in found] == [
        (one.name, one.documentation, one.type, one.samples) for one in families
    ]


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b'[["a", "b", "gauge"]]'])
def test_what_are_no_families_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_families(text)


async def test_the_counters_of_a_dead_worker_stay(tmp_path: Path) -> None:
    async def shown(counts: EndedCounts, *families: Metric) -> dict[str, float]:
        return values(list(merge_families([read_families(await counts.collect(families))])))

    await shown(EndedCounts(str(tmp_path), 1), connections(7), requests(a=5, b=1))
    other = EndedCounts(str(tmp_path), 0)
    assert values(list(merge_families([other.of_slot(1)]))) == {
        "durable_gateway_requests_totala": 5,
        "durable_gateway_requests_totalb": 1,
    }
    second = EndedCounts(str(tmp_path), 1)
    assert await shown(second, connections(1), requests(a=2)) == {
        "durable_gateway_connections": 1,
        "durable_gateway_requests_totala": 7,
        "durable_gateway_requests_totalb": 1,
    }
    assert await shown(EndedCounts(str(tmp_path), 1), connections(2)) == {
        "durable_gateway_connections": 2,
        "durable_gateway_requests_totala": 7,
        "durable_gateway_requests_totalb": 1,
    }
    assert (await shown(EndedCounts(str(tmp_path), 1), requests(a=1)))["durable_gateway_requests_totala"] == 8


def test_an_unreadable_file_of_counters_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "counts-0.json").write_text("no JSON")
    assert EndedCounts(str(tmp_path), 0).of_slot(0) == []


def test_some_figures_are_shown_for_each_worker() -> None:
    families = {0: [raw_family(connections(4))], 2: [raw_family(connections(1))]}
    found = values(list(worker_families(families, {0: 1, 1: None, 2: 3})))
    assert found == {
        "durable_gateway_worker_up0": 1,
        "durable_gateway_worker_up1": 0,
        "durable_gateway_worker_up2": 1,
        "durable_gateway_worker_starts_total0": 1,
        "durable_gateway_worker_starts_total2": 3,
        "durable_gateway_worker_connections0": 4,
        "durable_gateway_worker_connections2": 1,
    }
