"""Check the messages that a reader of a test stream receives, one by one.

A writer numbers its messages from 0 without a gap and appends them in order, each with its time of sending.  So a
reader that has seen a number knows the next one, and any other message is a fault: a gap, a repeat, or, if the reply
claims to be up to date, an end before a message that was acknowledged before the request.

A reader's position is that of the last complete reply or control event.  Messages after it are unconfirmed: they come
again after a reconnect, which is not a repeat.

This module knows the protocol but shares no code with the gateway, so that one mistake cannot hide in both.  It does no
I/O and reads no clock.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode

START = "-1"
NOW = "now"


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a test stream."""

    number: int
    sent_at: float
    """Wall clock of the writer, in seconds."""

    def encode(self, size: int) -> bytes:
        """As JSON, padded to about `size` bytes."""
        bare = json.dumps({"n": self.number, "t": self.sent_at, "pad": ""}).encode()
        return bare[:-2] + b"x" * max(0, size - len(bare)) + b'"}'


def decode(text: str | bytes) -> list[Message]:
    """The messages of a reply's body or a data event; ValueError when it is not an array of them."""
    try:
        return [Message(item["n"], item["t"]) for item in json.loads(text)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not an array of test messages: {text[:80]!r}") from error


class Kind(StrEnum):
    """Kinds of faults in what a reader received."""

    GAP = "gap"
    REPEAT = "repeat"
    STALE = "stale"
    """The reply claims to be up to date and lacks a message acknowledged before the request."""
    UNREADABLE = "unreadable"


class Fault(Exception):
    """One fault, as the report shows it."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Reader:
    """One reader of one stream: its position and the messages it has seen."""

    def __init__(self, start: str = START, last: int | None = None) -> None:
        self.offset = start
        self.cursor: str | None = None
        self.confirmed = -1 if start == START else last
        """The number of the last message before `offset`; None while that is unknown."""
        self.seen = self.confirmed

    def query(self, live: str | None = None) -> str:
        """The query of this reader's next request."""
        query = {"offset": self.offset}
        if live is not None:
            query["live"] = live
            if self.cursor is not None:
                query["cursor"] = self.cursor
        return urlencode(query)

    def take(self, messages: Iterable[Message]) -> list[Fault]:
        """Check messages and return their faults.  After a fault the reader continues from the message it got."""
        faults = []
        for message in messages:
            wanted = message.number if self.seen is None else self.seen + 1
            if message.number != wanted:
                kind = Kind.GAP if message.number > wanted else Kind.REPEAT
                faults.append(Fault(kind, f"wanted {wanted}, got {message.number} at {self.offset}"))
            self.seen = message.number
        return faults

    def confirm(self, offset: str, cursor: str | None = None) -> None:
        """Record that everything seen lies before `offset`."""
        self.offset = offset
        self.cursor = cursor or self.cursor
        self.confirmed = self.seen

    def rewind(self) -> None:
        """Return to the confirmed position after a lost connection."""
        self.seen = self.confirmed

    def up_to_date(self, acknowledged: int) -> list[Fault]:
        """Check a reply that is up to date; `acknowledged` is the last number acknowledged before the request."""
        if self.seen is None or self.seen >= acknowledged:
            return []
        return [Fault(Kind.STALE, f"{acknowledged} was acknowledged, {self.seen} is said to be last")]

    def reply(self, body: bytes, headers: Mapping[str, str], acknowledged: int) -> tuple[list[Message], list[Fault]]:
        """Check one complete reply of a catch-up or long-poll read."""
        try:
            messages = decode(body) if body else []
        except ValueError as error:
            return [], [Fault(Kind.UNREADABLE, str(error))]
        offset = headers.get("Stream-Next-Offset")
        if offset is None:
            return messages, [Fault(Kind.UNREADABLE, "a reply without Stream-Next-Offset")]
        faults = self.take(messages)
        self.confirm(offset, headers.get("Stream-Cursor"))
        if headers.get("Stream-Up-To-Date") == "true":
            faults += self.up_to_date(acknowledged)
        return messages, faults


class EventReader:
    """The events of one SSE connection, seen by `reader`."""

    def __init__(self, reader: Reader, acknowledged: int) -> None:
        self._reader = reader
        self._acknowledged = acknowledged
        self._rest = b""
        self._kind = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> tuple[list[Message], list[Fault]]:
        """See what came; an event counts when its blank line is here."""
        # A CR at the end may be half a CRLF: it waits for what comes.
        text = (self._rest + chunk).replace(b"\r\n", b"\n")
        held = text.endswith(b"\r")
        lines = (text[:-1] if held else text).replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + (b"\r" if held else b"")
        messages: list[Message] = []
        faults: list[Fault] = []
        for line in lines:
            name, _, value = line.decode().partition(":")
            value = value.removeprefix(" ")
            match name:
                case "event":
                    self._kind = value
                case "data":
                    self._data.append(value)
                case "" if not line:
                    came, wrong = self._event(self._kind, "\n".join(self._data))
                    messages += came
                    faults += wrong
                    self._kind, self._data = "", []
        return messages, faults

    def _event(self, kind: str, data: str) -> tuple[list[Message], list[Fault]]:
        try:
            match kind:
                case "data":
                    messages = decode(data)
                    return messages, self._reader.take(messages)
                case "control":
                    control = json.loads(data)
                    self._reader.confirm(control["streamNextOffset"], control.get("streamCursor"))
                    if control.get("upToDate") is True:
                        return [], self._reader.up_to_date(self._acknowledged)
        except (KeyError, TypeError, ValueError) as error:
            return [], [Fault(Kind.UNREADABLE, f"{kind} event: {error}")]
        return [], []
