"""The alert rules, checked by promtool."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from grafana.alerts_page import PAGE, RUNBOOKS, with_runbooks
from tests.debian import program
from tests.grafana.queries import ALERTS, GRAFANA, alerts

CASES = GRAFANA / "rules" / "tests.yml"


def promtool(*arguments: str | Path) -> str:
    """The output of promtool; AssertionError if it reports a fault."""
    tool = program("promtool", "prometheus")
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_configuration_and_the_rules_are_valid() -> None:
    said = promtool("check", "config", GRAFANA / "prometheus.yml")
    assert f"{len(alerts())} rules found" in said


def test_every_alert_waits_fires_and_ignores_healthy_gateways() -> None:
    promtool("test", "rules", CASES)


def test_every_alert_has_a_case_in_which_it_is_silent_waits_and_fires() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    for rule in alerts():
        asked = [test for case in cases for test in case["promql_expr_test"] if f'"{rule["alert"]}"' in test["expr"]]
        expected = "".join(sample["labels"] for test in asked for sample in test["exp_samples"])
        assert any(not test["exp_samples"] for test in asked), rule["alert"]
        assert 'alertstate="pending"' in expected, rule["alert"]
        assert 'alertstate="firing"' in expected, rule["alert"]
        assert 'instance="well"' not in expected, rule["alert"]


def test_every_alert_has_a_severity_and_a_runbook() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert len(rule["annotations"]["runbook"].split()) >= 15
        assert re.fullmatch(r"\d+m", rule["for"])
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
    assert "runbook" in ALERTS.read_text()


def test_every_alert_links_to_its_heading_on_the_operators_page() -> None:
    assert GRAFANA.parent / RUNBOOKS == PAGE
    headings = {line.removeprefix("### ") for line in PAGE.read_text().splitlines() if line.startswith("### ")}
    for rule in alerts():
        assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}#{rule['alert'].lower()}"
        assert rule["alert"] in headings


def test_the_url_of_the_published_page_can_be_set() -> None:
    elsewhere = with_runbooks(ALERTS.read_text(), "https://docs.test/operating/")
    rules = yaml.safe_load(elsewhere)["groups"][0]["rules"]
    assert [rule["annotations"]["runbook_url"] for rule in rules] == [
        f"https://docs.test/operating/#{rule['alert'].lower()}" for rule in alerts()
    ]
    assert with_runbooks(elsewhere) == ALERTS.read_text()
