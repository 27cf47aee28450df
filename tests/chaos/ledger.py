"""The requests of a run as their clients know them, and whether the access log says the same.

Each request comes from an address of its own, as if from behind a proxy, and has a trace of its own.  Its lines are
found by that address:

- a request that was answered whole has one final line with its status, its trace and its client's user agent, and its
  lines have as many body bytes as came
- a request whose answer has begun has one final line, and its lines have no fewer bytes than came
- a request without an answer, which may never have reached the gateway, has one final line at most

All lines of one gateway have as many final lines of each mode and outcome, and as many requests to the origin and bytes
of it, as its metrics count.  If a gateway counts lines that it could not write before its end, or if one of its workers
was killed, lines may be missing, and the others are still judged.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tests.scenarios.wire import Wire

_NETWORK: Final = "2001:db8:"
_REQUESTS: Final = re.compile(r'durable_gateway_requests_total\{mode="(\w+)",outcome="(\w+)"')
_SUMS: Final = {
    "durable_gateway_upstream_requests_total": "requests to the origin",
    "durable_gateway_upstream_bytes_total": "bytes of the origin",
    "durable_gateway_log_drops_total": "lost lines",
}


@dataclass(slots=True)
class Entry:
    """One request."""

    number: int
    asked: str
    method: str
    path: str
    user_agent: str
    status: int | None = None
    """None until the head of its answer has come."""
    body_bytes: int = 0
    """Body bytes of the answer that the client has read."""
    is_whole: bool = False
    """Whether the answer came to its end."""
    has_ended: bool = False
    """Whether its client expects no more."""
    finals: int = 0
    logged_status: int | None = None
    logged_bytes: int = 0
    last: str = ""
    """The latest of its lines."""
    may_lack_lines: bool = False
    """Whether a gateway that has lost lines may have answered it."""

    @property
    def address(self) -> str:
        """The client's address: in a network of its own."""
        # Groups of zero would make another spelling the usual one.
        high, low = divmod(self.number, 0xFFFF)
        return f"{_NETWORK}{high + 1:x}:{low + 1:x}::1"

    @property
    def trace_id(self) -> str:
        return f"{self.number + 1:032x}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that a proxy and a browser add to the request."""
        # What a client claims stands before what the proxy has seen.
        claimed = "203.0.113.66, " if self.number % 3 == 0 else ""
        return {
            "User-Agent": self.user_agent,
            "Accept-Language": "en-GB,en;q=0.8",
            "Referer": f"https://app.example/{self.user_agent}",
            "Sec-Fetch-Mode": "cors",
            "X-Forwarded-For": claimed + self.address,
            "X-Forwarded-Proto": "https",
            "traceparent": f"00-{self.trace_id}-00f067aa0ba902b7-01",
        }

    def ended(self, status: int | None, wire: Wire | None) -> None:
        """The client expects no more; the head of the answer on `wire`, if it has come, has this status."""
        self.status, self.has_ended = status, True
        if wire is not None and status is not None:
            self.body_bytes, self.is_whole = wire.taken, wire.is_over

    def wrong(self) -> str | None:
        """How the log contradicts the client; None if it does not."""
        came = f"{self.status} with {self.body_bytes} bytes{'' if self.is_whole else ' and no end'}"
        if self.finals > 1 or (self.finals == 0 and self.status is not None):
            return f"{self.finals} final lines for a request that was answered {came}"
        if self.finals and self.status is not None:
            is_status_right = self.logged_status == self.status or (not self.is_whole and self.logged_status is None)
            are_bytes_right = (
                self.logged_bytes == self.body_bytes if self.is_whole else self.logged_bytes >= self.body_bytes
            )
            if not (is_status_right and are_bytes_right):
                return f"{self.logged_status} with {self.logged_bytes} bytes for a request that was answered {came}"
        return None


class Ledger:
    """All requests whose lines are not known to be right yet.  Owner of the log's folder; `close` is owed."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-")
        self.log = Path(self._folder.name, "access.log")
        self._entries: dict[str, Entry] = {}
        self._count = 0
        self._read_bytes = 0
        self._lossy: set[str] = set()
        """How the ids of lines begin that are of gateways with lost lines: their last write may have been under way."""
        self.audited = 0
        """Requests whose lines were found to be right."""

    def begin(self, asked: str, method: str, path: str, user_agent: str) -> Entry:
        """A request that is sent now."""
        entry = Entry(self._count, asked, method, path, user_agent)
        self._count += 1
        self._entries[entry.address] = entry
        return entry

    def audit(self, exposition: str | None, *, is_lossy: bool = False) -> list[tuple[str, str, str]]:
        """Compare the new lines with the clients and with the metrics of the gateway, which has stopped; None if its
        last metrics are not known.  If it `is_lossy`, workers that were killed have taken lines with them.

        Returns the request, the line and the fault for each contradiction.
        """
        found: list[tuple[str, str, str]] = []
        sums: Counter[str] = Counter()
        gateways: set[str] = set()
        for raw in self._lines():
            line: dict[str, Any] = orjson.loads(raw)
            gateway = line["id"].partition(".")[0]
            if gateway in self._lossy:
                continue
            gateways.add(gateway)
            if line["is_final"]:
                sums[f"{line['mode']} {line['outcome']}"] += 1
            sums["requests to the origin"] += line.get("origin_requests", 0)
            sums["bytes of the origin"] += line["fetched_bytes"]
            client = line.get("client", "")
            if client.startswith(_NETWORK) and (why := self._take(line, raw)) is not None:
                found.append((*why,))
        counted = _counted(exposition) if exposition is not None else +sums
        are_all_there = not counted.pop("lost lines", 0) and not is_lossy
        if not are_all_there:
            self._lossy |= gateways
            for entry in self._entries.values():
                # Also those whose clients still read what the gateway has answered.
                entry.may_lack_lines = True
        if are_all_there and +sums != counted:
            more, less = dict(sums - counted), dict(counted - sums)
            found.append(("all requests", f"the log has {more} more", f"than the metrics count, and {less} less"))
        for address, entry in list(self._entries.items()):
            if entry.has_ended:
                del self._entries[address]
                self.audited += not entry.may_lack_lines
                if (not entry.may_lack_lines or entry.finals > 1) and (wrong := entry.wrong()) is not None:
                    found.append((entry.asked, entry.last or "no line", wrong))
        return found

    def _lines(self) -> list[bytes]:
        """The lines since the last call."""
        with self.log.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(data)
        return data.splitlines()

    def _take(self, line: dict[str, Any], raw: bytes) -> tuple[str, str, str] | None:
        entry = self._entries.get(line["client"])
        if entry is None:
            return "an unknown request", raw.decode(), "a line of a client that has sent nothing, or has all its lines"
        entry.last = raw.decode()
        entry.logged_bytes += line["sent_bytes"]
        if line["is_final"]:
            entry.finals += 1
            entry.logged_status = line.get("status")
        said = {name: line.get(name) for name in ("method", "stream", "user_agent", "trace_id")}
        meant = {
            "method": entry.method,
            "stream": entry.path,
            "user_agent": entry.user_agent,
            "trace_id": entry.trace_id,
        }
        return (entry.asked, entry.last, f"it should say {meant}") if said != meant else None

    def close(self) -> None:
        self._folder.cleanup()


def _counted(exposition: str) -> Counter[str]:
    """The sums that metrics have of what the log's lines add up to."""
    sums: Counter[str] = Counter()
    for sample in exposition.splitlines():
        value = sample.rpartition(" ")[2]
        if (found := _REQUESTS.match(sample)) is not None:
            sums[f"{found[1]} {found[2]}"] += int(float(value))
        elif (name := re.split("[{ ]", sample, maxsplit=1)[0]) in _SUMS:
            sums[_SUMS[name]] += int(float(value))
    return +sums
