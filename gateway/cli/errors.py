"""How commands that run servers can end early."""

from __future__ import annotations


class FailedToRunError(Exception):
    """A valid command cannot run on this machine now, for example because a port is taken.  The text is one line."""


class StoppedAtOnce(Exception):
    """A second signal has ended a server before its drain was over."""
