"""The README says what is so: every configuration key with its default, and the lines that `dev` prints."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from pydantic import SecretStr
from pydantic_core import PydanticUndefined

from gateway.commands.dev_lines import lines_to_paste
from gateway.config.file import every_field
from gateway.config.values import format_bytes
from loadtest.bench.readme import tables
from loadtest.plan_demo.result import table
from tests.offload import readme as offload

HOME = Path(__file__).parent.parent
README = (HOME / "README.md").read_text()


def configuration_table() -> str:
    """The README's table of keys, from the models."""
    rows = ["| key | default | meaning |", "|---|---|---|"]
    for section, name, model in every_field():
        field = model.model_fields[name]
        default = "required" if field.default is PydanticUndefined else f"`{_spelled(name, field.default)}`"
        rows.append(f"| `{section}.{name}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


def _spelled(name: str, value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes") and isinstance(value, int):
        return f'"{format_bytes(value)}"'
    if isinstance(value, str | SecretStr):
        return f'"{value}"'
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return str(value)


def test_the_readme_lists_every_configuration_key() -> None:
    assert configuration_table() in README


def test_the_readme_shows_the_lines_that_dev_prints() -> None:
    for comment, line in lines_to_paste("http://127.0.0.1:4437"):
        assert f"# {comment}\n{line}\n" in README


def test_the_readme_shows_the_figures_of_the_run_that_is_kept() -> None:
    figures = tables(orjson.loads((HOME / "docs" / "bench.json").read_bytes()))
    assert f"<!-- bench -->\n{figures}<!-- /bench -->" in README


def test_the_readme_shows_the_origins_counters_as_they_were_kept() -> None:
    figures = offload.table(orjson.loads((HOME / "docs" / "offload.json").read_bytes()))
    assert f"<!-- offload -->\n{figures}\n" in README


@pytest.mark.parametrize("page", ["README.md", "docs/pipeline.md"])
def test_the_pages_show_what_the_experiment_showed(page: str) -> None:
    figures = table(orjson.loads((HOME / "docs" / "plan-demo.json").read_bytes()))
    assert f"<!-- demo -->\n{figures}<!-- /demo -->" in (HOME / page).read_text()
