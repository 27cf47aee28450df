"""JSON as text: cutting it into messages and indenting it, without ever making numbers of the writer's digits.

Parsing and printing again would change what was written: integers above 2^64, `1.10`, `1e400`, the order of equal
keys.  So elements are cut out of an array as they stand, values are found in input by their brackets and quotes, and
indenting moves tokens.  Whether a value is valid is asked of orjson, whose result is thrown away.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from json import JSONDecoder
from typing import Final

import orjson

MAX_VALUE_BYTES: Final = 64 * 1024 * 1024
"""The gateway's default bound on a request body: a longer message would be refused anyway."""

_DECODER: Final = JSONDecoder(parse_int=str, parse_float=str)
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_LINE_BREAKS: Final = re.compile(r"[ \t]*[\r\n]+[ \t]*")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_CONTROLS: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_OUTSIDE: Final = re.compile(rb'[{}\[\]" \t\r\n]')
_IN_STRING: Final = re.compile(rb'["\\]')


def elements(text: str) -> Iterator[str]:
    """The elements of an array, as they are written; a text that is no array is its own single element.

    A comma before the last bracket is let through (the protocol's own SSE example has one).  ValueError for the rest.
    """
    at = _after_space(text, 0)
    if at == len(text) or text[at] != "[":
        yield text.strip()
        return
    at += 1
    while True:
        at = _after_space(text, at)
        if at == len(text):
            raise ValueError("an array that does not end")
        if text[at] == "]":
            return
        if text[at] == ",":
            at += 1
            continue
        _, end = _DECODER.raw_decode(text, at)
        yield text[at:end]
        at = end


def one_line(text: str) -> str:
    """The same value on one line: inside strings JSON has no line breaks, so those outside may be spaces."""
    return _LINE_BREAKS.sub(" ", text) if "\n" in text or "\r" in text else text


def indented(text: str) -> str:
    """The same tokens, one member a line, indented by two; control characters of strings spelled out."""
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
    return spelled_out("".join(out))


def spelled_out(text: str) -> str:
    """Without control characters other than line feeds: a stream must not command the terminal that shows it."""
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class NotJson(ValueError):
    """Input that is not JSON; `line` counts from 1."""

    def __init__(self, line: int, text: str = "not JSON") -> None:
        super().__init__(text)
        self.line = line


class ValueCutter:
    """Cuts input into JSON values, however they are spaced and wherever the pieces end.

    Every byte is looked at a constant number of times: an unfinished value is not parsed again with each piece.
    """

    def __init__(self) -> None:
        self._value = bytearray()
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._line = 1

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The values that `data` completes, one by one; to be taken to the end.  NotJson comes behind the good ones."""
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
                # A value begins, so one that has no end of its own, as a number, has ended.
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
        """The value that only the end of the input completes, if any.  Raises NotJson."""
        yield from self._taken(b"")

    def _taken(self, rest: bytes) -> Iterator[bytes]:
        """End what has been collected: a value, or nothing where it is only space."""
        whole = bytes(self._value + rest)
        self._value.clear()
        value = whole.strip(b" \t\r\n")
        if value:
            try:
                orjson.loads(value)
            except orjson.JSONDecodeError:
                self._value += whole
                raise self._broken() from None
        self._line += whole.count(b"\n")
        if value:
            yield value

    def _broken(self) -> NotJson:
        """The error, with the line on which the value in hand begins."""
        space = len(self._value) - len(self._value.lstrip(b" \t\r\n"))
        return NotJson(self._line + self._value.count(b"\n", 0, space))


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
