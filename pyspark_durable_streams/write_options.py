"""The sink's options, with the names and conventions of Spark's Kafka sink; an unknown option is an error.

url                 the base URL of the streams' names
stream              the stream for all rows, as with `save(name)`; without it the column `stream` names it
create              content type to create a missing stream with; without it a missing stream is an error
contentType         the streams' content type, if `create` does not give it; without both, each stream is asked once
orderBy             columns, separated by commas: the order in which a stream's rows of a batch are sent
maxBatchBytes       largest body of one POST, in bytes (default 1 MiB); fixed for a query, like its checkpoint
maxDriverBytes      largest batch that the driver sends for rows that are not laid out by stream (default 128 MiB)
lineSep             follows each message of a non-JSON stream (default: a newline for ndjson and jsonl)
headers.<name>      sent with every request
connectTimeout, readTimeout, requestTimeout
                    seconds: to connect, of silence, and for a request with all its repetitions (10, 60, 300)
writeId             batch only: writes with the same id are one write, however often they run
close               batch only: true closes the streams after the last row
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_durable_streams.client import ClientConfig
from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.options import client_config, kafka_hint

_NAMES: Final = (
    "url",
    "path",
    "stream",
    "create",
    "contentType",
    "orderBy",
    "maxBatchBytes",
    "maxDriverBytes",
    "lineSep",
    "connectTimeout",
    "readTimeout",
    "requestTimeout",
    "writeId",
    "close",
)
_BATCH_ONLY: Final = ("writeId", "close")
# Spark's own options, which it passes on.
_SPARKS: Final = ("checkpointLocation", "queryName", "outputMode")
_ESCAPES: Final = {"\\n": "\n", "\\r\\n": "\r\n", "\\t": "\t"}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options of a write."""

    client: ClientConfig
    stream: str | None = None
    create: str | None = None
    content_type: str | None = None
    """None: the stream is asked."""
    order: tuple[str, ...] = ()
    max_batch_bytes: int = 1 << 20
    max_driver_bytes: int = 128 << 20
    separator: bytes | None = None
    write_id: str | None = None
    close: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str], *, is_streaming: bool) -> WriteOptions:
        """Parse options; their names are case-insensitive.  Raises BadOption."""
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in (*_NAMES, *_SPARKS)}
        for name in given:
            if name not in known and not name.startswith("headers."):
                if (instead := kafka_hint(name)) is not None:
                    raise BadOption(f"option {name} is of Kafka: {instead}")
                raise BadOption(f"option {name} is unknown; there are {', '.join(_NAMES)} and headers.<name>")
        for name in _BATCH_ONLY:
            if is_streaming and name.lower() in given:
                raise BadOption(f"option {name} is only for batches")
        if "path" in given and "stream" in given:
            raise BadOption("options path and stream exclude each other")
        create = _text(given, "create")
        content_type = _text(given, "contentType")
        if create is not None and content_type is not None and create != content_type:
            raise BadOption("options create and contentType name different content types")
        line_sep = given.get("linesep")
        return cls(
            client=client_config(given),
            stream=_text(given, "stream") or _text(given, "path"),
            create=create,
            content_type=create or content_type,
            order=tuple(name.strip() for name in given.get("orderby", "").split(",") if name.strip()),
            max_batch_bytes=_count(given, "maxBatchBytes", 1 << 20),
            max_driver_bytes=_count(given, "maxDriverBytes", 128 << 20),
            separator=None if line_sep is None else _ESCAPES.get(line_sep, line_sep).encode(),
            write_id=_text(given, "writeId"),
            close=_truth(given, "close"),
        )


def _text(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name.lower())
    if value is not None and not value.strip():
        raise BadOption(f"option {name} is empty")
    return value


def _count(given: Mapping[str, str], name: str, default: int) -> int:
    value = given.get(name.lower())
    if value is None:
        return default
    text = value.strip().lower()
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isascii() or not digits.isdecimal() or int(digits) < 1:
        raise BadOption(f"option {name}: a number of bytes, at least 1, is expected, not {value[:60]}")
    return int(digits) * factor


def _truth(given: Mapping[str, str], name: str) -> bool:
    match given.get(name.lower(), "false").lower():
        case "true":
            return True
        case "false":
            return False
    raise BadOption(f"option {name}: true or false is expected, not {given[name.lower()][:60]}")
