"""Cache plans for gateways under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

SAMPLE: Final = Path(__file__).parents[1] / "config" / "cache-plan.json"
MIB: Final = 1 << 20


def entry(stream: str, size: int = 1_000, **more: Any) -> dict[str, Any]:
    """A wish for one stream."""
    return {"route": "default", "stream": stream, "bytes": size, "reason": "so", **more}


class PlanFile:
    """A plan on disk: the sample's figures, and the lists that a test asks for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(
        self, *, cache_bytes: int = 64 * MIB, made_from: dict[str, Any] | None = None, **lists: list[dict[str, Any]]
    ) -> None:
        plan = json.loads(SAMPLE.read_bytes()) | {"pin": [], "warm": [], "do_not_store": [], "lifetimes": []} | lists
        plan["memory"]["cache_bytes"] = cache_bytes
        plan["made_from"] |= made_from or {}
        self.path.write_text(json.dumps(plan), encoding="utf-8")
