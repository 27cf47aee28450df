"""Links the operator's page and the alert rules: the page describes each alert under a heading, and the alert's
`runbook_url` leads to that heading.  Both are generated from the rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

_ROOT: Final = Path(__file__).parent.parent
PAGE: Final = _ROOT / "docs" / "operating.md"
RULES: Final = _ROOT / "grafana" / "rules" / "alerts.yml"
RUNBOOKS: Final = "docs/operating.md"
"""The default place of the page: its path in the repository, so that no host is assumed."""
_BEGIN: Final = "<!-- alerts -->\n"
_END: Final = "<!-- /alerts -->"
_ALERT: Final = "      - alert: "
_SUMMARY: Final = "          summary: "
_RUNBOOK_URL: Final = "          runbook_url: "


def with_alerts(page: str) -> str:
    """The page with its section of alerts generated from the rules."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{_alerts()}{_END}{after}"


def with_runbooks(rules: str, base: str = RUNBOOKS) -> str:
    """The rules with each alert's `runbook_url`; `base` is the URL or the path of the page, without a fragment."""
    lines: list[str] = []
    anchor = ""
    for line in rules.splitlines(keepends=True):
        if line.startswith(_ALERT):
            anchor = _anchor(line.removeprefix(_ALERT).strip())
        if line.startswith(_RUNBOOK_URL):
            continue
        lines.append(line)
        if line.startswith(_SUMMARY):
            lines.append(f'{_RUNBOOK_URL}"{base}#{anchor}"\n')
    return "".join(lines)


def _anchor(alert: str) -> str:
    """The anchor of a heading, as Markdown renderers make it."""
    return alert.lower()


def _alerts() -> str:
    rules: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    table = ["| alert | for | wakes |", "|---|---|---|"]
    sections = []
    for rule in rules:
        name, runbook = rule["alert"], " ".join(rule["annotations"]["runbook"].split())
        table.append(f"| [`{name}`](#{_anchor(name)}) | {rule['for']} | {rule['labels']['severity']} |")
        sections.append(f"### {name}\n\n{runbook}\n")
    return "\n".join(table) + "\n\n" + "\n".join(sections) + "\n"
