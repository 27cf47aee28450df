"""The tables of bounds and the threat model say what is so: defaults, metrics and tests."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gateway.config.limits import LimitsConfig
from gateway.config.routes import RouteConfig
from gateway.ops.limit_figures import LimitFigures
from reference_pages.configuration import configuration

HOME = Path(__file__).parents[2]
BOUNDS = (HOME / "docs" / "reference" / "bounds.md").read_text()
SECURITY = (HOME / "docs" / "security.md").read_text()
LIMITS_GUIDE = (HOME / "docs" / "guides" / "limits.md").read_text()
HARMLESS = {
    f"limits.{name}"
    for name in (
        "client_v4_bits",
        "client_v6_bits",
        "compress_cache_bytes",
        "compress_min_bytes",
        "eviction",
        "keepalive_timeout_s",
        "max_flight_bytes",
        "max_reply_bytes",
    )
}
"""Limits that neither delay nor refuse a request, nor cut a client off that waits for something."""

METRICS = (HOME / "docs" / "reference" / "metrics.md").read_text()
DEFAULTS = dict(re.findall(r"^\| `([\w.]+)` \| `?\"?([^|]*?)\"?`? \|", configuration(), re.MULTILINE))
"""Each configuration key and its default, as the reference has them."""


class Bound(NamedTuple):
    name: str
    default: str
    consequence: str
    metric: str
    test: str


def bounds() -> Iterator[Bound]:
    for line in BOUNDS.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "bound":
            yield Bound(*cells)


KEYS = {bound.name.strip("`"): bound for bound in bounds() if re.fullmatch(r"`\w+\.\w+`", bound.name)}
CONSTANTS = [bound for bound in bounds() if ".py:" in bound.default]


def test_every_limit_is_on_the_page() -> None:
    wanted = {f"limits.{name}" for name in LimitsConfig.model_fields}
    assert wanted - KEYS.keys() == set()


def test_every_limit_that_delays_or_refuses_has_a_count_and_is_in_the_guide() -> None:
    """An operator looks at metrics first, and at the guide next."""
    keys = {f"limits.{name}" for name in LimitsConfig.model_fields} - HARMLESS
    assert {key for key in keys if KEYS[key].metric == "–"} == set()
    named = {f"limits.{name}" for name in re.findall(r"`(?:limits\.)?(\w+)`", LIMITS_GUIDE)}
    assert keys - named == set()


def test_every_label_of_a_limit_is_a_key() -> None:
    labels = LimitFigures().client_limited.keys()
    assert labels - (LimitsConfig.model_fields.keys() | RouteConfig.model_fields.keys()) == set()
    assert {label for label in labels if f"`{label}`" not in LIMITS_GUIDE and f".{label}`" not in LIMITS_GUIDE} == set()


@pytest.mark.parametrize("key", KEYS)
def test_a_key_has_its_true_default(key: str) -> None:
    assert KEYS[key].default == f"`{DEFAULTS[key]}`"


@pytest.mark.parametrize("bound", CONSTANTS, ids=lambda bound: bound.name)
def test_a_constant_has_its_true_value(bound: Bound) -> None:
    found = re.fullmatch(r"`(gateway/[\w/]+)\.py:(\w+)`(?: = ([\d.]+))?", bound.default)
    assert found is not None, bound.default
    value = getattr(importlib.import_module(found[1].replace("/", ".")), found[2])
    if found[3] is not None:
        assert str(value) == found[3]


def test_every_metric_exists() -> None:
    named = set(re.findall(r"`(durable_gateway_\w+)`", BOUNDS + SECURITY))
    assert named
    assert [name for name in named if f"| `{name}` |" not in METRICS] == []


def test_every_bound_has_all_its_cells() -> None:
    assert [bound.name for bound in bounds() if not all(bound)] == []


@pytest.mark.parametrize("page", ["docs/reference/bounds.md", "docs/security.md"])
def test_every_test_exists(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (HOME / page).read_text())
    assert len(named) > 20
    assert [test for test in named if not _exists(*test)] == []


def _exists(path: str, name: str) -> bool:
    file = HOME / path
    return file.is_file() and (not name or re.search(rf"\bdef {name}\(", file.read_text()) is not None)
