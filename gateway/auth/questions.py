"""Questions that must be answered before a request can be judged, and the error that carries one.

The guard decides without I/O.  Where it lacks a key set or the verdict of an authorisation service, it raises
`Undecided` with the question.  `gateway.upstream.auth_services` asks it, and the request is judged again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gateway.auth.forward import ForwardVerdict, Inquiry
from gateway.errors import Fault, GatewayError


class KeySource(NamedTuple):
    """The place where an issuer publishes its keys.  As a question, it asks for these keys."""

    issuer: str
    url: str
    """URL of the key set, or of the metadata that names it."""
    is_discovered: bool = False
    """Whether `url` leads to the issuer's metadata (OpenID Connect Discovery 1.0 section 4)."""


Question = KeySource | Inquiry


class Heard(NamedTuple):
    """The answer of a service that was asked."""

    inquiry: Inquiry
    verdict: ForwardVerdict | None
    """The verdict; None if the service has given none."""


class Undecided(GatewayError):
    """The request cannot be judged now, because a key set or an authorisation service has not answered.  The status is
    never a 4xx, which clients treat as final."""

    status = 503
    fault = Fault.UPSTREAM
    text = "Authorisation cannot be decided now"

    def __init__(self, question: Question | None = None, retry_in_s: float = 1.0) -> None:
        super().__init__()
        self.question = question
        """The question to ask first; None if it is too early to ask again."""
        self._retry_in_s = retry_in_s

    @property
    def retry_after_s(self) -> int:
        """Whole seconds, 1 at least (RFC 9110 section 10.2.3)."""
        return max(1, math.ceil(self._retry_in_s))
