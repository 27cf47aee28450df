"""The errors of this data source, each with one line of text for the user of the query.

Spark shows the text of an exception from a source or sink in the driver.  The text therefore names the stream, what was
found and what can be done.  It never contains the value of a header.
"""

from __future__ import annotations


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
