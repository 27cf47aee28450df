"""Content codings: which ones a client accepts, and which types are worth compressing (RFC 9110 sections 8.4, 12.5.3).

`negotiate` turns Accept-Encoding into an `AcceptedCodings`: the preferred coding, all acceptable codings, and whether
identity is acceptable.  A client without Accept-Encoding gets identity.  The RFC would allow any coding, but clients
that send no Accept-Encoding usually cannot decode any.  If a member of the field cannot be parsed, its coding counts as
refused.  A client therefore never receives a coding that it did not ask for.  If a coding occurs twice, its lower
weight counts.

This module negotiates only; `gateway.engine.compression` compresses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from gateway.protocol.freshness_headers import parse_cache_control
from gateway.protocol.names import media_type


class Coding(StrEnum):
    """A content coding by its registered name.  Answers in zstd use a window below the limit of 8 MB (RFC 9659)."""

    ZSTD = "zstd"
    BR = "br"
    GZIP = "gzip"


def applied(content_encoding: str | None) -> Coding | None:
    """Return the coding in a Content-Encoding; None if the field is absent or has another coding."""
    return _BY_NAME.get(content_encoding or "")


_BY_NAME: Final = {coding.value: coding for coding in Coding}


@dataclass(frozen=True, slots=True)
class AcceptedCodings:
    """The offered codings that one client accepts."""

    best: Coding | None = None
    """The coding to use; None if the client accepts none or prefers identity."""
    codings: frozenset[Coding] = frozenset()
    accepts_identity: bool = True


PLAIN: Final = AcceptedCodings()
"""The result for a client that accepts only identity."""

_WEIGHTED_MEMBER: Final = re.compile(
    r"[ \t]*(?P<name>[!#$%&'*+\-.^_`|~0-9A-Za-z]+)"
    r"(?:[ \t]*;[ \t]*[qQ]=(?P<q>0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?[ \t]*"
)
_NAME: Final = re.compile(r"[ \t]*([!#$%&'*+\-.^_`|~0-9A-Za-z]+)")

_COMPRESSIBLE_SUFFIXES: Final = ("+json", "+xml", "+yaml", "+text", "+json-seq", "+cbor")
_COMPRESSIBLE: Final = frozenset(
    {
        "application/cbor",
        "application/cloudevents",
        "application/ecmascript",
        "application/graphql",
        "application/javascript",
        "application/json",
        "application/json-seq",
        "application/jsonl",
        "application/msgpack",
        "application/ndjson",
        "application/protobuf",
        "application/sql",
        "application/toml",
        "application/vnd.google.protobuf",
        "application/vnd.msgpack",
        "application/wasm",
        "application/x-javascript",
        "application/x-jsonlines",
        "application/x-msgpack",
        "application/x-ndjson",
        "application/x-protobuf",
        "application/x-yaml",
        "application/xml",
        "application/yaml",
        "image/svg+xml",
    }
)
"""Types other than text/* that usually compress well.  Generic types (application/octet-stream), images, audio, video
and archives are not compressed."""


LONGEST_LIST: Final = 1_024
"""The longest Accept-Encoding, or request Cache-Control, that is parsed, in characters."""


def negotiate(accept_encoding: str | None, cache_control: str | None, offered: tuple[Coding, ...]) -> AcceptedCodings:
    """Parse a request's Accept-Encoding (several lines joined by commas).  `offered` is in order of preference.

    A field longer than `LONGEST_LIST` counts as absent, because a header section has room for a list of 16,000 codings.
    """
    if len(accept_encoding or "") > LONGEST_LIST or len(cache_control or "") > LONGEST_LIST:
        return PLAIN
    return negotiate_read(accept_encoding, cache_control, offered)


@lru_cache(maxsize=1024)
def negotiate_read(
    accept_encoding: str | None, cache_control: str | None, offered: tuple[Coding, ...]
) -> AcceptedCodings:
    """Like `negotiate`, for fields of any length.

    The coding with the highest weight is chosen.  Among equal weights, the first coding in `offered` is chosen.
    Identity is chosen only if the field contains it with a higher weight.  `Cache-Control: no-transform` in the request
    permits only identity (RFC 9111 section 5.2.1.6).
    """
    if accept_encoding is None or not offered or "no-transform" in parse_cache_control(cache_control):
        return PLAIN
    weights = _weights(accept_encoding)
    others = weights.get("*")
    identity = weights.get("identity", others)
    accepts_identity = identity is None or identity > 0
    weight_of = {coding: weights.get(coding.value, others or 0) for coding in offered}
    accepted = frozenset(coding for coding in offered if weight_of[coding] > 0)
    best = max(accepted, key=lambda coding: (weight_of[coding], -offered.index(coding)), default=None)
    if best is not None and identity is not None and identity > weight_of[best]:
        best = None
    return AcceptedCodings(best, accepted, accepts_identity)


def _weights(accept_encoding: str) -> dict[str, int]:
    """Return the weights of the codings in the field, in thousandths, by lower-case name.  A weight of 0 is a
    refusal."""
    weights: dict[str, int] = {}
    for member in accept_encoding.split(","):
        if (found := _WEIGHTED_MEMBER.fullmatch(member)) is not None:
            weight = round(float(found["q"] or "1") * 1000)
        elif (found := _NAME.match(member)) is not None:
            weight = 0
        else:
            continue
        name = found[1].lower()
        # A recipient treats x-gzip as gzip (RFC 9110 section 8.4.1.3).
        name = "gzip" if name == "x-gzip" else name
        weights[name] = min(weight, weights.get(name, weight))
    return weights


@lru_cache(maxsize=1024)
def is_compressible(content_type: str | None) -> bool:
    """Return whether bytes of this type usually compress well.  False for SSE, because stored bytes never have this
    type.
    """
    media = media_type(content_type)
    if media == "text/event-stream":
        return False
    return media.startswith("text/") or media in _COMPRESSIBLE or media.endswith(_COMPRESSIBLE_SUFFIXES)
