"""Host names in their one spelling."""

from __future__ import annotations

import pytest

from gateway.protocol.target import BadHost, host_of


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("example.org", "example.org"),
        ("EXAMPLE.org:443", "example.org"),
        ("example.org.", "example.org"),
        ("example.org.:8080", "example.org"),
        ("example.org:", "example.org"),
        ("a_b-c.example", "a_b-c.example"),
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]", "[::1]"),
        ("[0:0:0:0:0:0:0:1]:4437", "[::1]"),
        ("[2001:DB8::1]", "[2001:db8::1]"),
        ("a" * 255, "a" * 255),
    ],
)
def test_a_host_has_one_spelling(authority: str, host: str) -> None:
    assert host_of(authority) == host


@pytest.mark.parametrize(
    "authority",
    [
        "", ".", "..", "a..", "a..b", ".a", ":80", "a:b", "a:80:80", "a:-1", "a:123456", "a b", "a/b", "a,b", "a@b",
        "a\\b", "a?b", "a#b", "a%2eb", "[::1", "::1", "[]", "[g::]", "[127.0.0.1]", "[::1]x", "é", "a" * 300, "a\n",
    ],
)  # fmt: skip
def test_text_that_is_no_host_is_refused(authority: str) -> None:
    with pytest.raises(BadHost):
        host_of(authority)
