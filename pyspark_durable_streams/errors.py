"""The errors of this data source, each with one line of text for the user of the query.

Spark shows the text of an exception from a source or sink in the driver.  The text therefore names the stream, what was
found and what can be done.  It never contains the value of a header.  Spark would show the Python frames with it,
dozens of lines; `in_one_line` and `each_in_one_line` keep these back for the errors of this module, and for no others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

_HIDES_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""Spark's worker looks at this variable when it reports an exception, after which it ends."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class DurableStreamsError(Exception):
    """Any failure of this data source."""


class BadOption(DurableStreamsError, ValueError):
    """An option is unknown, contradicts another, or has an invalid value."""


class Unreachable(DurableStreamsError):
    """No complete answer within the allowed tries and time."""


class Refused(DurableStreamsError):
    """The origin's answer is an error that another try cannot change."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int]]:
        # Errors are pickled on their way from Spark's workers; the default would pass the text alone.
        return type(self), (str(self), self.status)


class BadReply(DurableStreamsError):
    """The answer violates the protocol: no next offset, not a JSON array, or no progress."""


class DataLost(DurableStreamsError):
    """Planned data no longer exists: deleted, expired, re-created, or removed by retention."""


class BadRow(DurableStreamsError, ValueError):
    """A row cannot become a message, or is in the wrong task."""


class StreamClosed(DurableStreamsError):
    """The stream is closed and cannot be written to."""


class NotRepeatable(DurableStreamsError):
    """Writing exactly once is not possible: the identity of the write or an order of its rows is missing."""


def in_one_line(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """The method, whose errors Spark shows without their traceback."""

    @wraps(method)
    def shown(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return method(*args, **kwargs)
        except DurableStreamsError:
            _hide_traceback()
            raise

    return shown


def each_in_one_line(method: Callable[_P, Iterator[_T]]) -> Callable[_P, Iterator[_T]]:
    """The same for a method that returns an iterator, which may fail at each step."""

    @wraps(method)
    def shown(*args: _P.args, **kwargs: _P.kwargs) -> Iterator[_T]:
        try:
            yield from method(*args, **kwargs)
        except DurableStreamsError:
            _hide_traceback()
            raise

    return shown


def _hide_traceback() -> None:
    # Not in other processes, which live on and may start a Spark.
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    # A worker may be forked by a daemon that is not Spark's own, but begins it.
    if (spec is not None and spec.name.startswith("pyspark.")) or "pyspark.daemon" in sys.modules:
        os.environ[_HIDES_TRACEBACK] = "1"
