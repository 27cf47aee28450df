"""Content codings: what a client takes, and what is worth coding (RFC 9110 sections 8.4 and 12.5.3).

`negotiate` turns Accept-Encoding into a `AcceptedCodings`: the one coding to give, all that may be given, and whether the bytes
may go out as they are.  A client that says nothing gets plain bytes: the RFC would allow any coding, and those who do
not ask are those who cannot undo one.  What cannot be read counts as refused, so that no coding is ever given to a
client that did not ask for it; a coding named twice counts as it is liked least.

It codes nothing and knows no bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from gateway.protocol.freshness import parse_cache_control
from gateway.protocol.names import media_type


class Coding(StrEnum):
    """A content coding by its registered name; zstd's window stays below the 8 MB of RFC 9659."""

    ZSTD = "zstd"
    BR = "br"
    GZIP = "gzip"


def applied(content_encoding: str | None) -> Coding | None:
    """The coding that a Content-Encoding names; None for none, and for what is none of these."""
    return _BY_NAME.get(content_encoding or "")


_BY_NAME: Final = {coding.value: coding for coding in Coding}


@dataclass(frozen=True, slots=True)
class AcceptedCodings:
    """What one client takes of the codings that are offered to it."""

    best: Coding | None = None
    """The one to give; None where the client takes none or likes plain bytes better."""
    taken: frozenset[Coding] = frozenset()
    takes_identity: bool = True


PLAIN: Final = AcceptedCodings()
"""The wish of a client that takes bytes as they are and nothing else."""

_MEMBER: Final = re.compile(
    r"[ \t]*(?P<name>[!#$%&'*+\-.^_`|~0-9A-Za-z]+)"
    r"(?:[ \t]*;[ \t]*[qQ]=(?P<q>0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?[ \t]*"
)
_NAME: Final = re.compile(r"[ \t]*([!#$%&'*+\-.^_`|~0-9A-Za-z]+)")

_TEXTUAL_SUFFIXES: Final = ("+json", "+xml", "+yaml", "+text", "+json-seq", "+cbor")
_TEXTUAL: Final = frozenset(
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
"""Types beyond text/* that shrink.  A type that says nothing of its bytes (application/octet-stream) is left alone, as
are images, sound, video and archives."""


@lru_cache(maxsize=1024)
def negotiate(accept_encoding: str | None, cache_control: str | None, offered: tuple[Coding, ...]) -> AcceptedCodings:
    """The wish in a request's Accept-Encoding (several lines joined by commas); `offered` is in order of preference.

    What the client likes best wins, the order of `offered` among equals, and plain bytes only where they are named as
    liked better.  A request with `Cache-Control: no-transform` wants the bytes as they are (RFC 9111 section 5.2.1.6).
    """
    if accept_encoding is None or not offered or "no-transform" in parse_cache_control(cache_control):
        return PLAIN
    liking = _liking(accept_encoding)
    others = liking.get("*")
    identity = liking.get("identity", others)
    takes_identity = identity is None or identity > 0
    likes = {coding: liking.get(coding.value, others or 0) for coding in offered}
    taken = frozenset(coding for coding in offered if likes[coding] > 0)
    best = max(taken, key=lambda coding: (likes[coding], -offered.index(coding)), default=None)
    if best is not None and identity is not None and identity > likes[best]:
        best = None
    return AcceptedCodings(best, taken, takes_identity)


def _liking(accept_encoding: str) -> dict[str, int]:
    """Codings named in the field, lower case, with their weights in thousandths; 0 is a refusal."""
    liking: dict[str, int] = {}
    for member in accept_encoding.split(","):
        if (found := _MEMBER.fullmatch(member)) is not None:
            weight = round(float(found["q"] or "1") * 1000)
        elif (found := _NAME.match(member)) is not None:
            weight = 0
        else:
            continue
        name = found[1].lower()
        # RFC 9110 section 8.4.1.3: x-gzip is to be taken for gzip.
        name = "gzip" if name == "x-gzip" else name
        liking[name] = min(weight, liking.get(name, weight))
    return liking


@lru_cache(maxsize=1024)
def is_compressible(content_type: str | None) -> bool:
    """Whether bytes of this type usually shrink; SSE is no stored type and never among them."""
    media = media_type(content_type)
    if media == "text/event-stream":
        return False
    return media.startswith("text/") or media in _TEXTUAL or media.endswith(_TEXTUAL_SUFFIXES)
