"""A reply's fields on their way to a client, with their lines.

To render many fields takes longer than to parse them.  So the lines that many replies have in common are rendered once
(`gateway.http.reply_lines.ReplyShape`), and a reply's own lines are added to their end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from multidict import CIMultiDict

from gateway.http.reply_lines import FieldLine

_CHANGES: Final = (
    "__delitem__",
    "__setitem__",
    "clear",
    "extend",
    "pop",
    "popall",
    "popitem",
    "popone",
    "setdefault",
    "update",
)
"""The changes, other than `add`, that a `CIMultiDict` has."""


class PassedFields(CIMultiDict[str]):
    """Fields of which all lines are known in bytes, until one of them is changed."""

    __slots__ = ("lines",)

    lines: bytes | None
    """The field lines, each with its line end; None if they must be rendered and checked."""

    @classmethod
    def of(cls, shared: CIMultiDict[str], lines: bytes, own: Iterable[FieldLine]) -> PassedFields:
        """Fields whose valid lines are `lines`, with more of them."""
        passed = cls(shared)
        for line in own:
            CIMultiDict.add(passed, line.name, line.value)
            lines += line.rendered
        passed.lines = lines
        return passed

    def add(self, key: str, value: str) -> None:
        """Add a field behind the others."""
        super().add(key, value)
        if self.lines is not None:
            line = _line(key, value)
            self.lines = None if line is None else self.lines + line


def _forgetting(name: str) -> Callable[..., Any]:
    change = getattr(CIMultiDict, name)

    def changed(self: PassedFields, *args: Any, **kwargs: Any) -> Any:
        self.lines = None
        return change(self, *args, **kwargs)

    return changed


for _name in _CHANGES:
    setattr(PassedFields, _name, _forgetting(_name))


@lru_cache(256)
def _line(name: str, value: str) -> bytes | None:
    """A field line; None if it would not be one line."""
    line = f"{name}: {value}"
    return None if "\n" in line or "\r" in line else f"{line}\r\n".encode("utf-8", "surrogateescape")
