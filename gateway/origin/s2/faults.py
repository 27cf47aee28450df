"""Fault switches of the S2 origin: those of `gateway.origin.faults` except `raw` and `unsolicited`, and four more.

    error             answer with one of S2's errors
    fail_session      end a session with an error, in its terminal frame or error event, after some messages
    finish_session    end a session in order after some messages, as if the read were complete
    advise_reconnect  set the reconnect bit in a session's frames after some messages

A message is a batch, a heartbeat or an acknowledgement.

Over HTTP/2, `drop` resets the connection, `refuse` resets the stream, and `truncate` ends the stream as if it were
complete.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.origin.faults import Faults, Raw, Switch, Unsolicited
from gateway.origin.s2.calls import JSON_TYPE, Call
from gateway.s2.errors import S2ErrorCode, error_body


@dataclass(frozen=True, slots=True)
class FailSession:
    """End the session with an error instead of the message after `after_messages`."""

    after_messages: int
    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class FinishSession:
    """End the session in order instead of the message after `after_messages`."""

    after_messages: int


@dataclass(frozen=True, slots=True)
class AdviseReconnect:
    """Advise to reconnect in each message after `after_messages`."""

    after_messages: int


class S2Faults(Faults):
    """The switches of one S2 origin; `kind` is a `Call`."""

    def __init__(self) -> None:
        super().__init__(Call)

    def error(
        self,
        code: S2ErrorCode,
        *,
        times: int | None = 1,
        kind: str | None = None,
        method: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """Answer the next `times` requests with this error."""
        body = error_body(code, "injected by a fault switch")
        headers = {"content-type": JSON_TYPE}
        return self.replace(code.status, headers, body, times=times, kind=kind, method=method, path=path)

    def fail_session(
        self,
        code: S2ErrorCode,
        *,
        after_messages: int = 0,
        times: int | None = 1,
        kind: str | None = None,
        path: str | None = None,
    ) -> Switch:
        """End sessions with this error after `after_messages` messages."""
        body = error_body(code, "injected by a fault switch")
        return self._set(FailSession(after_messages, code.status, body), kind, None, path, times)

    def finish_session(
        self, *, after_messages: int = 0, times: int | None = 1, kind: str | None = None, path: str | None = None
    ) -> Switch:
        """End sessions in order after `after_messages` messages."""
        return self._set(FinishSession(after_messages), kind, None, path, times)

    def advise_reconnect(
        self, *, after_messages: int = 0, times: int | None = 1, kind: str | None = None, path: str | None = None
    ) -> Switch:
        """Advise clients to reconnect after `after_messages` messages."""
        return self._set(AdviseReconnect(after_messages), kind, None, path, times)

    def _set(self, effect: object, kind: str | None, method: str | None, path: str | None, times: int | None) -> Switch:
        if isinstance(effect, Raw | Unsolicited):
            raise ValueError("the S2 origin has no switch for raw bytes")
        return super()._set(effect, kind, method, path, times)
