"""The picture of the gateway's layers, from the contract that import-linter holds."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parent.parent
_PURPOSES: Final = {
    "aio": "clock, tasks, signals",
    "app": "puts it together",
    "cli": "command line, server processes",
    "commands": "clients at the terminal",
    "config": "values and their sources",
    "configured_files": "what the files say",
    "engine": "the life of one request",
    "errors": "what can go wrong",
    "http": "HTTP/1.1 and HTTP/2, no sockets",
    "live": "followers, fan-out",
    "ops": "admin port, metrics, log",
    "origin": "in-memory origin",
    "pipeline": "access logs on Spark",
    "plan": "cache plan",
    "protocol": "Durable Streams on the wire, pure",
    "server": "client connections",
    "tape": "what is remembered",
    "telemetry": "access record, metrics protocol, tracing",
    "upstream": "how origins are asked",
}
"""Descriptions of the modules, shown where there is room."""

_WIDTH, _HEIGHT, _GAP, _MARGIN = 760, 40, 8, 20
_FONT: Final = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
_MOST_EXPLAINED: Final = 3
"""Most boxes in a row that have room for descriptions."""


def layers() -> str:
    """An SVG with a row of boxes for each layer, the highest first; a module imports only from rows below its own."""
    rows = list(_rows())
    height = 2 * _MARGIN + len(rows) * (_HEIGHT + _GAP) - _GAP
    width = _WIDTH + 2 * _MARGIN
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="{_FONT}" font-size="14">',
        "  <title>The modules of gateway in layers: each imports only from layers below its own</title>",
        f'  <rect width="{width}" height="{height}" rx="10" fill="#fbfbf9"/>',
    ]
    for number, row in enumerate(rows):
        lines += _boxes(row, _MARGIN + number * (_HEIGHT + _GAP))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _rows() -> Iterator[list[str]]:
    document = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in document["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers" and contract["containers"] == ["gateway"]:
            yield from ([name.strip() for name in layer.split("|")] for layer in contract["layers"])


def _boxes(row: Sequence[str], y: int) -> Iterator[str]:
    width = (_WIDTH - _GAP * (len(row) - 1)) / len(row)
    for number, name in enumerate(row):
        x = _MARGIN + number * (width + _GAP)
        size = f'width="{width:.0f}" height="{_HEIGHT}" rx="6"'
        yield f'  <rect x="{x:.0f}" y="{y}" {size} fill="#e6eef6" stroke="#8aa0b8"/>'
        purpose = _PURPOSES.get(name, "") if len(row) <= _MOST_EXPLAINED else ""
        said = f'<tspan dx="10" fill="#5a6b85" font-size="12">{purpose}</tspan>' if purpose else ""
        yield (
            f'  <text x="{x + 12:.0f}" y="{y + 25}" fill="#22304a"><tspan font-weight="600">{name}</tspan>{said}</text>'
        )
