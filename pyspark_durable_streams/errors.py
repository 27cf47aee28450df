"""What can go wrong between Spark and an origin, each with one line of text for whoever runs the query.

Spark shows the text of an exception that a source or a sink raises in the driver, so the text says which stream, what
was found and what can be done; it never has a header's value in it.
"""

from __future__ import annotations


class DurableStreamsError(Exception):
    """Any failure of this data source."""


class BadOption(DurableStreamsError, ValueError):
    """An option that is unknown, contradicts another, or has a value that is none."""


class Unreachable(DurableStreamsError):
    """No whole answer within the tries and the time there were."""


class Refused(DurableStreamsError):
    """The origin answered, and its answer is not one that another try could change."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status

    def __reduce__(self) -> tuple[type[Refused], tuple[str, int]]:
        # Errors travel from Spark's workers by pickle, which would call with the text alone.
        return type(self), (str(self), self.status)


class BadReply(DurableStreamsError):
    """An answer that the protocol does not allow: no next offset, no JSON array, or one that goes nowhere."""


class DataLost(DurableStreamsError):
    """What was planned to be read is not there any more: deleted, expired, made anew, or cut by retention."""


class BadRow(DurableStreamsError, ValueError):
    """A row that no message can be made of, or that is not where it must be."""


class StreamClosed(DurableStreamsError):
    """There is no writing to a closed stream."""


class NotRepeatable(DurableStreamsError):
    """What is needed to write exactly once is missing: who writes, or an order to write in."""
