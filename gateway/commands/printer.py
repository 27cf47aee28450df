"""Prints a stream's bytes, for a person at a terminal or for another program.

|        | terminal                                   | pipe, file                      |
|--------|--------------------------------------------|---------------------------------|
| JSON   | indented and coloured, message by message  | one message a line, as written  |
| text   | unchanged, control characters escaped      | its bytes, unchanged            |
| other  | a hex dump                                 | its bytes, unchanged            |

A piece is the whole content of one reply or one SSE event.  A printer keeps the state between pieces: an incomplete
character, the position of a dump.
"""

from __future__ import annotations

import codecs
import string
from typing import BinaryIO, Final, Protocol

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from gateway.commands.failure import CommandFailed
from gateway.commands.json_text import elements, escaped, indented, one_line
from gateway.protocol import names

_DUMP_WIDTH: Final = 16
_VISIBLE: Final = frozenset(string.ascii_letters + string.digits + string.punctuation + " ")


class Printer(Protocol):
    """Writes a stream's pieces, in order."""

    def show(self, piece: bytes) -> None: ...


def printer_for(content_type: str, out: BinaryIO, terminal: Console | None) -> Printer:
    """Return the printer for a content type.  `terminal` is the console of `out`; None if it is not a terminal."""
    if names.is_json(content_type):
        return _JsonLines(out) if terminal is None else _JsonPages(terminal)
    if terminal is None:
        return _Bytes(out)
    return _SafeText(terminal) if names.media_type(content_type).startswith("text/") else _Dump(terminal)


class _Bytes:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def show(self, piece: bytes) -> None:
        self._out.write(piece)
        self._out.flush()


class _JsonLines:
    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def show(self, piece: bytes) -> None:
        lines = [f"{one_line(message)}\n" for message in _messages(piece)]
        self._out.write("".join(lines).encode())
        self._out.flush()


class _JsonPages:
    def __init__(self, terminal: Console) -> None:
        self._terminal = terminal
        self._highlight = JSONHighlighter()

    def show(self, piece: bytes) -> None:
        for message in _messages(piece):
            text = Text(indented(message), no_wrap=True)
            self._highlight.highlight(text)
            self._terminal.print(text, soft_wrap=True)


class _SafeText:
    def __init__(self, terminal: Console) -> None:
        self._terminal = terminal
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(self, piece: bytes) -> None:
        text = self._decoder.decode(piece).replace("\r\n", "\n").replace("\t", "    ")
        self._terminal.print(Text(escaped(text)), end="", soft_wrap=True)


class _Dump:
    def __init__(self, terminal: Console) -> None:
        self._terminal = terminal
        self._position = 0

    def show(self, piece: bytes) -> None:
        for start in range(0, len(piece), _DUMP_WIDTH):
            row = piece[start : start + _DUMP_WIDTH]
            shown = "".join(char if (char := chr(byte)) in _VISIBLE else "." for byte in row)
            line = Text(f"{self._position:08x}", "dim")
            line.append(f"  {row.hex(' '):<{3 * _DUMP_WIDTH - 1}}  ", "not dim")
            line.append(shown, "not dim")
            self._terminal.print(line, soft_wrap=True)
            self._position += len(row)


def _messages(piece: bytes) -> list[str]:
    try:
        return list(elements(piece.decode()))
    except (ValueError, RecursionError):
        raise CommandFailed("the stream's type is JSON, but its content is not JSON") from None
