"""When a refused client may come back (RFC 9110 section 10.2.3)."""

from __future__ import annotations

import math
import random
from typing import Final

UNKNOWN_WAIT_S: Final = 5.0
"""The wait for a place whose holder may leave at any time."""
_MOST_S: Final = 86_400.0
"""A longer wait, which may be infinite, is stated as this one."""


def retry_after_s(wait_s: float, rng: random.Random) -> int:
    """Whole seconds for Retry-After, for a client that has to wait `wait_s`.

    It is later than needed by up to as much again, and a second at least, so that clients that were refused together do
    not come back together.
    """
    wait_s = min(wait_s, _MOST_S)
    return math.ceil(wait_s + rng.uniform(0, max(1.0, wait_s)))
