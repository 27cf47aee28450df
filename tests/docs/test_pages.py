"""The pages say what is so: generated parts, the lines that `dev` prints, and the figures of the runs that are kept."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from gateway.commands.dev_lines import lines_to_paste
from loadtest.bench.readme import headlines, tables
from loadtest.plan_demo.result import table
from reference_pages.__main__ import FOLDER, PARTS, PICTURE, drifted, wanted
from reference_pages.configuration import configuration
from reference_pages.layers import layers
from reference_pages.part import NoSuchPart, with_part
from tests.offload import readme as offload

HOME = Path(__file__).parents[2]
README = (HOME / "README.md").read_text()
PERFORMANCE = (HOME / "docs" / "performance.md").read_text()
MOST_README_LINES = 230


# -- generated parts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PARTS)
def test_a_reference_page_matches_the_code(page: str) -> None:
    assert (FOLDER / page).read_text() == wanted(page), "run make reference"


def test_the_reference_lists_every_configuration_key() -> None:
    assert configuration() in (FOLDER / "configuration.md").read_text()


def test_a_page_that_was_changed_by_hand_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference_pages.__main__.FOLDER", tmp_path)
    parts = {name: PARTS[name] for name in ("configuration.md", "metrics.md")}
    monkeypatch.setattr("reference_pages.__main__.PARTS", parts)
    for page, (name, make) in parts.items():
        (tmp_path / page).write_text(f"# A page\n<!-- {name} -->\n{make()}<!-- /{name} -->\n")
    assert drifted() == []
    changed = tmp_path / "metrics.md"
    changed.write_text(changed.read_text().replace("gauge", "gouge"))
    assert drifted() == ["metrics.md"]


def test_only_the_text_between_the_marks_is_replaced() -> None:
    page = "before\n<!-- a -->\nold\n<!-- /a -->\nafter <!-- b -->\n"
    assert with_part(page, "a", "new\n") == "before\n<!-- a -->\nnew\n<!-- /a -->\nafter <!-- b -->\n"
    for name in ("b", "c"):
        with pytest.raises(NoSuchPart):
            with_part(page, name, "new\n")


# -- the README --------------------------------------------------------------------------------------------------------


def test_the_readme_shows_the_lines_that_dev_prints() -> None:
    for comment, line in lines_to_paste("http://127.0.0.1:4437"):
        assert f"# {comment}\n{line}\n" in README


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len(README.splitlines()) <= MOST_README_LINES


# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_pages_show_the_figures_of_the_run_that_is_kept() -> None:
    kept = orjson.loads((HOME / "docs" / "bench.json").read_bytes())
    assert f"<!-- bench -->\n{tables(kept)}<!-- /bench -->" in PERFORMANCE
    for page in (README, PERFORMANCE):
        assert f"<!-- headlines -->\n{headlines(kept)}<!-- /headlines -->" in page


def test_the_readme_shows_the_origins_counters_as_they_were_kept() -> None:
    kept = orjson.loads((HOME / "docs" / "offload.json").read_bytes())
    assert f"<!-- offload -->\n{offload.headlines(kept)}<!-- /offload -->" in README
    assert f"<!-- offload -->\n{offload.table(kept)}<!-- /offload -->" in PERFORMANCE
    for part, shown in (("offload-workers", "four workers"), ("offload-fleet", "four members")):
        others = orjson.loads((HOME / "docs" / f"{part}.json").read_bytes())
        assert f"<!-- {part} -->\n{offload.compared(kept, others, shown)}<!-- /{part} -->" in PERFORMANCE


@pytest.mark.parametrize("page", ["docs/guides/cache-plan.md", "docs/guides/pipeline.md"])
def test_the_pages_show_the_result_of_the_experiment(page: str) -> None:
    figures = table(orjson.loads((HOME / "docs" / "plan-demo.json").read_bytes()))
    assert f"<!-- demo -->\n{figures}<!-- /demo -->" in (HOME / page).read_text()


# -- the architecture --------------------------------------------------------------------------------------------------


def test_the_picture_of_the_layers_matches_the_contract() -> None:
    assert PICTURE.read_text() == layers(), "run make reference"


def test_the_architecture_names_files_that_exist_and_every_package() -> None:
    page = (HOME / "docs" / "architecture.md").read_text()
    files = re.findall(r"`(?:gateway/)?([a-z0-9_/]+\.py)`", page)
    assert len(files) > 20
    assert [file for file in files if not (HOME / "gateway" / file).is_file()] == []
    packages = [path.parent.name for path in (HOME / "gateway").glob("*/__init__.py")]
    assert [name for name in packages if f"| `gateway/{name}/` |" not in page] == []
