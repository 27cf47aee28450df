"""Questions that must be answered before a request can be authorised.

The guard does no I/O.  If it needs a key set, or the verdict of an authorisation service, it raises `Undecided` with
the question.  `gateway.upstream.auth_services` then asks the question, and the request is authorised again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from gateway.auth.forward_auth import ForwardVerdict, Inquiry
from gateway.errors import Fault, GatewayError


class KeySource(NamedTuple):
    """The URL at which an issuer publishes its keys.  An `Undecided.question` of this type asks for these keys."""

    issuer: str
    url: str
    """The URL of the key set, or of the issuer's metadata."""
    is_discovered: bool = False
    """Whether `url` is the URL of the issuer's metadata (OpenID Connect Discovery 1.0 section 4)."""

    @property
    def shown_url(self) -> str:
        """The URL as logs show it: without its query, which may contain a secret."""
        return self.url.partition("?")[0]


Question = KeySource | Inquiry


class Heard(NamedTuple):
    """The answer to a question: a service's answer, or a key set that was fetched because a request needed it."""

    question: Question
    verdict: ForwardVerdict | None = None
    """The verdict of a service; None if the service has failed to answer, and for a key set."""


class Undecided(GatewayError):
    """The request cannot be authorised now, because a key set or a service's verdict is missing.

    The status is not a 4xx, because clients treat a 4xx as final.
    """

    status = 503
    fault = Fault.UPSTREAM
    text = "Authorisation cannot be decided now"

    def __init__(self, question: Question | None = None, retry_in_s: float = 1.0) -> None:
        super().__init__()
        self.question = question
        """The question to ask.  None if the same question was asked recently and must not be asked again yet."""
        self._retry_in_s = retry_in_s

    @property
    def retry_after_s(self) -> int:
        """The seconds for Retry-After, at least 1 (RFC 9110 section 10.2.3)."""
        return max(1, math.ceil(self._retry_in_s))


class UnknownKey(Undecided):
    """A token names a key that the key set does not have, and the key set may not be fetched again yet."""

    text = "The token's key is unknown until the issuer's keys are fetched again"
