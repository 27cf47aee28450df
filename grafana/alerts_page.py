"""The operator's page: its table of alerts is written from the rules, so that the two say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

_ROOT: Final = Path(__file__).parent.parent
PAGE: Final = _ROOT / "docs" / "operating.md"
RULES: Final = _ROOT / "grafana" / "rules" / "alerts.yml"
_BEGIN: Final = "<!-- alerts -->\n"
_END: Final = "<!-- /alerts -->"


def with_alerts(page: str) -> str:
    """The page with its table as the rules have it."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{_table()}{_END}{after}"


def _table() -> str:
    rules: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    rows = ["| alert | for | wakes | what it means, what to do |", "|---|---|---|---|"]
    for rule in rules:
        runbook = " ".join(rule["annotations"]["runbook"].split())
        rows.append(f"| `{rule['alert']}` | {rule['for']} | {rule['labels']['severity']} | {runbook} |")
    return "\n".join(rows) + "\n"
