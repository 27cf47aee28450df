"""Errors of commands that run servers."""

from __future__ import annotations


class FailedToRunError(Exception):
    """A valid command cannot run on this machine now, for example because a port is taken.  The text is one line."""
