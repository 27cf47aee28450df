"""The report's sentences about figures and problems."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from gateway.config.cache_plan import CachePlan, parse_plan
from gateway.pipeline.report.curve_panels import plan
from gateway.pipeline.report.figures import Figures, Found, Percentiles, Row, Share
from gateway.pipeline.report.findings import PANELS, advice_for, in_its_unit
from gateway.pipeline.report.headlines import Headline, headlines
from gateway.pipeline.report.panel import Content, shortened
from gateway.pipeline.report.panels import WHO_PANELS, fan_out
from tests.pipeline.report import made_gold


def of(
    *,
    spared: int | None = 93,
    asked: int = 7,
    sent: int = 0,
    read: int | None = None,
    fetched: int = 0,
    looked: int = 0,
) -> Figures:
    """Figures of 100 reads, of which so many caused no request; of bytes sent, and read before compression."""
    shares = {
        "spared": Share(spared, 100),
        "asked": Share(asked, 100),
        "looked": Share(looked, 80),
        "delivered": Share(sent if read is None else read, fetched),
        "sent": Share(sent),
        "errors": Share(None, 100),
        "followed": Share(),
    }
    return Figures(requests=100, shares=shares)


def error(status: int, outcome: str, route: str = "default") -> Row:
    return {"route": route, "mode": "catchup", "status": status, "outcome": outcome, "requests": 1, "last": 0}


def found(name: str, *rows: Row) -> Content:
    """What is said of one kind of problem."""
    (panel,) = [one for one in PANELS if one.name == name]
    said = panel.make(Figures(found={name: Found(rows, len(rows))}))
    assert said is not None
    return said


def planned(figures: Figures) -> Content:
    said = plan(figures)
    assert said is not None
    return said


def made(**changes: object) -> CachePlan:
    return parse_plan(json.dumps({**made_gold.PLAN, **changes}).encode())


def test_the_headlines_say_what_the_origin_was_spared() -> None:
    said = list(headlines(of(asked=12, sent=1_080_000, fetched=100_000)))
    assert said[0] == Headline(
        "93 %", "of reads caused no request at the origin", "93 of 100 reads; 12.0 requests to it for each 100 reads"
    )
    assert said[1].figure == "10.8 ×"
    assert said[1].says == "was every byte from the origin delivered"
    (_, coded, *_) = headlines(of(sent=80_000, read=1_080_000, fetched=100_000))
    assert coded == replace(said[1], made_of="it sent 97.7 KiB, readers got 1.0 MiB (78.1 KiB as it was sent)")


def test_an_origin_that_does_more_than_readers_ask_for_is_not_called_a_saving() -> None:
    said = list(headlines(of(spared=60, asked=130, sent=100_000, fetched=150_000)))
    assert (said[0].figure, said[0].made_of) == ("60 %", "60 of 100 reads; 130 requests to it for each 100 reads")
    assert (said[1].figure, said[1].says) == ("1.50 ×", "what readers got was sent by the origin")


def test_what_is_not_known_is_not_said() -> None:
    (first, *_) = headlines(of(spared=None, asked=12))
    assert first == Headline("0.12", "requests to the origin for each read", "100 reads, 12 requests")


def test_reads_that_needed_a_look_are_told_from_those_that_did_not() -> None:
    said = list(headlines(of(looked=20)))
    assert said[1] == Headline(
        "25 %", "of catch-up reads were in memory, and the origin was asked for the tail", "20 of 80 catch-up reads"
    )


def test_an_origin_that_had_nothing_to_send() -> None:
    said = list(headlines(of(spared=100, asked=0, sent=100_000)))
    assert [one.figure for one in said] == ["100 %", "0 B", "0 %"]


def test_remembered_answers_are_described_by_the_slowest() -> None:
    ready = replace(of(), first_byte_all=Percentiles(900, 0.0, 0.001, 0.02))
    (said,) = [one for one in headlines(ready) if "catch-up" in one.says]
    assert said == Headline(
        "20 ms", "99 % of catch-up reads began to be answered within this time", "half of 900 at once"
    )


def test_a_delivery_is_that_of_a_long_poll() -> None:
    # One append may wake many long-polls, and each of them counts.
    woken = replace(of(), delivery_all=Percentiles(900, 0.002, 0.001, 0.02))
    (said,) = [one for one in headlines(woken) if "append" in one.says]
    assert said.says == "half of long-polls were answered within this time of the append that woke them"
    assert said.made_of == "99 % within 20 ms, of 900"


def test_the_shares_of_fan_out_are_told_apart_in_the_numbers(figures: Figures) -> None:
    said = fan_out(figures)
    assert said is not None
    heads = [column.head for column in said.columns]
    assert len(set(heads)) == len(heads)
    assert "of 97,998 live and 10,546 catch-up reads" in said.says


def test_a_list_of_routes_counts_those_that_it_shows(figures: Figures) -> None:
    many = replace(figures, routes=figures.routes * 7)
    (routes,) = [one for one in WHO_PANELS if one.name == "routes"]
    said = routes.make(many)
    assert said is not None
    assert said.says == "12 of 21 routes, the busiest first."
    assert len(said.rows) == 21


def test_no_traffic_gives_no_headlines() -> None:
    assert list(headlines(Figures())) == []
    assert all(one.make(Figures()) is None for one in PANELS)


@pytest.mark.parametrize(
    ("status", "outcome", "word"),
    [
        (502, "failed", "could not be reached"),
        (504, "failed", "too slow"),
        (503, "failed", "Retry-After"),
        (503, "refused", "Retry-After"),
        (0, "aborted", "dropped"),
        (400, "refused", "400"),
        (401, "pass", "credentials"),
        (404, "refused", "not there"),
        (409, "pass", "contradict"),
        (410, "pass", "no longer keeps"),
        (413, "refused", "larger"),
        (429, "pass", "limit"),
        (418, "pass", "418"),
    ],
)
def test_every_error_has_advice(status: int, outcome: str, word: str) -> None:
    assert word in advice_for(error(status, outcome))


def test_advice_is_not_given_twice() -> None:
    errors = found("errors", *(error(404, "refused", route) for route in ("one", "other")))
    assert errors.badge == "2"
    assert str(errors.body).count("<li>") == 2
    assert str(errors.body).count("<p>") == 1


def test_a_storm_without_an_hour_before_has_no_usual() -> None:
    storm = {"began": 1_795_000_000, "route": "default", "reconnects": 900, "readers": 800, "usual": None}
    said = found("storms", storm).body
    assert (
        "<li>2026-11-18 11:06, <bdi><code>default</code></bdi>: <b>900 reconnects</b> by 800 readers in a minute</li>"
    ) in str(said)


def test_measures_are_shown_in_their_units() -> None:
    assert [in_its_unit(name, 0.5) for name in ("hit_ratio", "sent_bytes", "errors")] == ["50 %", "0 B", "0.5"]


def test_long_names_keep_both_ends() -> None:
    assert shortened("a" * 50 + "b" * 50, 10) == "aaaaa…bbbbb"
    assert shortened("short", 10) == "short"


@pytest.mark.parametrize(
    ("target", "word"), [(0.85, "Asked for were 85 % of the reads."), (0.95, "nothing better was found")]
)
def test_a_plan_says_whether_it_reaches_its_target(target: float, word: str) -> None:
    said = planned(Figures(plan=made(target_hit_ratio=target)))
    assert said.note == "The first of each kind: 6 of 8 entries."
    assert re.findall('class="wish">([^<]+)<', str(said.body)) == ["Keep"] * 5 + ["Do not store"]
    assert word in str(said.body)


def test_a_plan_says_that_it_is_short_and_what_a_hit_does_not_spare() -> None:
    said = str(planned(Figures(plan=made(), shares={"looked": Share(617, 1_000)})).body)
    assert "made from 7 h of traffic, and is marked as short" in said
    assert "take_short_memory" in said
    assert "without the origin" not in said
    assert "asked that before 61.7 % of catch-up reads were answered from memory" in said
    of_a_day = made(made_from={**made_gold.PLAN["made_from"], "is_short": False})
    assert "short" not in str(planned(Figures(plan=of_a_day)).body)
