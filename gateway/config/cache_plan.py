"""The cache plan: a JSON document that the pipeline makes from traffic, and that a gateway applies.

The schema has a version.  `memory` is the budget for the target hit ratio.  `pin`, `warm`, `do_not_store` and
`lifetimes` are lists of streams, with a reason for each.  An entry identifies a stream as the access log does: by its
route, and by its path and query in canonical spelling, without the parameters `offset`, `live` and `cursor`.

The models are strict, like the models of the configuration.  An unknown key, a number out of bounds, or contradictory
entries for one stream make the whole plan invalid.  The error is one line with the field's name.  A plan affects only
what the cache keeps, not the content of answers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.config.errors import PlanError
from gateway.config.sizes import GIB, MIB
from gateway.config.values import NodeName, RouteName

VERSION: Final = 1
MOST_PLAN_BYTES: Final = 16 * MIB
"""The size of the largest plan in bytes.  A larger document is not parsed."""
SHORT_S: Final = 86_400.0
"""A plan from fewer seconds of traffic counts as short unless it states otherwise: traffic varies over a day."""
MOST_ENTRIES: Final = 10_000
"""The most streams in one list.  For more streams, a setting of the route is better."""
_MOST_STREAM_CHARS: Final = 2_048
_MOST_REASON_CHARS: Final = 512
_SHOWN_CHARS: Final = 60
_COVERED: Final = 0.99


def _stream(text: str) -> str:
    if not text.startswith("/") or not text.isascii() or not text.isprintable() or not {" ", "#"}.isdisjoint(text):
        raise ValueError(
            "expected a path, and query where there is one, in canonical spelling, such as /v1/stream/news"
        )
    return text


StreamName = Annotated[str, Field(max_length=_MOST_STREAM_CHARS), AfterValidator(_stream)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)


class Entry(_Model):
    """One stream in a list of the plan."""

    route: RouteName = Field(description="Name of the configured route.")
    stream: StreamName = Field(description="Path and query, as in the access log: without offset, live and cursor.")
    bytes: int = Field(ge=0, le=1024 * GIB, description="Estimated bytes of the stream in the cache.")
    reason: str = Field(
        min_length=1,
        max_length=_MOST_REASON_CHARS,
        description="Reason for the entry: a sentence for the operator, with figures.",
    )

    @property
    def key(self) -> tuple[str, str]:
        """The route and the stream, which identify the entry."""
        return self.route, self.stream


class Lifetime(Entry):
    """A stream whose tape (its bytes in memory) is not worth the memory after some time without a request."""

    idle_s: float = Field(ge=1, le=31_536_000, description="Seconds without a reader after which the tape is dropped.")


class MadeFrom(_Model):
    """The traffic that the plan was made from."""

    first: AwareDatetime = Field(description="Time of the first event.")
    last: AwareDatetime = Field(description="Time of the last event.")
    lines: int = Field(ge=0, description="Lines of the access log.")
    nodes: Annotated[tuple[NodeName, ...], Field(strict=False, max_length=1_000)] = Field(
        description="Names of the gateways that wrote the lines."
    )
    is_short: bool | None = Field(
        default=None,
        description="Whether the events cover too little time to set the memory budget by. If the field is absent, "
        "less than a day counts as too little.",
    )

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        if self.last < self.first:
            raise ValueError("last is before first")
        return self

    @property
    def span_s(self) -> float:
        """The seconds from the first event to the last."""
        return (self.last - self.first).total_seconds()


class Memory(_Model):
    """The memory budget for tapes, and the hit ratios to expect with it."""

    cache_bytes: int = Field(ge=0, le=1024 * GIB, description="Recommended value of `limits.cache_bytes`.")
    policy: Literal["s3-fifo", "sieve", "lru"] = Field(
        description="Eviction policy for which the expected ratios hold."
    )
    expected_hit_ratio: Share = Field(
        description="Share of catch-up reads whose bytes are all in memory; the origin may still be asked for the tail."
    )
    expected_byte_hit_ratio: Share = Field(
        description="Share of the bytes of catch-up reads that the origin need not send."
    )
    error: Share = Field(description="Largest error of either ratio, up or down.")


_Entries = Annotated[tuple[Entry, ...], Field(strict=False, max_length=MOST_ENTRIES)]
_Lifetimes = Annotated[tuple[Lifetime, ...], Field(strict=False, max_length=MOST_ENTRIES)]


class CachePlan(_Model):
    """The whole document."""

    version: Literal[1] = Field(
        description="Version of this schema; it rises when a field changes its meaning or is removed."
    )
    made_at: AwareDatetime = Field(description="Time at which the plan was made.")
    made_from: MadeFrom
    target_hit_ratio: Share = Field(description="Hit ratio that the plan was made for.")
    memory: Memory
    pin: _Entries = Field(default=(), description="Streams not to be evicted for others, the most valuable first.")
    warm: _Entries = Field(
        default=(), description="Streams to fetch ahead of the first request, the most valuable first."
    )
    do_not_store: _Entries = Field(default=(), description="Streams whose bytes are not worth keeping.")
    lifetimes: _Lifetimes = Field(default=(), description="Streams to drop after some idle time.")

    @model_validator(mode="after")
    def _entries_agree(self) -> Self:
        for name in ("pin", "warm", "do_not_store", "lifetimes"):
            if (twice := _repeated(entry.key for entry in getattr(self, name))) is not None:
                raise ValueError(f"{name}: names {twice[1]} of route {twice[0]} twice")
        unstored = {entry.key for entry in self.do_not_store}
        for name in ("pin", "warm", "lifetimes"):
            if (both := _first_in((entry.key for entry in getattr(self, name)), unstored)) is not None:
                raise ValueError(f"{name}: {both[1]} of route {both[0]} is in do_not_store too")
        return self

    @property
    def is_short(self) -> bool:
        """Whether the plan was made from too little traffic for its memory budget to be reliable."""
        marked = self.made_from.is_short
        return covers_too_little(self.made_from.span_s, SHORT_S) if marked is None else marked

    @property
    def text(self) -> str:
        """The document as JSON text."""
        return self.model_dump_json(indent=2) + "\n"


def parse_plan(source: bytes | Path) -> CachePlan:
    """Read a plan from a file or from its text.  Raises PlanError, with the file's name if there is one."""
    if isinstance(source, bytes):
        return _parsed(source)
    try:
        with source.open("rb") as file:
            data = file.read(MOST_PLAN_BYTES + 1)
    except OSError as error:
        raise PlanError(f"{source}: {error.strerror or error}") from None
    except ValueError as error:
        # The path has a NUL byte.
        raise PlanError(f"{str(source)!r}: {error}") from None
    try:
        return _parsed(data)
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None


def covers_too_little(span_s: float, least_s: float) -> bool:
    """Whether a log of `span_s` seconds is shorter than `least_s`.

    1 % is tolerated, because the first event of a whole day comes after midnight, and the last event before the next
    midnight.
    """
    return span_s < _COVERED * least_s


def plan_schema() -> dict[str, Any]:
    """Return the document's JSON Schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **CachePlan.model_json_schema(),
        "title": "Cache plan of a durable-gateway",
    }


def _parsed(data: bytes) -> CachePlan:
    if len(data) > MOST_PLAN_BYTES:
        raise PlanError(f"larger than {MOST_PLAN_BYTES // MIB} MiB: not a cache plan")
    try:
        return CachePlan.model_validate_json(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        detail = details[0]
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        field = _dotted(detail["loc"])
        raise PlanError((f"{field}: " if field else "") + _problem(detail) + more) from None


def _problem(detail: Any) -> str:
    match detail["type"]:
        case "json_invalid":
            return f"not JSON: {detail['ctx']['error']}"
        case "extra_forbidden":
            return "unknown key"
        case "missing":
            return "is required"
        case "value_error":
            return str(detail["ctx"]["error"])
    shown = json.dumps(detail["input"], default=str)
    if len(shown) > _SHOWN_CHARS:
        shown = shown[:_SHOWN_CHARS] + "…"
    return f"{detail['msg'].replace('Input should', 'should', 1)}, got {shown}"


def _dotted(path: tuple[int | str, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    # A key from the file may have control characters, and the error must be one printable line.
    return text if text.isprintable() else ascii(text)


def _repeated(keys: Iterator[tuple[str, str]]) -> tuple[str, str] | None:
    seen: set[tuple[str, str]] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    return None


def _first_in(keys: Iterator[tuple[str, str]], among: Collection[tuple[str, str]]) -> tuple[str, str] | None:
    return next((key for key in keys if key in among), None)
