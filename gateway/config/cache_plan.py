"""The cache plan: what the pipeline has found out about traffic, as a document that a gateway takes.

One JSON document of a schema with a version.  `memory` is the budget that reaches the target hit ratio; `pin`, `warm`,
`do_not_store` and `lifetimes` name streams, each with the reason.  A stream is named as the access log names it: by its
route, and by path and other query in canonical spelling as clients ask for it.

The models are strict, as those of the configuration are: a plan that has an unknown key, a number out of bounds, or two
wishes for one stream that contradict each other is refused as a whole, in one line that names the field.  A plan is
advice: it changes what is kept, never what is answered.

This module knows neither the pipeline, which writes plans, nor the gateway's parts, which act on them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from gateway.config.values import GIB, MIB, NodeName, RouteName

VERSION: Final = 1
MOST_PLAN_BYTES: Final = 16 * MIB
"""A document larger than this is no plan."""
MOST_ENTRIES: Final = 10_000
"""Streams in one list: beyond it a rule of a route says it better."""
_MOST_STREAM_CHARS: Final = 2_048
_MOST_REASON_CHARS: Final = 512
_SHOWN_CHARS: Final = 60


class PlanError(ValueError):
    """A document that is no plan; its text is one line that names the field and what is wrong with it."""

    def __init__(self, text: str) -> None:
        super().__init__(" ".join(text.split()))


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
    """One stream that the plan has a wish for."""

    route: RouteName = Field(description="Name of the configured route.")
    stream: StreamName = Field(description="Path and other query as the access log has them.")
    bytes: int = Field(ge=0, le=1024 * GIB, description="About the bytes that it takes of the cache.")
    reason: str = Field(
        min_length=1, max_length=_MOST_REASON_CHARS, description="Why, in a sentence for the operator, with figures."
    )

    @property
    def place(self) -> tuple[str, str]:
        """Route and stream: what an entry is known by."""
        return self.route, self.stream


class Lifetime(Entry):
    """A stream whose tape is not worth its memory once nobody has asked for it for a while."""

    idle_s: float = Field(ge=1, le=31_536_000, description="Seconds without a reader after which its tape is given up.")


class MadeFrom(_Model):
    """The traffic that the plan was made from."""

    first: AwareDatetime = Field(description="Time of the first event.")
    last: AwareDatetime = Field(description="Time of the last event.")
    lines: int = Field(ge=0, description="Lines of the access log.")
    nodes: Annotated[tuple[NodeName, ...], Field(strict=False, max_length=1_000)] = Field(
        description="Gateways that wrote them."
    )

    @model_validator(mode="after")
    def _first_comes_first(self) -> Self:
        if self.last < self.first:
            raise ValueError("last is before first")
        return self


class Memory(_Model):
    """The budget for tapes, and what is to be expected of it."""

    cache_bytes: int = Field(ge=0, le=1024 * GIB, description="What `limits.cache_bytes` should be.")
    policy: Literal["s3-fifo", "sieve", "lru"] = Field(description="The policy that the expectation holds for.")
    expected_hit_ratio: Share = Field(description="Share of catch-up reads that are answered without the origin.")
    expected_byte_hit_ratio: Share = Field(description="Share of their bytes that the origin need not send.")
    error: Share = Field(description="How far off either ratio may be, up or down.")


_Entries = Annotated[tuple[Entry, ...], Field(strict=False, max_length=MOST_ENTRIES)]
_Lifetimes = Annotated[tuple[Lifetime, ...], Field(strict=False, max_length=MOST_ENTRIES)]


class CachePlan(_Model):
    """The whole document."""

    version: Literal[1] = Field(description="Version of this schema; raised when a field changes its meaning or goes.")
    made_at: AwareDatetime = Field(description="When the plan was made.")
    made_from: MadeFrom
    target_hit_ratio: Share = Field(description="The hit ratio that was asked for.")
    memory: Memory
    pin: _Entries = Field(default=(), description="Streams not to be given up for others, the most worthwhile first.")
    warm: _Entries = Field(default=(), description="Streams to fetch before anybody asks, the most worthwhile first.")
    do_not_store: _Entries = Field(default=(), description="Streams whose bytes are not worth keeping.")
    lifetimes: _Lifetimes = Field(default=(), description="Streams to give up when they have been idle.")

    @model_validator(mode="after")
    def _wishes_agree(self) -> Self:
        for name in ("pin", "warm", "do_not_store", "lifetimes"):
            if (twice := _repeated(entry.place for entry in getattr(self, name))) is not None:
                raise ValueError(f"{name}: names {twice[1]} of route {twice[0]} twice")
        unkept = {entry.place for entry in self.do_not_store}
        for name in ("pin", "warm", "lifetimes"):
            if (both := _first_in((entry.place for entry in getattr(self, name)), unkept)) is not None:
                raise ValueError(f"{name}: {both[1]} of route {both[0]} is in do_not_store too")
        return self

    @property
    def text(self) -> str:
        """The document as it is written to a file."""
        return self.model_dump_json(indent=2) + "\n"


def parse_plan(source: bytes | Path) -> CachePlan:
    """Read a plan from a file, or from its text; PlanError, which names the file where there is one."""
    if isinstance(source, bytes):
        return _judged(source)
    try:
        with source.open("rb") as file:
            data = file.read(MOST_PLAN_BYTES + 1)
    except OSError as error:
        raise PlanError(f"{source}: {error.strerror or error}") from None
    except ValueError as error:
        # A name that no file can have.
        raise PlanError(f"{str(source)!r}: {error}") from None
    try:
        return _judged(data)
    except PlanError as error:
        raise PlanError(f"{source}: {error}") from None


def plan_schema() -> dict[str, Any]:
    """The document's JSON Schema."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **CachePlan.model_json_schema(),
        "title": "Cache plan of a durable-gateway",
    }


def _judged(data: bytes) -> CachePlan:
    if len(data) > MOST_PLAN_BYTES:
        raise PlanError(f"larger than {MOST_PLAN_BYTES // MIB} MiB: not a cache plan")
    try:
        return CachePlan.model_validate_json(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        detail = details[0]
        more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
        field = _spelled(detail["loc"])
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


def _spelled(path: tuple[int | str, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    # A key is whatever the file has: the line is to be one that can be printed.
    return text if text.isprintable() else ascii(text)


def _repeated(places: Iterator[tuple[str, str]]) -> tuple[str, str] | None:
    seen: set[tuple[str, str]] = set()
    for place in places:
        if place in seen:
            return place
        seen.add(place)
    return None


def _first_in(places: Iterator[tuple[str, str]], among: Collection[tuple[str, str]]) -> tuple[str, str] | None:
    return next((place for place in places if place in among), None)
