"""Extract access-log lines from the formats in which container runtimes store a container's output.

- CRI, the format of Kubernetes: `2026-11-28T03:00:00.123456789Z stdout F {"time":…}`.  A long line is divided into
  several parts.  The last part has the tag `F`, and all others have `P`.
- Docker's json-file: `{"log":"{\\"time\\":…}\\n","stream":"stdout","time":"…"}`.  A long line is divided into several
  parts, of which only the last one ends with a newline.

Parts of stdout and stderr may be mixed.  Any other line is passed on unchanged.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import orjson

_CRI: Final = re.compile(rb"\d{4}-\d\d-\d\dT\S+ (stdout|stderr) ([FP])(?::\S*)? (.*)", re.DOTALL)
_LINE: Final = re.compile(rb"[^\n]*\n")
_MARKS: Final = (b" stdout ", b" stderr ", b'"stdout"', b'"stderr"')
"""Every wrapped line contains one of these."""
_INSIDE: Final = (
    # A line after a prefix, such as that of syslog.  The prefix has no quotes, so it is not an incomplete line of the
    # log.  It has no NULs, so it is not the gap at the beginning of a file that was truncated while it was written.
    re.compile(rb'[^{"\0]+\{"time":[0-9.]+,"id":'),
    re.compile(rb'\{.*\{\\"time\\":[0-9.]+,\\"id\\":'),
)


class Part(NamedTuple):
    """A printed line, or a part of it."""

    stream: bytes
    """`stdout` or `stderr`."""
    text: bytes
    is_last: bool


def unwrapped(lines: bytes, *, is_all: bool) -> tuple[bytes, int]:
    """Extract the printed lines from whole lines of a log file; return them, and how many bytes were used.

    The unused bytes begin with a part of a line whose last part is missing.  The caller passes them again, together
    with the following lines.  If `is_all`, no lines follow, and an unfinished line counts as a line.
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
    """Return the printed part in a container runtime's line, which is given without its newline.

    Return None for any other line.
    """
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
    """Whether the first line contains an access-log line in a format that this module does not support."""
    first = lines.partition(b"\n")[0]
    return part_of(first.rstrip(b"\r")) is None and any(inside.match(first) for inside in _INSIDE)
