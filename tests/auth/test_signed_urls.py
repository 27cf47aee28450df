"""The text that is signed, as applications in other languages write it."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode

import pytest

from gateway.auth.permissions import Action
from gateway.auth.signed_urls import Presented, verify_signature
from gateway.auth.verdict import BadCredential
from tests.scenarios.credentials import LINK_KEY, WALL

EXPIRES = str(WALL + 60)


def signature(streams: str) -> str:
    """The signature over seven lines, of which the third says which streams."""
    text = "\n".join(("durable-gateway-1", "", streams, EXPIRES, "", LINK_KEY.id, ""))
    return urlsafe_b64encode(hmac.new(LINK_KEY.secret, text.encode(), hashlib.sha256).digest()).rstrip(b"=").decode()


def presented(path: str, line: str, **more: str) -> Presented:
    return Presented({"expires": EXPIRES, "key": LINK_KEY.id, "signature": signature(line), **more}, path)


@pytest.mark.parametrize(
    ("one", "reads"),
    [
        (presented("/rooms/7", "/rooms/7"), ["/rooms/7"]),
        (presented("/rooms/*", "/rooms/*"), ["/rooms/*"]),
        (presented("/rooms/7", "streams=/rooms/*", streams="/rooms/*"), ["/rooms/*", "/rooms/7"]),
        (presented("/rooms/7", "/rooms/*", streams="/rooms/*"), None),
        (presented("/rooms/*", "streams=/rooms/*"), None),
        (presented("/rooms/7", "/rooms/7", streams="/rooms/7"), None),
    ],
)
def test_signature_is_for_one_stream_or_for_a_pattern_as_its_text_says(one: Presented, reads: list[str] | None) -> None:
    if reads is None:
        with pytest.raises(BadCredential):
            verify_signature(one, [LINK_KEY], None, WALL)
        return
    principal = verify_signature(one, [LINK_KEY], None, WALL)
    paths = ("/rooms/*", "/rooms/7", "/rooms/7/8")
    assert [path for path in paths if principal.allows(Action.READ, path)] == reads
