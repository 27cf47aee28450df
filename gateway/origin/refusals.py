"""The errors with which a request may be answered: a class for each cause, with its status and one line of text.

An error may carry headers that show the client how to continue, such as the tail of a closed stream.  The texts are
those of the reference server.
"""

from __future__ import annotations

from typing import ClassVar

from gateway.protocol import names


class RequestError(Exception):
    """An error reply: `status`, one line of `text`, and additional `headers`."""

    status: ClassVar[int] = 400
    text: str = "Bad request"

    def __init__(self, text: str | None = None, headers: dict[str, str] | None = None) -> None:
        if text is not None:
            self.text = text
        self.headers = headers or {}
        super().__init__(self.text)


class BadRequest(RequestError):
    """A header or parameter is invalid (400)."""


class NotFound(RequestError):
    """The stream does not exist, or has expired (404)."""

    status = 404
    text = "Stream not found"


class Gone(RequestError):
    """The stream was deleted while forks still read its bytes (410)."""

    status = 410
    text = "Stream is gone"


class Trimmed(RequestError):
    """The offset is before the earliest retained position (410, section 5.6)."""

    status = 410
    text = "Offset is no longer retained"


class BadOffset(RequestError):
    """The token is not an offset of this stream (400)."""

    text = "Invalid offset format"


class InvalidBody(RequestError):
    """The stream's content type does not allow this body (400)."""


class MethodNotAllowed(RequestError):
    """The protocol does not define this method (405)."""

    status = 405
    text = "Method not allowed"


class NotImplementedHere(RequestError):
    """This origin does not implement this part of the protocol (501)."""

    status = 501
    text = "Subscriptions are not implemented by this origin"


class TooLarge(RequestError):
    """The body exceeds the limit (413)."""

    status = 413
    text = "Request body too large"


class Conflict(RequestError):
    """The request contradicts the state of the stream (409)."""

    status = 409


class DifferentConfiguration(Conflict):
    """PUT on an existing stream that was created with other parameters (section 5.1)."""

    text = "Stream already exists with different configuration"


class PathHeld(Conflict):
    """PUT on a path whose deleted stream still has forks."""

    text = "Stream was deleted but still has active forks"


class TypeMismatch(Conflict):
    """The body's content type differs from the stream's (section 5.2)."""

    text = "Content-type mismatch"


class SequenceConflict(Conflict):
    """`Stream-Seq` did not increase (section 5.2)."""

    text = "Sequence conflict"


class StreamClosed(Conflict):
    """Append to a closed stream; the headers state its tail (section 5.2)."""

    text = "Stream is closed"

    def __init__(self, tail: str) -> None:
        super().__init__(headers={names.STREAM_CLOSED: "true", names.STREAM_NEXT_OFFSET: tail})


class SequenceGap(Conflict):
    """A producer skipped a sequence number (section 5.2.1)."""

    text = "Producer sequence gap"

    def __init__(self, expected: int, received: int) -> None:
        super().__init__(
            headers={names.PRODUCER_EXPECTED_SEQ: str(expected), names.PRODUCER_RECEIVED_SEQ: str(received)}
        )


class StaleEpoch(RequestError):
    """A producer was fenced by a later epoch (403, section 5.2.1)."""

    status = 403
    text = "Stale producer epoch"

    def __init__(self, current_epoch: int) -> None:
        super().__init__(headers={names.PRODUCER_EPOCH: str(current_epoch)})
