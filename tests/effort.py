"""How much a run of the tests tries: `make test` the short form, `make test-long` the long one.

The assertions are the same.  What differs is how many examples a property is given, how large a load is, how many of
the made traces a simulation plays and how long they are, which pairs of two parameters are tried, how many messages the
exactly-once proofs of Spark's source and sink take and how many drivers are killed in them, whether the pipeline runs
on a cluster of Spark's own, whether Spark Connect has a Java of its own, and whether the protocol's conformance suite
runs against the in-memory origin alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final, TypeVar

T = TypeVar("T")

IS_LONG: Final = bool(os.environ.get("LONG_TESTS"))


def examples(short: int, long: int) -> int:
    """How many examples Hypothesis makes of a property, or how many clients, requests or bytes a load has."""
    return long if IS_LONG else short


def some(short: Sequence[T], long: Sequence[T]) -> Sequence[T]:
    """The cases that are played."""
    return long if IS_LONG else short
