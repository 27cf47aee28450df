"""How an exchange with an origin fails, before `exchange` has a word of `errors.py` for it and `reasons` one for an
operator."""

from __future__ import annotations


class NotConnected(OSError):
    """No connection could be made; its cause is the operating system's or TLS's word for that."""


class ConnectTimedOut(NotConnected):
    """No connection was made within its bound."""


class ConnectionLost(OSError):
    """The connection ended before the reply did; its cause, if any, is the operating system's word for that."""


class UploadFailed(Exception):
    """The request's body did not come to its end, or was of another length than announced."""
