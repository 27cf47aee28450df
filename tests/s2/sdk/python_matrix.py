"""The matrix of PyPI's `s2-sdk`: every call that it has and every option of a call, taken from the SDK itself.

The rows are in `python_rows.py` and `python_control_rows.py`.  The name of a row begins with the call, as in
`S2Stream.read`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import s2_sdk
from s2_sdk import S2, AppendInput, Record, S2Stream

Row = Callable[[S2, S2Stream], Awaitable[None]]

ROWS: dict[str, Row] = {}


def row(name: str) -> Callable[[Row], Row]:
    def add(function: Row) -> Row:
        assert name not in ROWS
        ROWS[name] = function
        return function

    return add


def _is_client(kind: object) -> bool:
    """Whether it is a class that sends requests."""
    return inspect.isclass(kind) and any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member) for member in vars(kind).values()
    )


_CLIENTS: Final = {name: kind for name in s2_sdk.__all__ if _is_client(kind := getattr(s2_sdk, name))}

_LOCAL: Final = {"S2.basin", "S2.close", "S2Basin.name", "S2Basin.stream", "S2Stream.name"}
"""What sends no request of its own; every row uses it."""

CALLS: Final = {
    f"{kind}.{name}" for kind, client in _CLIENTS.items() for name in vars(client) if not name.startswith("_")
} - _LOCAL
"""Every public call of the SDK."""

_VALUES: Final = (
    "AccessTokenScope",
    "AppendInput",
    "BasinConfig",
    "Batching",
    "OperationGroupPermissions",
    "ReadLimit",
    "Record",
    "StreamConfig",
    "Timestamping",
)
"""What calls are given that has options of its own."""


def _options() -> Iterator[str]:
    functions = [vars(client) for client in _CLIENTS.values()] + [
        {name: getattr(s2_sdk, name) for name in _VALUES},
    ]
    for members in functions:
        for name, function in members.items():
            if not name.startswith("_") and (inspect.isfunction(function) or inspect.isclass(function)):
                yield from (f"{name}({option})" for option in _parameters(function))


def _parameters(function: Callable[..., object]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


OPTIONS: Final = set(_options())
"""Every parameter of every call, as in `read(start)`."""


def given_options(*files: str) -> set[str]:
    """The parameters that calls in these files are given."""
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(Path(file).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                found |= {f"{name}({keyword.arg})" for keyword in node.keywords}
                for function in (getattr(kind, name, None) for kind in (s2_sdk, *_CLIENTS.values())):
                    if function is not None:
                        found |= {f"{name}({one})" for one in _parameters(function)[: len(node.args)]}
    return found


async def filled(stream: S2Stream, *bodies: str) -> None:
    """Append a record for each body."""
    await stream.append(AppendInput([Record(body.encode()) for body in bodies]))


def bodies(batch: s2_sdk.ReadBatch) -> list[str]:
    """The bodies of a batch's records."""
    return [record.body.decode() for record in batch.records]
