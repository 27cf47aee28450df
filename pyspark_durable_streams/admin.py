"""The parts of a gateway's admin API that help a reader: the tails of streams, and counts between offsets.

The gateway lists paths as its origin knows them, so the path of the reader's URL must be the path at the origin.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from pyspark_durable_streams.client import Client, origin_error
from pyspark_durable_streams.errors import BadReply, DurableStreamsError
from pyspark_durable_streams.framing import Checksum
from pyspark_durable_streams.places import START

_MAX_PAGES: Final = 10_000
_MAX_NAMES: Final = 5_000
_MOST_COUNTS_BYTES: Final = 1 << 20
"""Enough for an answer with a thousand runs."""
_MOST_COUNTS_S: Final = 30.0
_TOKEN: Final = re.compile(r"[!-~]{1,300}")
_MAX_UNITS: Final = 1 << 48
_LONGEST_REST: Final = 32


@dataclass(frozen=True, slots=True)
class CountedRun:
    """The bytes between two offset tokens, in the form that `framing` yields: `size` bytes with this CRC-32."""

    token: str
    next: str
    units: int
    size: int
    crc: int

    @property
    def checksum(self) -> Checksum:
        """The checksum that a read of the run must match."""
        return Checksum(self.units, self.size, self.crc)


class AdminApi:
    """A client of the admin API; safe to use from several threads."""

    def __init__(self, client: Client, base: str, warn: Callable[[str], None]) -> None:
        self._client = client
        self._base = f"{base.rstrip('/')}/"
        self._warn = warn
        self._counts = True
        self._leaving = threading.Lock()
        self._failures = 0
        self._rest = 0
        """Batches for which counts are not requested."""
        self._has_answered = self._has_failed = False
        """In the current batch."""

    def close(self) -> None:
        """Release the connections."""
        self._client.close()

    def tails_of(self, streams: Iterable[str]) -> dict[str, str | None]:
        """The tails of these streams, None for an unknown one.  Raises BadReply, Refused and Unreachable."""
        names = list(streams)
        found: dict[str, str | None] = {}
        for at in range(0, len(names), _MAX_NAMES):
            paths = {self._path(name): name for name in names[at : at + _MAX_NAMES]}
            body = json.dumps({"streams": list(paths)}).encode()
            tails = self._tails("POST", "/api/tails", body)["tails"]
            found.update({name: tails.get(path) for path, name in paths.items()})
        return found

    def tails_below(self, prefix: str) -> dict[str, str | None]:
        """The tails of all streams whose names have this prefix.  Errors as above."""
        found: dict[str, str | None] = {}
        after = ""
        for _ in range(_MAX_PAGES):
            query = f"prefix={quote(self._path(prefix), safe='')}&after={quote(after, safe='')}"
            page = self._tails("GET", f"/api/tails?{query}", None)
            for path, tail in page["tails"].items():
                found[unquote(path.removeprefix(self._base)) if "%" in path else path.removeprefix(self._base)] = tail
            after = page["next"]
            if after is None:
                return found
        raise BadReply("the catalogue does not end")

    def begin_batch(self) -> None:
        """Begin a batch: counts that failed before may be available by now."""
        if self._has_answered and not self._has_failed:
            self._failures = 0
        self._has_answered = self._has_failed = False
        self._counts = self._rest == 0
        self._rest = max(self._rest - 1, 0)

    def runs(self, stream: str, token: str, size: int, etag: str, *, is_json: bool) -> Iterator[CountedRun]:
        """The runs of about `size` bytes that the gateway has counted from `token` on, in the stream with this ETag;
        empty if it has none.

        The counts only save reading.  A gateway without counts, or one that does not answer, is reported once.  It is
        not asked again in this batch, nor in a growing number of later ones.
        """
        if not self._counts:
            return
        try:
            found = self._request_counts(stream, token, size, etag)
            runs = [_run(row, is_json=is_json) for row in found]
        except (DurableStreamsError, ValueError, TypeError, KeyError, RecursionError) as error:
            self._stop_asking(str(error) if isinstance(error, DurableStreamsError) else "the answer is not a gateway's")
            return
        self._has_answered = True
        for run in runs:
            # Each run must begin where the last one ended, and lead forward.
            if run is None or run.token != token or run.next == START or (token != START and run.next <= token):
                return
            yield run
            token = run.next

    def _stop_asking(self, reason: str) -> None:
        with self._leaving:
            if not self._counts:
                return  # another thread had the same failure
            if not self._failures:
                self._warn(f"catalogue: streams are counted by reading them, because it gives no counts: {reason}")
            self._counts, self._has_failed = False, True
            self._rest = min((1 << self._failures) - 1, _LONGEST_REST)
            self._failures += 1

    def _request_counts(self, stream: str, token: str, size: int, etag: str) -> list[Any]:
        query = (
            f"stream={quote(self._path(stream), safe='')}&etag={quote(etag, safe='')}"
            f"&offset={quote(token, safe='')}&run_bytes={size}"
        )
        reply = self._client.request(
            "GET", f"/api/counts?{query}", retry=False, max_bytes=_MOST_COUNTS_BYTES, max_s=_MOST_COUNTS_S
        )
        if reply.status == 422:
            return []  # the name is not a path
        if reply.status != 200:
            raise origin_error(reply, "/api/counts")
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
            raise origin_error(reply, "catalogue")
        try:
            said = json.loads(reply.body)
            if not isinstance(said["tails"], dict):
                raise TypeError
            said.setdefault("next", None)
        except (ValueError, TypeError, KeyError) as error:
            raise BadReply("catalogue: the answer is not a gateway's; is it the URL of its admin port?") from error
        return said


def _run(row: Mapping[str, Any], *, is_json: bool) -> CountedRun | None:
    """None if the gateway counted the stream as another kind."""
    messages, size, crc = row["messages"], row["bytes"], row["crc32"]
    if (messages is not None) is not is_json:
        return None
    units = messages if is_json else size
    if any(type(number) is not int for number in (units, size, crc)):
        raise TypeError
    if not (0 < units <= size <= _MAX_UNITS and 0 <= crc < 1 << 32):
        raise ValueError
    if not all(_TOKEN.fullmatch(token) for token in (row["offset"], row["next"])):
        raise ValueError
    return CountedRun(row["offset"], row["next"], units, size, crc)
