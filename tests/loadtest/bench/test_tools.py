from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import tools
from loadtest.bench.machine import BenchError


def test_what_cannot_be_had_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_PACKAGES", {"no-such-tool": "no-such-package and-another"})
    monkeypatch.setattr(tools, "_SECURE_PACKAGES", {})
    monkeypatch.setattr("os.geteuid", lambda: 1_000)
    with pytest.raises(BenchError, match=r"^not found: no-such-tool; Debian has .*: no-such-package and-another$"):
        tools.prepare(tmp_path)
