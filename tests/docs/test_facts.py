"""Facts that pages repeat: names of metrics and keys, defaults, and the indexes that lead to every page."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from gateway.config.sections import RULES, every_field
from gateway.config.sizes import parse_bytes
from reference_pages.configuration import configuration

HOME = Path(__file__).parents[2]
DOCS = HOME / "docs"
PAGES = [HOME / "README.md", *sorted(DOCS.rglob("*.md"))]

METRIC = re.compile(r"(?<![\w./-])((?:durable_)?gateway_[a-z0-9_]*[a-z0-9])(\*|_\*|\{)?")
NO_METRICS = {"durable_gateway_settings", "durable_gateway_pytest"}
"""A fixture and a module of the pytest plugin."""
FAMILY = re.compile(r"^\| `(durable_gateway_\w+)` \| (\w+) \|", re.MULTILINE)

DEFAULT = re.compile(r"^\| `([\w.]+)` \| `?\"?([^|]*?)\"?`? \|", re.MULTILINE)
QUOTED = re.compile(
    r"`((?:[a-z]+\.)*[a-z0-9]+_[a-z0-9_]+)` \((?:default |of )?`?([\d.,]+) ?(s|ms|KiB|MiB|GiB)?(?: by default)?[`);,]"
)
"""A key and its default in parentheses behind it: `heartbeat_s` (15 s)."""
IN_TABLE = re.compile(
    r"^\| `((?:limits|route)\.\w+)`[^|]*?(?:\||,) `?\"?([\d.,]*\d)(?![\d.,]* ?%) ?(s|KiB|MiB|GiB)?\b", re.MULTILINE
)
"""A row of a table with a key and its default."""
KEY = re.compile(r"`((?:server|limits|origins|cache|cache\.plan|tracing|log|route|listener|rate_limit)\.[a-z0-9_.]+)`")
NO_KEYS = {"cache.plan", "route.cors", "route.origin_tls", "route.origin_credentials", "listener.tls"}
"""Tables."""


def relative(path: Path) -> str:
    return str(path.relative_to(HOME))


def families() -> set[str]:
    """Every name that a query may use."""
    names: set[str] = set()
    for name, kind in FAMILY.findall((DOCS / "reference" / "metrics.md").read_text()):
        names |= {name, *(f"{name}_{part}" for part in ("bucket", "sum", "count") if kind == "histogram")}
        # The help of one family names others without the ending that a query needs.
        names.add(name.removesuffix("_total"))
    return names


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_metric_on_a_page_exists(page: Path) -> None:
    known = families()
    unknown = set()
    for name, more in METRIC.findall(page.read_text()):
        if name in NO_METRICS or name in known:
            continue
        if not (more.endswith("*") and any(one.startswith(name) for one in known)):
            unknown.add(name)
    assert unknown == set()


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_key_on_a_page_exists(page: Path) -> None:
    keys = {f"{section}.{field}" for section, field, _ in every_field()} | NO_KEYS
    keys |= {f"{section}.{field}" for section, model in RULES.items() for field in model.model_fields}
    assert {key for key in KEY.findall(page.read_text()) if key not in keys} == set()


def defaults() -> dict[str, set[float]]:
    """The numbers that are defaults, by key with and without its section."""
    found: defaultdict[str, set[float]] = defaultdict(set)
    for key, text in DEFAULT.findall(configuration()):
        value = number(text)
        if value is not None:
            for name in (key, key.rpartition(".")[2]):
                found[name].add(value)
    return found


def number(text: str, unit: str = "") -> float | None:
    """A number of seconds or bytes; None for other text."""
    try:
        value = parse_bytes(f"{text.replace(',', '')}{unit}") if unit.endswith("iB") or text.endswith("iB") else None
        value = float(text.replace(",", "")) if value is None else value
    except ValueError:
        return None
    return float(value) / (1_000 if unit == "ms" else 1) if isinstance(value, int | float) else None


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_default_that_a_page_quotes_is_so(page: Path) -> None:
    known, wrong = defaults(), []
    content = page.read_text()
    for key, text, unit in (*QUOTED.findall(content), *IN_TABLE.findall(content)):
        if key in known and number(text, unit) not in known[key]:
            wrong.append(f"{key} ({text} {unit}) is {known[key]}")
    assert wrong == []


def test_the_patterns_find_their_facts() -> None:
    texts = [page.read_text() for page in PAGES]
    assert sum(len(QUOTED.findall(text)) + len(IN_TABLE.findall(text)) for text in texts) > 25
    assert sum(len(KEY.findall(text)) for text in texts) > 100
    assert sum(len(METRIC.findall(text)) for text in texts) > 200


@pytest.mark.parametrize("index", ["README.md", "docs/index.md", "mkdocs.yml"])
def test_every_page_is_in_the_indexes(index: str) -> None:
    text = (HOME / index).read_text()
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"}
    if index.endswith(".yml"):
        named = set(re.findall(r"[\w./-]+\.md", str(yaml.safe_load(text)["nav"])))
    else:
        named = {link.removeprefix("docs/") for link in re.findall(r"\]\(([\w./-]+\.md)", text)}
    assert pages - named == set()


def test_usage_lines_have_balanced_brackets() -> None:
    usages = re.findall(r"^durable-gateway .*$", (DOCS / "reference" / "commands.md").read_text(), re.MULTILINE)
    assert len(usages) > 15
    assert [usage for usage in usages if usage.count("[") != usage.count("]") or "[[" in usage] == []
