"""Gateways with one fault each: what a harness is worth is how many of these it sees.

A mutant replaces named functions for as long as a run lasts.  Each breaks one promise of the design, and says which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

Patches = list[tuple[object, str, Any]]
"""Owner, name and what takes its place."""


@dataclass(frozen=True)
class Mutant:
    """A fault, the promise that it breaks, and what it replaces."""

    name: str
    breaks: str
    patches: Callable[[], Patches]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have the gateway be this one inside the block."""
        with ExitStack() as stack:
            for owner, name, value in self.patches():
                stack.enter_context(patch.object(owner, name, value))
            yield


def registrar(mutants: list[Mutant]) -> Callable[[str], Callable[[Callable[[], Patches]], Callable[[], Patches]]]:
    """A decorator that puts a function of patches among the mutants, under its own name."""

    def mutant(breaks: str) -> Callable[[Callable[[], Patches]], Callable[[], Patches]]:
        def add(patches: Callable[[], Patches]) -> Callable[[], Patches]:
            mutants.append(Mutant(patches.__name__.replace("_", "-"), breaks, patches))
            return patches

        return add

    return mutant


def nothing(*_: Any, **__: Any) -> None:
    """What a function does that is left out."""


def always(*_: Any) -> bool:
    """The result of a check that passes everything."""
    return True


def never(*_: Any) -> bool:
    """What a check says that is left out."""
    return False
