"""Weighted rendezvous hashing: ranks the origins of a stream; `pool` takes the first that is usable.

Each origin gets a score for each stream from a hash of both, and the highest wins.  The scores do not depend on the
other origins: when one comes or goes, only its own share of the streams moves (Thaler and Ravishankar, 1998).  With
`-w / ln(u)` for a uniform `u`, an origin's share is its weight's share of all weights (Wang et al., "Weighted
rendezvous hashing", 2014).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Final

_SPAN: Final = 1 << 64


def score(origin: str, weight: float, path: str) -> float:
    """The score of an origin, named by its authority, for the stream of a percent-encoded path."""
    digest = hashlib.blake2b(f"{origin}\0{path}".encode(), digest_size=8).digest()
    # Strictly between 0 and 1.
    uniform = (int.from_bytes(digest, "big") + 0.5) / _SPAN
    return -weight / math.log(uniform)


def ranked(origins: Iterable[tuple[str, float]], path: str) -> list[str]:
    """The origins, given with their weights, in the stream's order of preference."""
    return [name for name, _ in sorted(origins, key=lambda one: (-score(one[0], one[1], path), one[0]))]
