"""Round steps of time."""

from __future__ import annotations

import math
from typing import Final

_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_DAY_S: Final = 86_400
_STEPS_S: Final = tuple(
    [minutes * _MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)]
    + [hours * _HOUR_S for hours in (1, 2, 3, 6, 12)]
    + [days * _DAY_S for days in (1, 2, 7, 14, 28, 56, 91, 182, 364)]
)


def step_for(first: int, last: int, most: int) -> int:
    """The smallest round step (seconds) that divides `first`..`last` into at most `most` pieces."""
    reach = max(last - first, 0) + 1
    # The range may touch one more piece at either end.
    fitting = (step for step in _STEPS_S if reach / step + 1 <= most)
    return next(fitting, _DAY_S * math.ceil(reach / _DAY_S / max(most - 1, 1)))
