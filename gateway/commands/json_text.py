"""Divides JSON text into messages, and indents it, without changing any token.

Parsing and formatting would change the text: integers above 2^64, `1.10`, `1e400`, the order of duplicate keys.
Therefore elements are cut out of an array as they are, values in input are found by their brackets and quotes, and
indenting only changes white space.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Final

from gateway.protocol.json_body import is_json

MAX_VALUE_BYTES: Final = 64 * 1024 * 1024
"""The longest message: the gateway's default bound on request bodies."""

_DECODER: Final = JSONDecoder(parse_int=str, parse_float=str)
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_LINE_BREAKS: Final = re.compile(r"[ \t]*[\r\n]+[ \t]*")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONTROLS: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_OUTSIDE: Final = re.compile(rb'[{}\[\]" \t\r\n]')
_IN_STRING: Final = re.compile(rb'["\\]')


def elements(text: str) -> Iterator[str]:
    """Return the elements of an array, unchanged.  A text that is not an array is one element.

    A comma before the closing bracket is accepted, because the SSE example in the protocol has one.  Raises ValueError
    for other invalid JSON.
    """
    at = _after_space(text, 0)
    if at == len(text) or text[at] != "[":
        yield text.strip()
        return
    at += 1
    while True:
        at = _after_space(text, at)
        if at == len(text):
            raise ValueError("an array without its end")
        if text[at] == "]":
            return
        if text[at] == ",":
            at += 1
            continue
        _, end = _DECODER.raw_decode(text, at)
        yield text[at:end]
        at = end


def one_line(text: str) -> str:
    """Return the value on one line.  JSON strings have no line breaks, so each line break can become a space."""
    return _LINE_BREAKS.sub(" ", text) if "\n" in text or "\r" in text else text


def indented(text: str) -> str:
    """Return the value indented by two spaces, one member a line, with control characters escaped."""
    out: list[str] = []
    depth = 0
    before = ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        closes = token in ("}", "]")
        depth -= closes
        opened = before in ("{", "[")
        if before == "," or opened != closes:
            out.append("\n" + "  " * depth)
        elif before == ":":
            out.append(" ")
        out.append(token)
        depth += token in ("{", "[")
        before = token
    return escaped("".join(out))


def escaped(text: str) -> str:
    """Escape control characters except line feeds, so that a stream cannot control the terminal."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class NotJson(ValueError):
    """Input is not JSON.  `line` is the line number, from 1."""

    def __init__(self, line: int, text: str = "not JSON") -> None:
        super().__init__(text)
        self.line = line


class ValueCutter:
    """Divides input into JSON values.  Between values there may be any white space.

    Input comes in pieces of any size.  An unfinished value is not scanned again with each piece, so the cost is linear.
    """

    def __init__(self) -> None:
        self._value = bytearray()
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._line = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the values that `data` completes.  The caller must exhaust the iterator.

        Raises NotJson after the valid values.
        """
        begun = at = 0
        while at < len(data):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (_IN_STRING if self._in_string else _OUTSIDE).search(data, at)
            if match is None:
                break
            before, at = match.start(), match.end()
            byte = match[0]
            if byte == b"\\":
                self._escaped = True
                continue
            if self._depth == 0 and not self._in_string and byte in b'{["':
                # A value begins here, so a number or literal before it has ended.
                yield from self._taken(data[begun:before])
                begun = before
            if byte == b'"':
                self._in_string = not self._in_string
            elif byte in b"{[":
                self._depth += 1
            elif byte in b"}]":
                self._depth -= 1
                if self._depth < 0:
                    self._value += data[begun:at]
                    raise self._broken()
            if self._depth == 0 and not self._in_string:
                yield from self._taken(data[begun:at])
                begun = at
        self._value += data[begun:]
        if len(self._value) > MAX_VALUE_BYTES:
            raise NotJson(self._line, f"a value of more than {MAX_VALUE_BYTES} bytes")

    def finish(self) -> Iterator[bytes]:
        """Yield the value that ends with the input, if there is one.  Raises NotJson."""
        yield from self._taken(b"")

    def _taken(self, rest: bytes) -> Iterator[bytes]:
        """End the collected text, and yield it as a value, unless it is only white space."""
        whole = bytes(self._value + rest)
        self._value.clear()
        value = whole.strip(b" \t\r\n")
        if value and not is_json(value):
            self._value += whole
            raise self._broken()
        self._line += whole.count(b"\n")
        if value:
            yield value

    def _broken(self) -> NotJson:
        """Return the error for the line on which the collected value begins."""
        space = len(self._value) - len(self._value.lstrip(b" \t\r\n"))
        return NotJson(self._line + self._value.count(b"\n", 0, space))


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
