"""Failures of an exchange with an origin, before `exchange` translates and `reasons` names them."""

from __future__ import annotations


class NotConnected(OSError):
    """No connection could be made; the cause is the error of the operating system or of TLS."""


class ConnectTimedOut(NotConnected):
    """No connection was made within its bound."""


class ConnectionLost(OSError):
    """The connection ended before the reply did; the cause, if any, is the operating system's error."""


class UploadFailed(Exception):
    """The request's body ended early or did not have the announced length."""
