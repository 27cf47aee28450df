"""A gateway's admin API, as far as it is of use to a reader: how far streams have come, and what lies between offsets.

A gateway's paths are as its origin is asked for them, so the path of the reader's URL has to be the origin's there.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from pyspark_durable_streams.client import Client, refusal
from pyspark_durable_streams.errors import BadReply, DurableStreamsError
from pyspark_durable_streams.framing import Tally
from pyspark_durable_streams.places import START

_MOST_PAGES: Final = 10_000
_MOST_NAMED: Final = 5_000
_MOST_COUNTS_BYTES: Final = 1 << 20
"""An answer with a thousand runs."""
_MOST_COUNTS_S: Final = 30.0
_TOKEN: Final = re.compile(r"[!-~]{1,300}")
_MOST_UNITS: Final = 1 << 48
_LONGEST_REST: Final = 32


@dataclass(frozen=True, slots=True)
class CountedRun:
    """What lies between two offset tokens: `size` bytes with this CRC-32, in the form in which `framing` hands out."""

    token: str
    next: str
    units: int
    size: int
    crc: int

    @property
    def tally(self) -> Tally:
        """What is read there has this one, where it was counted right."""
        return Tally(self.units, self.size, self.crc)


class AdminApi:
    """Asks it; safe to use from several threads."""

    def __init__(self, client: Client, base: str, warn: Callable[[str], None]) -> None:
        self._client = client
        self._base = f"{base.rstrip('/')}/"
        self._warn = warn
        self._counts = True
        self._leaving = threading.Lock()
        self._failures = 0
        self._rest = 0
        """For so many batches it is not asked for counts."""
        self._has_told = self._has_failed = False
        """In this batch."""

    def close(self) -> None:
        """Give its connections back."""
        self._client.close()

    def tails_of(self, streams: Iterable[str]) -> dict[str, str | None]:
        """Tails of these streams, None where none is known.  BadReply, Refused and Unreachable."""
        names = list(streams)
        found: dict[str, str | None] = {}
        for at in range(0, len(names), _MOST_NAMED):
            paths = {self._path(name): name for name in names[at : at + _MOST_NAMED]}
            body = json.dumps({"streams": list(paths)}).encode()
            tails = self._tails("POST", "/api/tails", body)["tails"]
            found.update({name: tails.get(path) for path, name in paths.items()})
        return found

    def tails_below(self, prefix: str) -> dict[str, str | None]:
        """Tails of all streams whose names begin so.  Errors as above."""
        found: dict[str, str | None] = {}
        after = ""
        for _ in range(_MOST_PAGES):
            query = f"prefix={quote(self._path(prefix), safe='')}&after={quote(after, safe='')}"
            page = self._tails("GET", f"/api/tails?{query}", None)
            for path, tail in page["tails"].items():
                found[unquote(path.removeprefix(self._base)) if "%" in path else path.removeprefix(self._base)] = tail
            after = page["next"]
            if after is None:
                return found
        raise BadReply("the catalogue has no end")

    def ask_again(self) -> None:
        """A batch begins: one that knew no counts may know some by now."""
        if self._has_told and not self._has_failed:
            self._failures = 0
        self._has_told = self._has_failed = False
        self._counts = self._rest == 0
        self._rest = max(self._rest - 1, 0)

    def runs(self, stream: str, token: str, size: int, etag: str, *, is_json: bool) -> Iterator[CountedRun]:
        """What the gateway has counted from `token` on of the stream that it gave this ETag for, in runs of about
        `size` bytes; nothing where it cannot tell.

        Only a hint, that spares reading: a gateway that knows no counts, or is not there, is told of once, and not
        asked any more in this batch, nor in more and more of those that follow.
        """
        if not self._counts:
            return
        try:
            found = self._told(stream, token, size, etag)
            runs = [_run(row, is_json=is_json) for row in found]
        except (DurableStreamsError, ValueError, TypeError, KeyError, RecursionError) as error:
            self._leave(str(error) if isinstance(error, DurableStreamsError) else "an answer that is not a gateway's")
            return
        self._has_told = True
        for run in runs:
            # They lead from one to the next, and onward.
            if run is None or run.token != token or run.next == START or (token != START and run.next <= token):
                return
            yield run
            token = run.next

    def _leave(self, reason: str) -> None:
        with self._leaving:
            if not self._counts:
                return  # somebody else was told so at the same time
            if not self._failures:
                self._warn(f"catalogue: streams are counted by reading them, because it does not tell counts: {reason}")
            self._counts, self._has_failed = False, True
            self._rest = min((1 << self._failures) - 1, _LONGEST_REST)
            self._failures += 1

    def _told(self, stream: str, token: str, size: int, etag: str) -> list[Any]:
        query = (
            f"stream={quote(self._path(stream), safe='')}&etag={quote(etag, safe='')}"
            f"&offset={quote(token, safe='')}&run_bytes={size}"
        )
        reply = self._client.request(
            "GET", f"/api/counts?{query}", retry=False, most_bytes=_MOST_COUNTS_BYTES, most_s=_MOST_COUNTS_S
        )
        if reply.status == 422:
            return []  # a name that is no path's
        if reply.status != 200:
            raise refusal(reply, "/api/counts")
        found = json.loads(reply.body)["runs"]
        if not isinstance(found, list):
            raise TypeError
        return found

    def _path(self, name: str) -> str:
        return quote(self._base + name, safe="/:@!$&'()*+,;=~-._%?")

    def _tails(self, method: str, path: str, body: bytes | None) -> Any:
        headers: Mapping[str, str] | None = {"content-type": "application/json"} if body is not None else None
        reply = self._client.request(method, path, headers, body)
        if reply.status != 200:
            raise refusal(reply, "catalogue")
        try:
            said = json.loads(reply.body)
            if not isinstance(said["tails"], dict):
                raise TypeError
            said.setdefault("next", None)
        except (ValueError, TypeError, KeyError) as error:
            raise BadReply("catalogue: an answer that is not a gateway's; is it the URL of its admin port?") from error
        return said


def _run(row: Mapping[str, Any], *, is_json: bool) -> CountedRun | None:
    """None where the gateway took the stream for one of another kind."""
    messages, size, crc = row["messages"], row["bytes"], row["crc32"]
    if (messages is not None) is not is_json:
        return None
    units = messages if is_json else size
    if any(type(number) is not int for number in (units, size, crc)):
        raise TypeError
    if not (0 < units <= size <= _MOST_UNITS and 0 <= crc < 1 << 32):
        raise ValueError
    if not all(_TOKEN.fullmatch(token) for token in (row["offset"], row["next"])):
        raise ValueError
    return CountedRun(row["offset"], row["next"], units, size, crc)
