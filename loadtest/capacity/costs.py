"""The measured costs of the gateway, and the file that keeps them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, Self

import orjson

COSTS: Final = Path(__file__).with_name("costs.json")
CHECKED: Final = COSTS.with_name("checked.json")


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of one process.  Processor time is user and kernel, in microseconds.  Memory and messages are in bytes.

    A *hop* is a follower between processes: a process that is not the owner of a stream follows the owner.
    """

    idle_us: float
    """A second without readers."""
    event_us: float
    """An event from the origin at the owner of its stream, without any reader."""
    delivery_us: float
    """One SSE reader more that gets an event."""
    hop_event_us: float
    """An event from the owner at another process, without any reader."""
    hop_relay_us: float
    """An event that the owner sends to another process."""
    join_us: float
    """The response to an SSE reader that ends, and its next connection and join."""
    poll_us: float
    """A long-poll that is answered, and the next poll of its reader."""
    heartbeat_us: float
    """A heartbeat to an SSE reader."""
    follow_us: float
    """A live request to the origin that ends, and the next one."""
    hop_follow_us: float
    """A live request to the owner that ends, and the next one, at the process that asks."""
    hop_serve_us: float
    """The same at the owner."""

    process_bytes: float
    """A process without streams and readers."""
    sse_bytes: float
    """An idle SSE reader, without the kernel's share."""
    long_poll_bytes: float
    """A waiting long-poll, without the kernel's share."""
    socket_bytes: float
    """One end of an idle TCP connection in the kernel."""
    stream_bytes: float
    """A followed stream at its owner, without the kernel's share and its cached bytes."""
    hop_stream_bytes: float
    """A followed stream at another process than its owner."""
    hop_reader_bytes: float
    """Another process that follows a stream, at the owner."""

    frame_bytes: float
    """An SSE event, without its data and without packet headers."""
    join_reply_bytes: float
    """The answer to an SSE reader that joins at the tail: the head and the first control event."""
    poll_reply_bytes: float
    """The answer to a long-poll, without its data."""

    @classmethod
    def of(cls, figures: dict[str, float]) -> Self:
        """Make the costs from figures by name; others are ignored."""
        return cls(**{field.name: figures[field.name] for field in fields(cls)})


@dataclass(frozen=True, slots=True)
class Measured:
    """Costs, with the day and the machine of their measurement."""

    costs: Costs
    measured_on: str
    machine: str

    def write(self, path: Path = COSTS) -> None:
        """Write the file of the costs."""
        costs = {name: round(value, 1) for name, value in asdict(self.costs).items()}
        document = {"measured_on": self.measured_on, "machine": self.machine, "costs": costs}
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    @classmethod
    def read(cls, path: Path = COSTS) -> Self:
        """Read the file of the costs."""
        document = orjson.loads(path.read_bytes())
        return cls(Costs.of(document["costs"]), document["measured_on"], document["machine"])
