"""Access-log lines as container runtimes keep what a container prints.

- CRI, the format of Kubernetes: `2026-11-28T03:00:00.123456789Z stdout F {"time":…}`.  A long line is in several parts,
  which have the tag `P` in place of `F` except for the last.
- Docker's json-file: `{"log":"{\\"time\\":…}\\n","stream":"stdout","time":"…"}`.  All parts of a long line but the last
  lack the newline.

Parts of stdout and stderr may take turns.  Any other line passes as it is.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import orjson

_CRI: Final = re.compile(rb"\d{4}-\d\d-\d\dT\S+ (stdout|stderr) ([FP])(?::\S*)? (.*)", re.DOTALL)
_LINE: Final = re.compile(rb"[^\n]*\n")
_MARKS: Final = (b" stdout ", b" stderr ", b'"stdout"', b'"stderr"')
"""Each wrapped line has one of them."""
_INSIDE: Final = (
    # A prefix, such as syslog's.  A torn line before another one has quotes, and a file that was truncated under its
    # writer begins with NULs.
    re.compile(rb'[^{"\0]+\{"time":[0-9.]+,"id":'),
    re.compile(rb'\{.*\{\\"time\\":[0-9.]+,\\"id\\":'),
)


class Part(NamedTuple):
    """A part of a line that was printed, or all of it."""

    stream: bytes
    """`stdout` or `stderr`."""
    text: bytes
    is_last: bool


def unwrapped(lines: bytes, *, is_all: bool) -> tuple[bytes, int]:
    """The printed lines in whole lines of a log file, and how many bytes of these hold them.

    The rest is to be given again, with more lines: it begins with a part whose last one has not come.  If `is_all`, no
    more comes, so parts make a line without their last one.
    """
    if not any(mark in lines for mark in _MARKS):
        return lines, len(lines)
    out: list[bytes] = []
    open_parts: dict[bytes, list[bytes]] = {}
    at = taken = whole = 0
    for line in _LINE.findall(lines):
        at += len(line)
        part = part_of(line.rstrip(b"\r\n"))
        if part is None:
            out.append(line)
        else:
            texts = open_parts.setdefault(part.stream, [])
            texts.append(part.text)
            if part.is_last:
                out.append(b"".join([*open_parts.pop(part.stream), b"\n"]))
        if not open_parts:
            taken, whole = at, len(out)
    if is_all:
        out += [b"".join([*texts, b"\n"]) for texts in open_parts.values()]
        return b"".join(out), len(lines)
    return b"".join(out[:whole]), taken


def part_of(line: bytes) -> Part | None:
    """The printed part that a line of a container runtime, without its newline, holds; None for any other line."""
    if (match := _CRI.fullmatch(line)) is not None:
        stream, tag, text = match.groups()
        return Part(stream, text, tag == b"F")
    if not line.startswith(b"{") or b'"log"' not in line:
        return None
    try:
        found = orjson.loads(line)
        stream, text = found["stream"].encode(), found["log"].encode()
    except (ValueError, KeyError, AttributeError):
        return None
    return Part(stream, text.rstrip(b"\r\n"), text.endswith(b"\n"))


def is_foreign(lines: bytes) -> bool:
    """Whether the first line has an access-log line inside it, in a format that is not known here."""
    first = lines.partition(b"\n")[0]
    return part_of(first.rstrip(b"\r")) is None and any(inside.match(first) for inside in _INSIDE)
