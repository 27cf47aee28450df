from __future__ import annotations

import pytest

from loadtest.bench.figures import GATEWAY, Relation, Row, Sample, Target


def row(*targets: Target, gateway: float | None = None, nginx: float | None = None) -> Row:
    made = Row("key", "title", "unit", targets)
    for peer, value in ((GATEWAY, gateway), ("nginx", nginx)):
        if value is not None:
            made.add(peer, Sample(value))
    return made


def test_a_peers_figure_is_the_median_of_its_rounds() -> None:
    made = row()
    for value in (5.0, 100.0, 6.0):
        made.add(GATEWAY, Sample(value))
    assert made.median_of(GATEWAY) == 6.0
    assert made.median_of("nginx") is None


@pytest.mark.parametrize(
    ("target", "gateway", "is_reached"),
    [
        (Target(Relation.AT_LEAST_TIMES, 1.7, "nginx"), 170.0, True),
        (Target(Relation.AT_LEAST_TIMES, 1.7, "nginx"), 169.0, False),
        (Target(Relation.AT_MOST_TIMES, 1.2, "nginx"), 120.0, True),
        (Target(Relation.AT_MOST_TIMES, 1.2, "nginx"), 121.0, False),
        (Target(Relation.BELOW, reference="nginx"), 99.0, True),
        (Target(Relation.BELOW, reference="nginx"), 100.0, False),
        (Target(Relation.AT_MOST_ABOVE, 0.5, "nginx"), 100.5, True),
        (Target(Relation.AT_MOST_ABOVE, 0.5, "nginx"), 100.6, False),
        (Target(Relation.AT_MOST, 2_560), 2_560.0, True),
        (Target(Relation.AT_MOST, 2_560), 2_561.0, False),
    ],
)
def test_targets_hold_up_to_their_value(target: Target, gateway: float, is_reached: bool) -> None:
    assert target.is_reached(row(gateway=gateway, nginx=100.0)) is is_reached


def test_a_target_without_both_figures_is_not_judged() -> None:
    target = Target(Relation.AT_LEAST_TIMES, 1.7, "nginx")
    assert target.is_reached(row(gateway=1.0)) is None
    assert target.is_reached(row(nginx=1.0)) is None


def test_every_target_has_a_text() -> None:
    assert [Target(relation, 1.5, "nginx").text() for relation in Relation] == [
        "≥ 1.5 x nginx",
        "≤ 1.5 x nginx",
        "< nginx",
        "≤ nginx + 1.5",
        "cpu ≤ 1.5 x nginx",
        "≤ 1.5",
    ]


def test_processor_time_does_not_mind_who_else_used_the_core() -> None:
    target = Target(Relation.AT_MOST_CPU, 0.7, "nginx")
    made = row(target)
    assert target.is_reached(made) is None
    made.add(GATEWAY, Sample(50.0, busy=0.5, foreign=0.5, cpu_us=10_000.0))
    assert target.is_reached(made) is None
    made.add("nginx", Sample(60.0, busy=1.0, foreign=0.0, cpu_us=16_000.0))
    assert made.cpu_us_of(GATEWAY) == 10_000.0
    assert made.ratio_to("nginx") == pytest.approx(5 / 6)
    assert made.cpu_ratio_to("nginx") == pytest.approx(10 / 16)
    assert target.is_reached(made) is True
    assert Target(Relation.AT_MOST_CPU, 0.6, "nginx").is_reached(made) is False


def test_a_figure_without_processor_time_has_none_to_compare() -> None:
    made = row(gateway=1.0, nginx=2.0)
    assert made.cpu_us_of(GATEWAY) is None
    assert made.cpu_ratio_to("nginx") is None


def test_the_load_was_the_limit_where_the_servers_core_had_time_left() -> None:
    made = row()
    made.add(GATEWAY, Sample(50.0, busy=0.5, foreign=0.45))
    made.add("nginx", Sample(60.0, busy=0.5, foreign=0.1))
    made.add("bare", Sample(60.0))
    assert not made.is_load_bound(GATEWAY)
    assert made.is_load_bound("nginx")
    assert not made.is_load_bound("bare")


def test_a_target_may_judge_another_peer_than_the_gateway() -> None:
    target = Target(Relation.AT_MOST_CPU, 1.3, "nginx", of="varnish")
    made = row(target)
    made.add("nginx", Sample(1.0, cpu_us=10.0))
    made.add("varnish", Sample(1.0, cpu_us=14.0))
    assert target.shown_at == "varnish"
    assert target.is_reached(made) is False
