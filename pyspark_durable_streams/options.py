"""The options of a read: named as in the Kafka source if that has them, in any case of letters.

An option that is unknown, has an invalid value or contradicts another raises one clear error before anything is read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, TypeVar

from pyspark_durable_streams.client import ClientConfig
from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.formats import CORRUPT, Format, Mode
from pyspark_durable_streams.places import START
from pyspark_durable_streams.times import USUAL_FIELDS, Moment

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

_HEADERS: Final = "headers."
_CATALOGUE_HEADERS: Final = "catalogueheaders."
_OF_READING: Final = (
    "url", "path", "stream", "streams", "streamsPrefix", "catalogue", "catalogueStream", "tails", "startingOffsets",
    "startingTimestamp", "startingOffsetsByTimestamp", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp",
    "timestampField", "failOnDataLoss", "maxBytesPerTrigger", "maxRowsPerTrigger", "minOffsetsPerTrigger",
    "maxTriggerDelay", "maxPollDelay", "minPartitions", "format", "chunkBytes", "mode", "columnNameOfCorruptRecord",
    "spoolBytes", "connectTimeout", "readTimeout", "requestTimeout",
)  # fmt: skip
_ONLY_STREAMING: Final = (
    "maxBytesPerTrigger", "maxRowsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxPollDelay",
)  # fmt: skip
_ONLY_BATCH: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_SAME_AS_KAFKA: Final = {"maxOffsetsPerTrigger": "maxRowsPerTrigger", "subscribe": "streams"}
_INSTEAD_OF_KAFKA: Final = {
    "assign": "streams names streams, which have no partitions",
    "endingoffsetsbytimestampstrategy": "a stream without a later message is read to its end",
    "fetchoffset.numretries": "requestTimeout bounds a request with its retries",
    "fetchoffset.retryintervalms": "requestTimeout bounds a request with its retries",
    "groupidprefix": "there are no consumer groups: the checkpoint has the progress",
    "includeheaders": "messages have no headers; streams bridged from S2 have them in envelopes",
    "kafkaconsumer.polltimeoutms": "readTimeout bounds the silence of an origin, in seconds",
    "maxrecordsperpartition": "minPartitions says how many tasks share a batch",
    "startingoffsetsbytimestampstrategy": "a stream without a later message is entered at its end",
    "subscribepattern": "streamsPrefix names streams by what their names begin with",
    "topic": "stream names the stream of all rows, as the column stream does of each",
}
"""For options of Kafka's source and sink, in lower case, what serves their purpose here."""
_HEADER: Final = re.compile(r"[A-Za-z0-9_-]+")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")
_DURATION: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|h)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Offsets:
    """`earliest`, `latest`, or a token for each stream."""

    general: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def of(self, stream: str) -> str:
        """The offset for a stream: a token, or `latest`; `earliest` becomes the protocol's token for it."""
        said = self.tokens.get(stream, self.general)
        return {EARLIEST: START, "now": LATEST}.get(said, said)


@dataclass(frozen=True, slots=True)
class Times:
    """A time at which streams are entered or left, or one for each stream, in seconds since 1970."""

    end: str
    """`starting` or `ending`."""
    general: float | None = None
    own: Mapping[str, float] = field(default_factory=dict)
    fields: tuple[str, ...] = USUAL_FIELDS
    """The fields of messages that may have their time; the first that one has is taken."""

    def of(self, stream: str) -> Moment | None:
        """The time at which a stream is entered or left; None for its beginning or end."""
        at_s = self.own.get(stream, self.general)
        return None if at_s is None else Moment(self.end, at_s, self.fields)


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The source of the list of streams: a gateway's admin API, or a stream of names."""

    admin: ClientConfig | None = None
    stream: str | None = None
    tells_news: bool = False
    """Whether its tails are trusted: a stream whose listed tail has not moved is not read."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read."""

    client: ClientConfig
    streams: tuple[str, ...] = ()
    prefix: str | None = None
    catalogue: Catalogue | None = None
    starting: Offsets = field(default_factory=lambda: Offsets(EARLIEST))
    times: Times | None = None
    """Where streams are entered in place of `starting`."""
    ending: Offsets = field(default_factory=lambda: Offsets(LATEST))
    ending_times: Times | None = None
    """Where streams are left, if that is before `ending`."""
    fails_on_loss: bool = True
    max_bytes: int | None = None
    most_rows: int | None = None
    least_rows: int = 0
    """A batch of fewer messages waits for more."""
    longest_wait_s: float = 900.0
    most_poll_s: float = 1.0
    """The longest pause between two looks that find nothing new."""
    partitions: int = 1
    format: Format = Format.MESSAGES
    chunk_bytes: int = 1 << 20
    mode: Mode = Mode.PERMISSIVE
    corrupt: tuple[str, ...] = CORRUPT
    """The columns with the texts of messages that do not fit."""
    spool_bytes: int = 1 << 29

    @property
    def as_chunks(self) -> bool:
        """Whether non-JSON streams are counted in bytes."""
        return self.format is Format.CHUNKS


def client_config(options: Mapping[str, str]) -> ClientConfig:
    """The client's configuration from `url`, `headers.*` and the timeouts; for reading and for writing."""
    found = {name.lower(): value for name, value in options.items()}
    url = found.get("url", "").strip()
    if not url:
        raise BadOption("option url is missing: the base of the streams, as http://host:port/path")
    return _config(found, url, _HEADERS)


def _config(found: Mapping[str, str], url: str, headers: str) -> ClientConfig:
    return ClientConfig(
        url.rstrip("/"),
        headers_of(found, headers),
        connect_s=_seconds(found, "connectTimeout", 10.0),
        read_s=_seconds(found, "readTimeout", 60.0),
        total_s=_seconds(found, "requestTimeout", 300.0),
    )


def headers_of(found: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The headers from options with this prefix; BadOption, without the value, for one that cannot be sent."""
    headers = {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            # The name may contain a misplaced value.
            raise BadOption(f"option {prefix}{_beginning(name)}: not the name of a header")
        if not value.isascii() or not value.isprintable():
            raise BadOption(f"option {prefix}{name}: its value cannot be sent in a header")
    return headers


def read_options(options: Mapping[str, str], *, is_streaming: bool) -> ReadOptions:
    """Parse the options of a read.  BadOption with one line that names the option."""
    found = {name.lower(): value for name, value in options.items()}
    if not found:
        raise BadOption(
            "no option arrived: Spark does not give a table's OPTIONS to a Python data source; they arrive from CREATE"
            " TEMPORARY VIEW … USING durable_streams OPTIONS (…), and from SELECT … FROM table WITH (url = …)"
        )
    found = _with_own_names(found)
    _refuse_unknown(found, is_streaming=is_streaming)
    kind = format_of(found)
    for name in ("mode", "columnNameOfCorruptRecord"):
        if name.lower() in found and kind is not Format.TYPED:
            raise BadOption(f"option {name} requires format=typed")
    if "chunkbytes" in found and kind is not Format.CHUNKS:
        raise BadOption("option chunkBytes requires format=chunks")
    streams, prefix, catalogue = _subscription(found)
    times, ending_times = (_times(found, end, streams, prefix) for end in ("starting", "ending"))
    if "timestampfield" in found and times is None and ending_times is None:
        raise BadOption("option timestampField requires a time, such as startingTimestamp")
    starting = _offsets(found, "startingOffsets", streams, prefix, LATEST if is_streaming and not times else EARLIEST)
    if not is_streaming and starting.general == LATEST:
        raise BadOption("option startingOffsets: a batch cannot start at latest, nothing follows it")
    ending = _offsets(found, "endingOffsets", streams, prefix, LATEST)
    if EARLIEST in (ending.general, *ending.tokens.values()):
        raise BadOption("option endingOffsets: latest or a token for each stream is expected, not earliest")
    max_rows, min_rows = _count(found, "maxRowsPerTrigger"), _count(found, "minOffsetsPerTrigger")
    if max_rows is not None and min_rows is not None and min_rows > max_rows:
        raise BadOption("option minOffsetsPerTrigger exceeds maxRowsPerTrigger (or maxOffsetsPerTrigger)")
    if "maxtriggerdelay" in found and min_rows is None:
        raise BadOption("option maxTriggerDelay requires minOffsetsPerTrigger")
    return ReadOptions(
        client=client_config(found),
        streams=streams,
        prefix=prefix,
        catalogue=catalogue,
        starting=starting,
        times=times,
        ending=ending,
        ending_times=ending_times,
        fails_on_loss=_boolean(found, "failOnDataLoss", True),
        max_bytes=_count(found, "maxBytesPerTrigger"),
        most_rows=max_rows,
        least_rows=min_rows or 0,
        longest_wait_s=_duration(found, "maxTriggerDelay", 900.0),
        most_poll_s=_duration(found, "maxPollDelay", 1.0),
        partitions=_count(found, "minPartitions") or max(os.cpu_count() or 1, 2),
        format=kind,
        chunk_bytes=_count(found, "chunkBytes") or 1 << 20,
        mode=_one_of(found, "mode", Mode, Mode.PERMISSIVE),
        corrupt=(found["columnnameofcorruptrecord"],) if "columnnameofcorruptrecord" in found else CORRUPT,
        spool_bytes=_count(found, "spoolBytes", least=0, default=1 << 29) or 0,
    )


def kafka_hint(name: str) -> str | None:
    """Advice for an option of Kafka's source or sink; None for other names.  `name` is in lower case."""
    if name == "kafka.bootstrap.servers":
        return "url is the base of the streams, as http://host:port/path"
    if name == "kafka.group.id":
        name = "groupidprefix"
    if name.startswith("kafka."):
        return "the protocol is HTTP, and headers.NAME adds a header to every request"
    return _INSTEAD_OF_KAFKA.get(name)


def format_of(options: Mapping[str, str]) -> Format:
    """The content of a row."""
    return _one_of({name.lower(): value for name, value in options.items()}, "format", Format, Format.MESSAGES)


def _with_own_names(found: dict[str, str]) -> dict[str, str]:
    """The options with names of the Kafka source that mean the same replaced.  BadOption if both are given."""
    for theirs, ours in _SAME_AS_KAFKA.items():
        if theirs.lower() in found:
            if ours.lower() in found:
                raise BadOption(f"options {theirs} and {ours} are one: give one of them")
            found[ours.lower()] = found.pop(theirs.lower())
    return found


def _refuse_unknown(found: Mapping[str, str], *, is_streaming: bool) -> None:
    known = {name.lower(): name for name in _OF_READING}
    for name in sorted(found):
        if name not in known and not name.startswith((_HEADERS, _CATALOGUE_HEADERS)):
            if (instead := kafka_hint(name)) is not None:
                raise BadOption(f"option {name} is of Kafka: {instead}")
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            raise BadOption(f"option {_beginning(name)} is unknown{hint}")
    for name in _ONLY_BATCH if is_streaming else _ONLY_STREAMING:
        if name.lower() in found:
            raise BadOption(f"option {name} is only for {'batches' if is_streaming else 'streaming'}")


def _subscription(found: Mapping[str, str]) -> tuple[tuple[str, ...], str | None, Catalogue | None]:
    given = [name for name in ("path", "stream", "streams", "streamsprefix") if name in found]
    if len(given) != 1:
        said = "none is given" if not given else f"there are {' and '.join(given)}"
        raise BadOption(f"exactly one of the options stream, streams and streamsPrefix is expected; {said}")
    catalogue = _catalogue(found)
    if given == ["streamsprefix"]:
        if catalogue is None:
            raise BadOption(
                "option streamsPrefix needs a list of the streams: catalogueStream, a stream of names, or catalogue,"
                " the URL of a gateway's admin API, which lists what the gateway has in memory"
            )
        return (), found["streamsprefix"].lstrip("/"), catalogue
    if catalogue is not None and catalogue.stream is not None:
        raise BadOption("option catalogueStream requires streamsPrefix")
    text = found[given[0]]
    names = [name.strip().lstrip("/") for name in (text.split(",") if given == ["streams"] else [text])]
    if not all(names):
        raise BadOption(f"option {given[0]}: a name is empty")
    if len(set(names)) != len(names):
        raise BadOption(f"option {given[0]}: a stream is named twice")
    return tuple(names), None, catalogue


def _catalogue(found: Mapping[str, str]) -> Catalogue | None:
    admin, stream = found.get("catalogue", "").strip(), found.get("cataloguestream", "").strip().lstrip("/")
    tails = found.get("tails", "ask").lower()
    if tails not in ("ask", "catalogue"):
        raise BadOption(f"option tails: ask or catalogue is expected, not {tails}")
    if admin and stream:
        raise BadOption("options catalogue and catalogueStream exclude each other")
    if tails == "catalogue" and not admin:
        raise BadOption("option tails=catalogue needs catalogue, the URL of a gateway's admin API")
    if stream:
        return Catalogue(stream=stream)
    if not admin:
        return None
    try:
        config = _config(found, admin, _CATALOGUE_HEADERS)
    except BadOption as error:
        said = str(error)
        raise BadOption(
            said if said.startswith("option ") else f"option catalogue: {said.removeprefix('url: ')}"
        ) from error
    return Catalogue(admin=config, tells_news=tails == "catalogue")


def _offsets(
    found: Mapping[str, str], name: str, streams: tuple[str, ...], prefix: str | None, default: str
) -> Offsets:
    text = found.get(name.lower(), default).strip()
    if text.lower() in (EARLIEST, LATEST):
        return Offsets(text.lower())
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(isinstance(one, str) and one for one in value.values()):
        raise BadOption(f'option {name}: earliest, latest or {{"stream": "offset", …}} is expected, not {text[:60]}')
    if prefix is None and set(value) != set(streams):
        odd = min(set(value) ^ set(streams))
        reason = "is not read" if odd in value else "has none"
        raise BadOption(f"option {name}: every stream needs an offset, and no others: {odd} {reason}")
    tokens = {
        stream: token.lower() if token.lower() in (EARLIEST, LATEST) else token for stream, token in value.items()
    }
    return Offsets(EARLIEST if name == "startingOffsets" else LATEST, tokens)


def _times(found: Mapping[str, str], end: str, streams: tuple[str, ...], prefix: str | None) -> Times | None:
    names = [f"{end}{rest}" for rest in ("Offsets", "Timestamp", "OffsetsByTimestamp")]
    given = [name for name in names if name.lower() in found]
    if len(given) > 1:
        raise BadOption(f"options {' and '.join(given)} exclude each other")
    if not given or given == names[:1]:
        return None
    fields = (found["timestampfield"],) if "timestampfield" in found else USUAL_FIELDS
    text = found[given[0].lower()].strip()
    if given == names[1:2]:
        return Times(end, _time(given[0], text), fields=fields)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadOption(f'option {given[0]}: {{"stream": milliseconds, …}} is expected, not {text[:60]}')
    if prefix is None and set(value) != set(streams):
        raise BadOption(
            f"option {given[0]}: every stream needs a time, and no others: {min(set(value) ^ set(streams))}"
        )
    return Times(end, own={stream: _time(given[0], str(one)) for stream, one in value.items()}, fields=fields)


def _time(name: str, text: str) -> float:
    """Seconds since 1970, from milliseconds or ISO 8601."""
    if _DIGITS.fullmatch(text):
        return int(text) / 1000
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise BadOption(
            f"option {name}: milliseconds since 1970, or a time as 2026-09-24T12:00:00Z, is expected, not {text[:60]}"
        ) from None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def _duration(found: Mapping[str, str], name: str, default: float) -> float:
    text = found.get(name.lower())
    if text is None:
        return default
    parsed = _DURATION.fullmatch(text.strip().lower())
    if parsed is None:
        raise BadOption(f"option {name}: a number with ms, s, m or h, as 15m, is expected, not {text[:60]}")
    return int(parsed[1]) * _UNITS_S[parsed[2]]


def _beginning(name: str) -> str:
    """The part of an option's name that looks like one."""
    found = re.match(r"[\w.-]{0,60}", name)
    return found[0] if found else ""


def _one_of(found: Mapping[str, str], name: str, kinds: Callable[[str], _T], default: _T) -> _T:
    text = found.get(name.lower())
    if text is None:
        return default
    for spelling in (text, text.lower(), text.upper()):
        try:
            return kinds(spelling)
        except ValueError:
            continue
    wanted = ", ".join(str(one) for one in type(default))  # type: ignore[attr-defined]
    raise BadOption(f"option {name}: one of {wanted} is expected, not {text[:60]}")


def _boolean(found: Mapping[str, str], name: str, default: bool) -> bool:
    text = found.get(name.lower(), str(default)).strip().lower()
    if text not in ("true", "false"):
        raise BadOption(f"option {name}: true or false is expected, not {text[:60]}")
    return text == "true"


def _count(found: Mapping[str, str], name: str, *, least: int = 1, default: int | None = None) -> int | None:
    text = found.get(name.lower())
    if text is None:
        return default
    text = text.strip().lower()
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1:], 1) if "byte" in name.lower() else 1
    digits = text[:-1] if factor > 1 else text
    if not _DIGITS.fullmatch(digits) or int(digits) * factor < least:
        raise BadOption(f"option {name}: a whole number of at least {least} is expected, not {text[:60]}")
    return int(digits) * factor


def _seconds(found: Mapping[str, str], name: str, default: float) -> float:
    text = found.get(name.lower())
    if text is None:
        return default
    text = text.strip().lower().removesuffix("s")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86_400:
        raise BadOption(f"option {name}: seconds, more than 0 and at most 86400, are expected, not {text[:60]}")
    return value
