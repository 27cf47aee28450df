"""Server-sent events as this origin writes them (section 5.8).

A data event holds one record or a part of one, and is followed by a control event.  SSE ends lines at CR, LF and CRLF,
so text is split at all three.  A reader receives LF for each: text streams lose their CRs in this mode.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Final

from gateway.origin.streams import Slice
from gateway.protocol import names

_LINE_END: Final = re.compile(r"\r\n|\r|\n")


def event(name: str, text: str) -> bytes:
    """Return one event, with each line of `text` as a `data:` line.

    Parsers drop one space after the colon, so a line that begins with a space gets another one.
    """
    lines = "".join(f"data: {line}\n" if line.startswith(" ") else f"data:{line}\n" for line in _LINE_END.split(text))
    return f"event: {name}\n{lines}\n".encode()


def data_event(payload: bytes, *, is_json: bool, is_text: bool) -> bytes:
    """Return the event for one piece: a JSON array of its messages, text, or base64."""
    if is_json:
        return event(names.EVENT_DATA, f"[{payload.decode()}]")
    if is_text:
        # A text stream may contain any bytes, but SSE carries only UTF-8.
        return event(names.EVENT_DATA, payload.decode(errors="replace"))
    return event(names.EVENT_DATA, base64.b64encode(payload).decode("ascii"))


def control_event(next_offset: str, cursor: str, *, up_to_date: bool, is_closed: bool) -> bytes:
    """Return the event for the reader's position.  At the end of a closed stream it has no cursor: no one
    reconnects."""
    fields: dict[str, str | bool] = {"streamNextOffset": next_offset}
    if is_closed:
        fields["streamClosed"] = True
    else:
        fields["streamCursor"] = cursor
    if up_to_date:
        fields["upToDate"] = True
    return event(names.EVENT_CONTROL, json.dumps(fields, separators=(",", ":")))


def batch(found: Slice, cursor: str, *, is_text: bool, is_closed: bool) -> bytes:
    """Return every piece of a slice as a data and a control event; a single control event if there are no pieces.

    `is_closed` states that the stream is closed.  Only the event that reaches its tail says so.
    """
    ends_stream = is_closed and found.up_to_date
    if not found.pieces:
        return control_event(found.end.token, cursor, up_to_date=found.up_to_date, is_closed=ends_stream)
    written: list[bytes] = []
    last = len(found.pieces) - 1
    for number, piece in enumerate(found.pieces):
        written.append(data_event(piece.payload, is_json=found.is_json, is_text=is_text))
        written.append(
            control_event(
                piece.end.token,
                cursor,
                up_to_date=number == last and found.up_to_date,
                is_closed=number == last and ends_stream,
            )
        )
    return b"".join(written)
